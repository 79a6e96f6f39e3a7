package main

import (
	"errors"
	"fmt"
	"path"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// overdue is how long a recipient may be due, with a scheduler running, before
// that is worth a look.
const overdue = time.Hour

// queue looks at queue/ and transport/ together.
func (x *checker) queue() {
	seen := map[postoffice.Name]bool{}
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		here := map[postoffice.Name]file{}
		x.each(dir, func(f file) {
			n, ok := postoffice.ParseName(f.Name)
			other, double := here[n]
			switch {
			case !f.Info.Mode.IsRegular():
				x.say(f.path(), warning, "unknown", "Neither a regular file nor a hash directory: nothing takes it up. Remove it.")
				return
			case !ok:
				x.say(f.path(), warning, "unknown", "Not a spool file's name: nothing takes it up. Remove it, or submit it.")
				return
			case double:
				x.double(f, other, n)
			case !seen[n]:
				seen[n] = true
				x.queued(n)
			}
			here[n] = f
		})
	}
}

// double tells of two files with one name at different hash depths, unless one was
// moved from the one to the other place while we looked.
func (x *checker) double(a, b file, n postoffice.Name) {
	used, err := x.find(a.Dir, n)
	if err != nil || !x.exists(a.path()) || !x.exists(b.path()) {
		return
	}
	if used.Name == a.Name {
		a, b = b, a
	}
	x.say(a.path(), wrong, "double", "The same name stands as "+b.path()+" too. One of the two is a copy; compare them and remove it.")
}

// queued looks at a message with its specification, whichever of them is there.
func (x *checker) queued(n postoffice.Name) {
	m, err := x.loadQueued(n)
	if errors.Is(err, errMoved) {
		return
	}
	if err != nil {
		x.say(n.String(), wrong, stateQueued, err.Error())
		return
	}
	name := n.String()
	if len(m.Files) > 0 {
		name = m.Files[len(m.Files)-1]
	}
	v, text := x.judge(m)
	if m.Problem != "" {
		text = append(text, "Wrong: "+m.Problem+".")
	}
	head := count(len(m.Recipients), "recipient") + "."
	if m.ID != "" {
		head = m.ID + ", " + span(x.now.Sub(m.Since)) + " old, " + head
	}
	x.say(name, v, m.State, append(append([]string{head}, text...), x.next(m)...)...)
	if m.parsed != nil {
		x.recorded(m)
	}
}

// judge says how bad a message's state is, and why.
func (x *checker) judge(m *message) (severity, []string) {
	switch m.State {
	case stateHandedOver:
		if m.Problem != "" {
			return wrong, nil
		}
		if m.Owner == nil || !m.Owner.Alive {
			return warning, nil
		}
		return fine, nil
	case stateFinishing:
		for i := range m.Recipients {
			if m.Recipients[i].open() {
				return wrong, nil
			}
		}
		return fine, nil
	}
	if m.parsed == nil {
		return wrong, nil
	}
	if !m.parsed.Complete {
		return warning, nil
	}
	v, text := fine, []string(nil)
	worse := func(w severity, why string) { v = max(v, w); text = append(text, why) }
	if o := m.parsed.BodyOffset; o > m.Size {
		worse(wrong, fmt.Sprintf("The body is said to start at byte %d of a file of %d bytes: message and specification do not belong together.", o, m.Size))
	}
	if m.parsed.Message != "" && path.Base(m.parsed.Message) != m.Name {
		if n, ok := m.parsed.Number(); !ok || fmt.Sprint(n) != fmt.Sprint(nameNumber(m.Name)) {
			worse(warning, "The specification names the message "+m.parsed.Message+".")
		}
	}
	if ino := m.id.Ino; ino != nameNumber(m.Name) {
		worse(warning, fmt.Sprintf("Its inode number is %d: it was copied or restored, and its spool ID is a new one.", ino))
	}
	if queue, spec := path.Dir(m.message.Name), path.Dir(m.spec.Name); queue != spec {
		worse(warning, "Message and specification stand at different hash depths; the scheduler moves them together.")
	}
	if m.parsed.Torn {
		text = append(text, "Its last line is torn; readers ignore it.")
	}
	x.progress(m, worse)
	return v, text
}

func nameNumber(name string) uint64 { n, _ := postoffice.ParseName(name); return n.Ino }

// progress looks for recipients that nobody serves.
func (x *checker) progress(m *message, worse func(severity, string)) {
	scheduler := x.runs("scheduler")
	for i := range m.Recipients {
		r := &m.Recipients[i]
		switch {
		case r.State == held:
			worse(warning, "Nothing serves <"+r.Address+">.")
		case r.State == stale && !scheduler:
			worse(warning, "<"+r.Address+"> is locked by "+r.Owner.String()+".")
		case r.State == stale && x.now.Sub(m.spec.Info.ModTime) > overdue:
			worse(warning, "<"+r.Address+"> has been locked by "+r.Owner.String()+" for more than an hour, with a scheduler running.")
		case r.State == waiting && scheduler && r.Next != nil && x.now.Sub(*r.Next) > overdue:
			worse(warning, "<"+r.Address+"> is due for "+span(x.now.Sub(*r.Next))+" without an attempt.")
		case r.State == waiting && scheduler && r.Next == nil && r.Attempts == 0 && x.now.Sub(m.spec.Info.CTime) > overdue:
			worse(warning, "<"+r.Address+"> has waited more than an hour for a first attempt over "+r.Channel+"/"+r.Host+".")
		}
	}
}

// recorded notes the reports that a specification records, and misses those that
// are neither there nor submitted.
func (x *checker) recorded(m *message) {
	for i := range m.parsed.History {
		e := &m.parsed.History[i]
		if e.Event == workspec.EventReport && e.Get("file") != "" {
			x.reports[e.Get("file")] = m.spec.path()
		}
	}
}
