package postoffice

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Beside a message that was put aside as deferred/I.why, freezer/I.cause, postman/I or
// postman/I_why is the text file reason.I: in full what the name says in a word, a line
// for each time, for whoever has nothing but ls and cat. It is for operators: it is not
// synced, and a message without one is as good as one with it. One thing alone is decided
// by it: what an operator has thawed no policy freezes again. The message's own bytes are never changed. No other program takes it up:
// names of messages start with a digit.

// reasonPrefix starts its name.
const reasonPrefix = "reason."

const (
	// maxReason bounds what one line says, in bytes.
	maxReason = 2000
	// maxReasons bounds the file, in bytes: a message that comes back all day.
	maxReasons = 64 << 10
	// reasonGrace is how long a text without its message is left: that may be on its way.
	reasonGrace = time.Minute
)

// What became of a message, for Reason.What.
const (
	WasDeferred    = "deferred"
	WasFrozen      = "frozen"
	WasSetAside    = "set-aside"
	WasCopied      = "copied"
	WasResubmitted = "resubmitted"
	WasThawed      = "thawed"
)

// Reason is one line: what was done to a message, by whom and why.
type Reason struct {
	ID   SpoolID
	Time time.Time // to the second
	Who  string    // router, scheduler, or an operator's login
	What string
	Text string // one line
}

func (r *Reason) append(b []byte) []byte {
	b = r.ID.AppendTo(b)
	b = fmt.Appendf(b, " %s %s %s", r.Time.UTC().Format(time.RFC3339), oneWord(r.Who), oneWord(r.What))
	text := strings.Join(strings.Fields(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, r.Text)), " ")
	if len(text) > maxReason {
		text = text[:maxReason]
	}
	if text != "" {
		b = append(append(b, ' '), text...)
	}
	return append(b, '\n')
}

// oneWord makes a text one that is between blanks.
func oneWord(s string) string { return cmp.Or(strings.Join(strings.Fields(s), "_"), "-") }

// ParseReasons reads such a text. Lines that are none, as one torn by a loss of power,
// are passed over.
func ParseReasons(b []byte) []Reason {
	var list []Reason
	for line := range strings.Lines(string(b)) {
		line, whole := strings.CutSuffix(line, "\n")
		f := strings.SplitN(line, " ", 5)
		if !whole || len(f) < 4 {
			continue
		}
		id, err := ParseSpoolID(f[0])
		at, terr := time.Parse(time.RFC3339, f[1])
		if err != nil || terr != nil {
			continue
		}
		r := Reason{ID: id, Time: at, Who: f[2], What: f[3]}
		if len(f) == 5 {
			r.Text = f[4]
		}
		list = append(list, r)
	}
	return list
}

// ReasonFile returns the inode number in the name of such a text; name is its last element.
func ReasonFile(name string) (ino uint64, ok bool) { return numberAfter(reasonPrefix, name) }

func reasonFile(dir string, ino uint64) string {
	return dir + "/" + reasonPrefix + inodeName(ino)
}

// inodes is a set of inode numbers; the zero value is empty.
type inodes struct {
	mu  sync.Mutex
	set map[uint64]struct{}
}

func (s *inodes) add(ino uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = map[uint64]struct{}{}
	}
	s.set[ino] = struct{}{}
}

// take removes a number, and reports whether it was there.
func (s *inodes) take(ino uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.set[ino]
	delete(s.set, ino)
	return ok
}

// Explain adds a line to the text beside a message that is in dir, or is about to be.
func (p *AsideArea) Explain(dir string, r Reason) error {
	name := reasonFile(dir, r.ID.Ino)
	if info, err := p.fs.Stat(name); err == nil && info.Size > maxReasons {
		// Crash: without a text; the new one says why.
		if err := p.remove(name); err != nil {
			return fmt.Errorf("explain %s: %w", r.ID, err)
		}
	}
	// Crash: an empty text, or one without its message, which is swept; or the line.
	f, err := p.fs.Open(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("explain %s: %w", r.ID, err)
	}
	p.reasons.add(r.ID.Ino)
	_, err = f.Write(r.append(nil))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("explain %s: %w", r.ID, err)
	}
	return nil
}

// Reasons returns the lines about a message in all directories, the oldest first. A message
// that was copied or restored is known by its time.
func (p *AsideArea) Reasons(id SpoolID) ([]Reason, error) {
	var list []Reason
	var errs []error
	for _, dir := range asideDirs() {
		b, err := p.readAll(reasonFile(dir, id.Ino))
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("read why %s is in %s: %w", id, dir, err))
			continue
		}
		for _, r := range ParseReasons(b) {
			if r.ID.MTime == id.MTime {
				list = append(list, r)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Reason) int { return a.Time.Compare(b.Time) })
	return list, errors.Join(errs...)
}

// carryReasons gives a message in dir that has another inode number since it was copied
// the lines under the old one. They are for operators: an error is none.
func (p *AsideArea) carryReasons(dir string, was uint64, id SpoolID) {
	b, err := p.readAll(reasonFile(dir, was))
	if err != nil {
		return
	}
	for _, r := range ParseReasons(b) {
		if r.ID.MTime == id.MTime {
			r.ID = id
			_ = p.Explain(dir, r)
		}
	}
}

// forgetReasons removes the texts of a message that has left router/ for good, if this
// process knows of one. Others' are swept.
func (p *AsideArea) forgetReasons(ino uint64) {
	if !p.reasons.take(ino) {
		return
	}
	for _, dir := range []string{Deferred, Freezer} {
		// Crash: there or not; nothing needs it.
		_ = p.fs.Remove(reasonFile(dir, ino))
	}
}

// SweepReasons removes texts whose message is neither put aside nor in router/ nor
// removed/. Any number of processes may call it at once. dry: nothing is removed.
func (p *AsideArea) SweepReasons(now time.Time, dry bool) ([]Recovered, error) {
	texts := map[string]uint64{}
	there := map[uint64]bool{}
	for _, dir := range asideDirs() {
		err := durable.ReadDirFunc(p.fs, dir, func(part []durable.Entry) error {
			for _, e := range part {
				if ino, ok := ReasonFile(e.Name); ok {
					texts[dir+"/"+e.Name] = ino
				} else if ino, ok := asideNumber(e.Name); ok {
					there[ino] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("sweep reasons: %w", err)
		}
	}
	if len(texts) == 0 {
		return nil, nil
	}
	if err := p.numbersUnderWay(there); err != nil {
		return nil, fmt.Errorf("sweep reasons: %w", err)
	}
	var done report
	for name, ino := range texts {
		if there[ino] {
			p.reasons.add(ino)
			continue
		}
		info, err := p.fs.Stat(name)
		if err != nil || apart(now, info.ModTime) < reasonGrace {
			continue // gone, or its message may have been between two of the directories
		}
		if !dry {
			// Crash: there or not; nothing needs it.
			err = p.remove(name)
		}
		done.add(name, &Recovered{Action: Swept, Name: name, Detail: "its message is not put aside any more"}, err)
	}
	slices.SortFunc(done, func(a, b Recovered) int { return strings.Compare(a.Name, b.Name) })
	return done, nil
}

// numbersUnderWay adds the inode numbers of messages that may come back to where they
// were put aside: those in router/ and removed/.
func (p *AsideArea) numbersUnderWay(there map[uint64]bool) error {
	err := p.routers().each(func(_, name string) {
		if n, ok := ParseName(name); ok {
			there[n.Ino] = true
		}
	})
	if err != nil {
		return err
	}
	err = durable.ReadDirFunc(p.fs, Removed, func(part []durable.Entry) error {
		for _, e := range part {
			if m, ok := parseRemoved(e.Name); ok {
				there[m.ID.Ino] = true
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
