package text

import (
	"fmt"
	"io"
	"io/fs"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/workspec"
)

// ShowMessage prints everything about a message.
func ShowMessage(w io.Writer, x *view.Explainer, m *view.Message) {
	s := x.Spool
	// Trouble of the writer is met when it is flushed, or by the next command.
	_ = PrintMessage(w, m, s.Now)
	showFiles(w, s, m)
	showReasons(w, s, m)
	showEnvelope(w, s, m)
	if m.Raw != nil {
		section(w, "work specification")
		for _, line := range view.TextLines(m.Raw) {
			fmt.Fprintln(w, "  "+line)
		}
	}
	showHistory(w, m)
	section(w, "what happens next")
	p := term.For(w)
	for i, line := range x.Next(m) {
		if i == 0 {
			line = painted(p, m, line)
		}
		fmt.Fprintln(w, "  "+line)
	}
}

// showReasons prints why a message was put aside, each time.
func showReasons(w io.Writer, s *view.Spool, m *view.Message) {
	if m.File.Dir == "" {
		return
	}
	list, err := s.PO.Aside.Reasons(m.SpoolID)
	if len(list) == 0 && err == nil {
		return
	}
	section(w, "why it was put aside")
	for i := range list {
		fmt.Fprintf(w, "  %s  %s\n", list[i].Time.Local().Format(human.TimeFormat), view.ReasonWords(&list[i]))
	}
	if err != nil {
		fmt.Fprintln(w, "  "+human.Clean(err.Error()))
	}
}

func section(w io.Writer, title string) { fmt.Fprintf(w, "\n%s\n", term.For(w).Bold(title)) }

func showFiles(w io.Writer, s *view.Spool, m *view.Message) {
	section(w, "files")
	for _, name := range m.Files {
		info, err := s.FS.Stat(name)
		if err != nil {
			fmt.Fprintf(w, "  %s  gone meanwhile\n", name)
			continue
		}
		fmt.Fprintf(w, "  %s  %d bytes, %v, uid %d, written %s\n", name, info.Size, lsMode(info.Mode), info.UID, info.ModTime.Format(human.TimeFormat))
	}
}

// showEnvelope prints the envelope lines as written in the file.
func showEnvelope(w io.Writer, s *view.Spool, m *view.Message) {
	if m.File.Dir == "" {
		return
	}
	section(w, "envelope")
	list, err := s.EnvelopeLines(m)
	if err != nil {
		fmt.Fprintln(w, "  "+human.Clean(err.Error()))
	}
	for _, line := range list {
		fmt.Fprintln(w, "  "+line)
	}
}

// showHistory prints events and diagnostics with their time and recipient in words.
func showHistory(w io.Writer, m *view.Message) {
	if m.Spec == nil || len(m.Spec.History)+len(m.Spec.Diagnostics) == 0 {
		return
	}
	before := view.Attempts{}
	address := map[int64]string{}
	for gi := range m.Spec.Groups {
		for ri := range m.Spec.Groups[gi].Recipients {
			r := &m.Spec.Groups[gi].Recipients[ri]
			address[r.Offset] = "<" + human.Clean(r.Address) + ">"
		}
	}
	section(w, "history")
	p := term.For(w)
	fmt.Fprintf(w, "  %s  accepted\n", m.Since.Format(human.TimeFormat))
	for i := range m.Spec.History {
		e := &m.Spec.History[i]
		var attrs strings.Builder
		for _, a := range e.Attrs {
			attrs.WriteString(" " + a.Key + "=" + a.Value)
		}
		name := address[e.Recipient]
		if e.Event == workspec.EventDeferred && name == "" {
			var names []string
			for r := range m.Spec.About(e) {
				names = append(names, human.Clean(r.Address))
			}
			name = view.Named(names)
		}
		fmt.Fprintf(w, "  %s  %s %s%s %s%s\n", e.Time.Format(human.TimeFormat), p.State(e.Event, human.Clean(e.Event)), name,
			human.Clean(attrs.String()), human.Clean(view.OneLine(e.Text)), before.LeftOut(m.Spec, e))
	}
	for i := range m.Spec.Diagnostics {
		d := &m.Spec.Diagnostics[i]
		report := "report is due"
		if d.Reported {
			report = "reported"
		}
		fmt.Fprintf(w, "  %s  %s %s %s, %s: %s\n", d.Time.Format(human.TimeFormat), p.State(d.Notary.Action, human.Clean(d.Notary.Action)), address[d.Of],
			human.Clean(d.Notary.Status), report, human.Clean(view.AnswerOf(d)))
	}
}

// lsMode returns a regular file's mode as ls(1) prints it: the sticky bit, which a daemon's
// message has, is a T at the end, or a t where others may execute the file.
func lsMode(m fs.FileMode) string {
	text := []byte("-" + m.Perm().String()[1:])
	if m&fs.ModeSticky != 0 {
		last := &text[len(text)-1]
		if *last == 'x' {
			*last = 't'
		} else {
			*last = 'T'
		}
	}
	return string(text)
}
