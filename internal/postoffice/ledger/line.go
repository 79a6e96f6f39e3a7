package ledger

import (
	"bytes"
	"strconv"

	"zmailer/internal/postoffice"
)

// Verb is what a line says.
type Verb byte

// Verbs.
const (
	None    Verb = iota
	In           // accepted: N recipients of the envelope
	Routed       // N recipients of the work specification
	Found        // on the disk and in no line: N recipients
	Moved        // the message that had the inode number From has this ID now
	Done         // ended, with End
	Gone         // left without an end: N recipients, Why
	Unknown      // not on the disk after a power loss: N recipients
	Half         // a specification without its message was removed; ID is its inode number and last write
	Told         // an operator has informed the senders of N failed recipients that no report covers
	Open         // a process writes from here on: Role, PID, Boot
	Close        // it writes no more
	Boot         // what processes of other boots left open is settled
)

// String returns the verb as a line has it.
func (v Verb) String() string {
	return [...]string{
		None: "none", In: "in", Routed: "routed", Found: "found", Moved: "moved", Done: "done", Gone: "gone",
		Unknown: "unknown", Half: "half", Told: "told", Open: "open", Close: "close", Boot: "boot",
	}[v]
}

// Line is one line of the ledger.
type Line struct {
	Time int64 // milliseconds since 1970
	Verb Verb
	ID   postoffice.SpoolID
	N    int64 // recipients
	// Entered, of Routed: whoever accepted the message enters an In line for it.
	Entered bool
	From    uint64 // of Moved: inode number
	End     Outcomes
	// Unreported, of Done: how many of End.Failed are in no report.
	Unreported int64
	Why        string // one word
	Role       string // of Open and Close
	PID        int64
	Boot       string // of Open and Boot
}

const (
	entered    = "entered"
	unreported = " unreported="
)

// Append appends the line to b.
func (l *Line) Append(b []byte) []byte {
	b = append(strconv.AppendInt(b, l.Time, 10), ' ')
	b = append(append(b, l.Verb.String()...), ' ')
	switch l.Verb {
	case Open:
		b = strconv.AppendInt(append(append(b, l.Role...), ' '), l.PID, 10)
		b = append(append(b, ' '), l.Boot...)
		return append(b, '\n')
	case Close:
		b = strconv.AppendInt(append(append(b, l.Role...), ' '), l.PID, 10)
		return append(b, '\n')
	case Boot:
		return append(append(b, l.Boot...), '\n')
	}
	b = l.ID.AppendTo(b)
	switch l.Verb {
	case In, Routed, Found, Gone, Unknown, Told:
		b = strconv.AppendInt(append(b, ' '), l.N, 10)
		if l.Entered {
			b = append(append(b, ' '), entered...)
		}
		if l.Why != "" {
			b = append(append(b, ' '), l.Why...)
		}
	case Moved:
		b = strconv.AppendUint(append(b, ' '), l.From, 10)
	case Done, Half:
		b = l.End.append(b)
		if l.Unreported > 0 {
			b = strconv.AppendInt(append(b, unreported...), l.Unreported, 10)
		}
	}
	return append(b, '\n')
}

// append appends the columns that are not zero, delivered always.
func (o *Outcomes) append(b []byte) []byte {
	for i, c := range o.columns() {
		if *c.n != 0 || i == 0 {
			b = append(append(append(b, ' '), c.key...), '=')
			b = strconv.AppendInt(b, *c.n, 10)
		}
	}
	return b
}

// ParseLine reads a line without its newline. A line that was torn has the next one
// behind it: then that is read.
func ParseLine(b []byte) (Line, bool) {
	if l, ok := parseWhole(b); ok {
		return l, true
	}
	for i := 1; i+minLine <= len(b); i++ {
		if b[i] < '0' || b[i] > '9' || b[i+timeDigits] != ' ' {
			continue
		}
		if l, ok := parseWhole(b[i:]); ok {
			return l, true
		}
	}
	return Line{}, false
}

// timeDigits is how many digits a time in milliseconds has, until the year 2286. What
// is torn inside of its time shows by that.
const timeDigits = 13

// minLine is less than any line has. Bytes.
const minLine = len("1790000000000 boot -")

// words takes a line apart at its blanks.
type words struct {
	rest []byte
	bad  bool
}

func (w *words) more() bool { return len(w.rest) > 0 }

func (w *words) next() []byte {
	word, rest, _ := bytes.Cut(w.rest, []byte{' '})
	w.rest = rest
	w.bad = w.bad || len(word) == 0
	return word
}

// number reads digits without a sign or leading zero.
func (w *words) number() int64 {
	n, ok := decimal(w.next())
	w.bad = w.bad || !ok
	return n
}

func decimal(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 || b[0] == '0' && len(b) > 1 {
		return 0, false
	}
	n := int64(0)
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = 10*n + int64(d-'0')
	}
	return n, true
}

func parseWhole(b []byte) (l Line, ok bool) {
	w := words{rest: b}
	w.bad = bytes.IndexByte(b, ' ') != timeDigits
	l.Time = w.number()
	word := w.next()
	for v := In; v <= Boot; v++ {
		if string(word) == v.String() {
			l.Verb = v
			break
		}
	}
	switch l.Verb {
	case None:
		return Line{}, false
	case Open, Close, Boot:
		l.process(&w)
	default:
		l.message(&w)
	}
	if w.bad || w.more() || len(b) > 0 && b[len(b)-1] == ' ' {
		return Line{}, false
	}
	return l, true
}

// process reads what is behind the verb of a line about a process.
func (l *Line) process(w *words) {
	if l.Verb != Boot {
		l.Role = w.text()
		l.PID = w.number()
	}
	if l.Verb != Close {
		l.Boot = w.text()
	}
}

// text reads a word that holds nothing odd.
func (w *words) text() string {
	b := w.next()
	for _, c := range b {
		if c <= ' ' || c >= 0x7f {
			w.bad = true
		}
	}
	return string(b)
}

// message reads what is behind the verb of a line about a message.
func (l *Line) message(w *words) {
	id, err := postoffice.ParseSpoolID(string(w.next()))
	w.bad = w.bad || err != nil
	l.ID = id
	switch l.Verb {
	case Moved:
		n, err := strconv.ParseUint(string(w.next()), 10, 64)
		w.bad = w.bad || err != nil
		l.From = n
	case Done, Half:
		if rest, digits, ok := bytes.Cut(w.rest, []byte(unreported)); ok && l.Verb == Done {
			l.Unreported, ok = decimal(digits)
			w.bad, w.rest = w.bad || !ok || l.Unreported == 0, rest
		}
		l.End.parse(w)
	default:
		l.N = w.number()
		if !w.more() {
			return
		}
		if word := w.text(); l.Verb == Routed && word == entered {
			l.Entered = true
		} else {
			l.Why = word
		}
	}
}

// parse reads the columns; each appears once, in order.
func (o *Outcomes) parse(w *words) {
	columns := o.columns()
	at := 0
	for first := true; first || w.more(); first = false {
		key, value, _ := bytes.Cut(w.next(), []byte{'='})
		for at < len(columns) && columns[at].key != string(key) {
			at++
		}
		n, ok := decimal(value)
		if at == len(columns) || !ok || first != (at == 0) || n == 0 && at > 0 {
			w.bad = true
			return
		}
		*columns[at].n = n
		at++
	}
}
