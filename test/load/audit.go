package load

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Audit is what a load came to once the system has nothing left to do.
type Audit struct {
	Tries, Accepted, Refused, Unsure int
	Copies                           int // that arrived

	Lost       []Finding // accepted, and a copy is missing
	Duplicated []Finding // more copies than the log explains
	Torn       []Finding // a copy that is not whole
	Unwanted   []Finding // refused, and it arrived
	Denied     []Finding // told that it will never be taken
	// Repeated are copies that came again, and the log has called that in doubt.
	Repeated []Finding
	// Orphans are files that no message needs any more.
	Orphans []string
}

// Finding is what is wrong with one try.
type Finding struct {
	Try   Try
	Where string // the copies arrive, or should; "" if that is not the point
	Text  string
}

func (f Finding) String() string { return f.Try.String() + ": " + f.Text }

// Bad reports whether a promise is broken.
func (a *Audit) Bad() bool {
	return len(a.Lost)+len(a.Duplicated)+len(a.Torn)+len(a.Unwanted)+len(a.Denied)+len(a.Orphans) > 0
}

func (a *Audit) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d tries, %d accepted, %d refused, %d without answer; %d copies arrived; lost %d, duplicated %d, torn %d, refused and yet here %d, denied %d, orphans %d; in doubt and repeated %d\n",
		a.Tries, a.Accepted, a.Refused, a.Unsure, a.Copies,
		len(a.Lost), len(a.Duplicated), len(a.Torn), len(a.Unwanted), len(a.Denied), len(a.Orphans), len(a.Repeated))
	for name, list := range map[string][]Finding{"lost": a.Lost, "duplicated": a.Duplicated, "torn": a.Torn, "refused and yet here": a.Unwanted, "denied": a.Denied} {
		for _, f := range list[:min(len(list), fewFindings)] {
			fmt.Fprintf(&b, "%s: %v\n", name, f)
		}
	}
	for _, o := range a.Orphans {
		fmt.Fprintf(&b, "orphan: %s\n", o)
	}
	return b.String()
}

// fewFindings is how many of each sort are printed.
const fewFindings = 5

// Destinations returns where copies of a kind arrive.
func (k Kind) Destinations() []string {
	switch k {
	case Local, Greylisted:
		return []string{"alice"}
	case Mbox:
		return []string{"box"}
	case Three:
		return []string{"alice", "box", "sink"}
	case Fail, NoUser:
		return []string{"report"}
	case Null:
		return nil
	case Mixed:
		return []string{"sink", "sink later", "report"}
	case Long:
		return []string{"sink", "sink second", "sink third"}
	}
	return []string{"sink"}
}

// Copy is one copy of a message that arrived.
type Copy struct {
	ID    string // spool ID of the message that brought it
	Whole bool   // it is what was sent, and nothing else
	Text  []byte
}

func (c Copy) String() string { return fmt.Sprintf("{%s whole=%v}", c.ID, c.Whole) }

// Copies are those that arrived, by token and destination.
type Copies map[string]map[string][]Copy

func (a Copies) add(token, where string, c Copy) {
	if a[token] == nil {
		a[token] = map[string][]Copy{}
	}
	a[token][where] = append(a[token][where], c)
}

// Audit compares what was accepted with what arrived. The system must have drained;
// its log shows which deliveries were in doubt.
func (l *Load) Audit() (*Audit, error) {
	found, err := l.Copies(l.Sink.Messages())
	if err != nil {
		return nil, err
	}
	a := &Audit{}
	doubts := Doubts(l.Suite.Events())
	for _, t := range l.Tries() {
		a.judge(t, found[t.Token], doubts)
	}
	a.early(l)
	a.Orphans, err = l.orphans()
	return a, err
}

// judge compares one try with its copies.
func (a *Audit) judge(t Try, got map[string][]Copy, doubts map[string]int) {
	a.Tries++
	add := func(list *[]Finding, where, format string, args ...any) {
		*list = append(*list, Finding{t, where, fmt.Sprintf(format, args...)})
	}
	switch t.Fate {
	case Accepted:
		a.Accepted++
	case Refused:
		a.Refused++
	case Denied:
		add(&a.Denied, "", "a fault of the system is not the sender's")
	default:
		a.Unsure++
	}
	for where, copies := range got {
		a.Copies += len(copies)
		if !slices.Contains(t.Kind.Destinations(), where) {
			add(&a.Unwanted, where, "a copy arrived at %s", where)
		}
	}
	for _, where := range t.Kind.Destinations() {
		copies := got[where]
		switch {
		case len(copies) == 0 && t.Fate == Accepted:
			add(&a.Lost, where, "no copy arrived at %s", where)
		case len(copies) > 0 && (t.Fate == Refused || t.Fate == Denied):
			add(&a.Unwanted, where, "a copy arrived at %s", where)
		}
		for _, c := range copies {
			if !c.Whole {
				add(&a.Torn, where, "the copy %s at %s is not whole", c.ID, where)
			}
		}
		if len(copies) > 1 {
			explained := 0
			for id := range ids(copies) {
				explained += doubts[id]
			}
			list := &a.Duplicated
			if len(copies)-1 <= explained {
				list = &a.Repeated
			}
			add(list, where, "%d copies at %s, %v, %d in doubt", len(copies), where, copies, explained)
		}
	}
}

func ids(copies []Copy) map[string]bool {
	m := map[string]bool{}
	for _, c := range copies {
		m[c.ID] = true
	}
	return m
}

// Doubts counts, by spool ID, the deliveries that a log calls in doubt.
func Doubts(events []suite.Event) map[string]int {
	m := map[string]int{}
	for _, e := range events {
		if e.Word == "in-doubt" {
			m[e.Get("id")]++
		}
	}
	return m
}

// Copies reads every place where copies arrive: what the sink was given, as the caller
// has it, the Maildirs and the mbox file.
func (l *Load) Copies(sunk []*peer.Message) (Copies, error) {
	found := Copies{}
	for _, m := range sunk {
		for _, r := range m.Recipients {
			where := "sink"
			switch first, _, _ := strings.Cut(r, "."); first {
			case mixedLater:
				where = "sink later"
			case longSecond:
				where = "sink second"
			case longThird:
				where = "sink third"
			}
			l.take(found, where, bytes.ReplaceAll(m.Data, []byte("\r\n"), []byte("\n")))
		}
	}
	alice, err := suite.Mail(l.Suite.Maildir("alice"))
	if err != nil {
		return nil, err
	}
	for _, m := range alice {
		l.take(found, "alice", m)
	}
	box, err := os.ReadFile(l.Box())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, m := range split(box) {
		l.take(found, "box", m)
	}
	bob, err := suite.Mail(l.Suite.Maildir("bob"))
	if err != nil {
		return nil, err
	}
	for _, m := range bob {
		l.report(found, m)
	}
	return found, nil
}

// Patterns for what is looked for in copies.
var (
	tokenField = regexp.MustCompile(`(?m)^X-Load: (t\d+t)$`)
	anyToken   = regexp.MustCompile(`\bt\d{6}t\b`)
	spoolID    = regexp.MustCompile(`(?m)^\tid (S\d+A\w+);`)
	failed     = regexp.MustCompile(`(?m)^Final-Recipient: rfc822; ?[\w-]+\.(t\d+t)@`)
)

func group(re *regexp.Regexp, text []byte) string {
	if m := re.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// Tokens returns the messages that a text names.
func Tokens(text []byte) (list []string) {
	for _, found := range anyToken.FindAll(text, -1) {
		list = append(list, string(found))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Alone reports whether a text names no other message than one, and has no zeros.
func Alone(text []byte, token string) bool {
	for _, found := range anyToken.FindAll(text, -1) {
		if string(found) != token {
			return false
		}
	}
	return !bytes.ContainsRune(text, 0)
}

// Ended reports whether a message file holds a message of the load to its end.
func (l *Load) Ended(text []byte) bool {
	token := group(tokenField, text)
	return token != "" && bytes.HasSuffix(text, []byte("\nend "+token+"\n"))
}

// take notes a copy. What has no token is no message of the load, and stands under "".
func (l *Load) take(found Copies, where string, text []byte) {
	token := group(tokenField, text)
	_, body, _ := bytes.Cut(text, []byte("\n\n"))
	if where == "box" {
		// The format of the file: such lines are quoted, and an empty line ends a message.
		body = bytes.Replace(body, []byte("\n>From "), []byte("\nFrom "), 1)
		body = bytes.TrimSuffix(body, []byte("\n"))
	}
	found.add(token, where, Copy{group(spoolID, text), string(body) == l.body(token) && Alone(text, token), text})
}

// report notes the recipients of a failure report.
func (l *Load) report(found Copies, text []byte) {
	list := failed.FindAllSubmatch(text, -1)
	ended := bytes.HasSuffix(bytes.TrimRight(text, "\n"), []byte("--")) // the last boundary
	for _, m := range list {
		token := string(m[1])
		found.add(token, "report", Copy{group(spoolID, text), ended && Alone(text, token), text})
	}
	if len(list) == 0 {
		l.take(found, "bob", text)
	}
}

// split cuts an mbox file into its messages.
func split(box []byte) [][]byte {
	var list [][]byte
	for len(box) > 0 {
		end := bytes.Index(box[1:], []byte("\n\nFrom "))
		if end < 0 {
			return append(list, box)
		}
		list = append(list, box[:end+3])
		box = box[end+3:]
	}
	return list
}

// orphans returns the files that no message needs any more, in the postoffice and in the
// stores.
func (l *Load) orphans() ([]string, error) {
	left, err := l.Suite.Left()
	for _, pattern := range []string{
		filepath.Join(l.Suite.Maildir("*"), "tmp", "*"), l.Box() + ".*",
	} {
		names, gerr := filepath.Glob(pattern)
		err = errors.Join(err, gerr)
		left = append(left, names...)
	}
	return left, err
}
