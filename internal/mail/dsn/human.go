package dsn

import (
	"strings"
	"time"
	"unicode/utf8"

	"zmailer/internal/mail/status"
)

// maxShown is how many recipients the human part names, and maxSaid how many lines
// of an answer it repeats; the part for programs has them all.
const (
	maxShown = 100
	maxSaid  = 60
)

// page is what a template has to speak of. All strings are without control
// characters and line ends.
type page struct {
	Host     string  // that reports
	ID       string  // spool ID of the message; "" if it has none
	Arrival  *moment // nil: unknown
	Action   string  // the worst
	Returned string  // message, header, or "" for nothing
	Groups   []group // recipients by action, the worst first
	Hidden   int     // recipients that are not in Groups, because there are too many
}

// group is the recipients of one action.
type group struct {
	Action     string
	Recipients []entry
}

// entry is one recipient.
type entry struct {
	Address  string
	Original string // the address that the sender had written, if it is another
	Remote   string // host that answered
	Said     []string
	Status   string
	Until    *moment // of a delay: when it is given up; nil: unknown
	Advice   string  // of a failure: a word for what can be done, see advice
}

// names returns the fields and methods that a template may name.
func names() []string {
	return []string{"Host", "ID", "Arrival", "Action", "Returned", "Groups", "Hidden", "Recipients",
		"Address", "Original", "Remote", "Said", "Status", "Until", "Advice", "Format"}
}

// moment is a time as templates print it.
type moment struct{ at time.Time }

// String is RFC 5322 §3.3's form.
func (m *moment) String() string { return m.at.Format(dateFormat) }

// Format has Go's layouts: {{.Arrival.Format "02.01.2006 15:04"}}.
func (m *moment) Format(layout string) string { return m.at.Format(layout) }

func at(t time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	return &moment{t}
}

// page returns what the report's template gets.
func (r *Report) page() *page {
	p := &page{Host: text(r.ReportingMTA, true), ID: text(r.SpoolID, true), Arrival: at(r.Arrival), Action: string(r.worst())}
	switch {
	case r.Original != nil && r.Full:
		p.Returned = "message"
	case r.Original != nil:
		p.Returned = "header"
	}
	shown := 0
	for _, a := range actions() {
		g := group{Action: string(a)}
		for i := range r.Recipients {
			switch one := &r.Recipients[i]; {
			case one.Action != a:
			case shown == maxShown:
				p.Hidden++
			default:
				shown++
				g.Recipients = append(g.Recipients, one.entry())
			}
		}
		if len(g.Recipients) > 0 {
			p.Groups = append(p.Groups, g)
		}
	}
	return p
}

func (p *Recipient) entry() entry {
	e := entry{Address: text(p.Final, true), Said: said(p.Text), Status: p.status()}
	if _, addr, _ := strings.Cut(unembed(p.Original), ";"); addr != "" && !strings.EqualFold(strings.TrimSpace(addr), p.Final) {
		e.Original = text(addr, true)
	}
	_, host, _ := strings.Cut(p.Remote, ";")
	e.Remote = text(host, true)
	switch p.Action {
	case Delayed:
		e.Until = at(p.WillRetryUntil)
	case Failed:
		e.Advice = advice(e.Status)
		if e.Status[0] == '4' {
			e.Advice = "expired" // RFC 3464 §2.3.4: a persistent transient failure
		}
	}
	return e
}

// said returns the lines of a foreign text, bounded.
func said(s string) []string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "\n..."
	}
	var list []string
	for line := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if len(list) == maxSaid {
			return append(list, "...")
		}
		if line = text(line, true); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// words returns the report's subject and text, in the language that was asked for if
// there are texts in it, and the language that they are in. A text that fails gives
// way to a built-in one: no report is lost for its words.
func (r *Report) words() (subject, body, language string, err error) {
	p, kind := r.page(), kindOf(r.worst())
	if r.Texts != nil {
		if tmpl, l := r.Texts.find(r.Language, kind); tmpl != nil {
			out, err := render(tmpl, p)
			if err == nil {
				subject, body = layout(out)
				return subject, body, l, nil
			}
			if r.Trouble != nil {
				r.Trouble(l, kind, textError(err))
			}
		}
	}
	own, err := BuiltIn()
	if err != nil {
		return "", "", "", err
	}
	tmpl, l := own.find(r.Language, kind)
	out, err := render(tmpl, p)
	if err != nil {
		return "", "", "", err
	}
	subject, body = layout(out)
	return subject, body, l, nil
}

// maxSubject bounds a subject with a template's values. Bytes.
const maxSubject = 300

// layout parts a rendered text into subject and body: lines that are too long are
// broken at blanks and keep their indentation, several empty lines become one.
func layout(s string) (subject, body string) {
	first, rest, _ := strings.Cut(s, "\n")
	_, subject, _ = strings.Cut(first, ":")
	subject = text(subject, true)
	if len(subject) > maxSubject {
		subject = strings.ToValidUTF8(subject[:maxSubject], "")
	}
	var b strings.Builder
	empty := true // none at the start
	for line := range strings.Lines(rest) {
		words := text(line, true)
		if words == "" {
			if !empty {
				b.WriteByte('\n')
			}
			empty = true
			continue
		}
		empty = false
		indent := len(line) - len(strings.TrimLeft(line, " "))
		paragraph(&b, strings.Repeat(" ", min(indent, 20)), words)
	}
	return subject, b.String()
}

// paragraph breaks a text at blanks into indented lines of about 72 characters.
func paragraph(b *strings.Builder, indent, s string) {
	width := 0
	for word := range strings.FieldsSeq(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case width == 0:
			b.WriteString(indent)
			width = len(indent)
		case width+1+n > 72:
			b.WriteString("\n" + indent)
			width = len(indent)
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += n
	}
	b.WriteByte('\n')
}

// advice returns a word for what a status means (RFC 3463 §3); templates turn it into
// what the sender can do.
func advice(code string) string {
	c, _ := status.Parse(code)
	switch [2]uint16{c.Subject, c.Detail} {
	case [2]uint16{1, 1}, [2]uint16{1, 0}, [2]uint16{1, 6}:
		return "mailbox"
	case [2]uint16{1, 2}, [2]uint16{1, 10}:
		return "domain"
	case [2]uint16{1, 3}:
		return "address"
	case [2]uint16{2, 1}:
		return "closed"
	case [2]uint16{2, 2}:
		return "full"
	case [2]uint16{2, 3}, [2]uint16{3, 4}:
		return "size"
	case [2]uint16{4, 6}:
		return "circle"
	case [2]uint16{4, 1}, [2]uint16{4, 2}, [2]uint16{4, 3}, [2]uint16{4, 4}:
		return "unreachable"
	case [2]uint16{4, 7}:
		return "expired"
	}
	switch c.Subject {
	case 5:
		return "protocol"
	case 6:
		return "content"
	case 7:
		return "refused"
	}
	return "unknown"
}

// samples returns what a template is tried with: everything set, and next to nothing.
func samples() []*page {
	now := &moment{time.Unix(1_800_000_000, 0).UTC()}
	full := &page{Host: "mx.example.org", ID: "S1", Arrival: now, Action: "failed", Returned: "message", Hidden: 3}
	codes := []string{"5.1.1", "5.1.2", "5.1.3", "5.2.1", "5.2.2", "5.2.3", "5.4.6", "5.4.4", "4.4.7", "5.5.0", "5.6.0", "5.7.1", "5.0.0"}
	for _, a := range actions() {
		g := group{Action: string(a)}
		for _, code := range codes {
			g.Recipients = append(g.Recipients, entry{Address: "ann@b.example", Original: "list@a.example", Remote: "mx.b.example",
				Said: []string{"550 no"}, Status: code, Until: now, Advice: advice(code)})
		}
		full.Groups = append(full.Groups, g)
	}
	list := []*page{full, {Host: "mx", Action: "delivered"}}
	for _, a := range actions() {
		list = append(list, &page{Host: "mx", Action: string(a), Returned: "header", Groups: []group{{Action: string(a), Recipients: []entry{{Address: "a@b"}}}}})
	}
	return list
}
