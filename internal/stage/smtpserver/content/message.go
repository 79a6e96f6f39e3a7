package content

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/wire/milter"
)

// Message is a spooled message that checks read and filters may change, before it is written
// to its message file.
type Message struct {
	From string // the sender, for the log

	// fields are the header, after split as far as it is one: up to the first line that is
	// neither a field nor goes on with one.
	fields []envelope.Field
	// loose are the lines from there to the end of the header, with the empty line. Filters
	// get them as the beginning of the body, so that nothing is hidden from them.
	loose []byte
	// blank: an empty line follows the fields.
	blank bool
	// above is how many of the first fields go above our Received field.
	above int

	body *Spool
	from int64 // where the body begins in it

	original  *Spool // as it came
	originals []envelope.Field

	replaced *Spool // the latest new body
	// Changes counts the changes of filters; ChangedBy are their names.
	Changes   int
	ChangedBy []string
}

// NewMessage reads the header of a content. ErrHeader means that it is too long.
func NewMessage(h *Spool) (*Message, error) {
	head, err := h.header()
	if err != nil {
		return nil, err
	}
	l := &Message{fields: head.fields, blank: head.empty, body: h, from: head.length, original: h, originals: slices.Clone(head.fields)}
	if len(l.fields) > 0 && isFolding(l.fields[0].Raw[0]) {
		// A field put on top would continue in this line. An empty line between them makes
		// all of it a body.
		l.fields, l.blank, l.from = nil, true, 0
	}
	if len(l.fields) > 0 && isMbox(l.fields[0]) {
		// An mbox file's line before a message makes no body of what follows.
		l.fields[0] = envelope.Field{Name: mboxName, Raw: append([]byte(mboxName+": "), l.fields[0].Raw...)}
	}
	return l, nil
}

func isFolding(b byte) bool { return b == ' ' || b == '\t' }

// split leaves in fields only what a filter takes for a header: the rest becomes loose.
func (l *Message) split() {
	end := slices.IndexFunc(l.fields, func(f envelope.Field) bool { return f.Name == "" })
	if end < 0 {
		return
	}
	for _, f := range l.fields[end:] {
		l.loose = append(l.loose, f.Raw...)
	}
	if l.blank {
		l.loose = append(l.loose, '\n')
	}
	l.fields, l.blank = l.fields[:end:end], false
}

// mboxName is the field that Postfix, too, makes of an mbox file's line.
const mboxName = "X-Mailbox-Line"

// isMbox reports whether a line is the one that an mbox file begins a message with.
func isMbox(f envelope.Field) bool {
	return f.Name == "" && (bytes.HasPrefix(f.Raw, []byte("From ")) || bytes.HasPrefix(f.Raw, []byte(">From ")))
}

// content returns the body as filters see it.
func (l *Message) content() (io.Reader, error) {
	r, err := l.body.From(l.from)
	if err != nil {
		return nil, err
	}
	return io.MultiReader(bytes.NewReader(l.loose), r), nil
}

// Original returns the fields and the whole of the message as it came.
func (l *Message) Original() ([]envelope.Field, func() (io.Reader, error)) {
	return l.originals, func() (io.Reader, error) { return l.original.From(0) }
}

// Fields returns those of the message now.
func (l *Message) Fields() []envelope.Field { return l.fields }

// Put puts a field on top.
func (l *Message) Put(f envelope.Field) { l.insert(0, f) }

// Prepend puts a field above our Received field, below those that are there.
func (l *Message) Prepend(f envelope.Field) {
	l.insert(l.above, f)
	l.above++
}

// Above returns how many of the first fields are to go above our Received field.
func (l *Message) Above() int { return l.above }

// Release frees a body that a filter has made.
func (l *Message) Release(release func(*Spool)) {
	if l.replaced != nil {
		release(l.replaced)
	}
}

// Drop removes fields and returns their number.
func (l *Message) Drop(unwanted func(envelope.Field) bool) (n int) {
	before := len(l.fields)
	l.fields = slices.DeleteFunc(slices.Clone(l.fields), unwanted)
	return before - len(l.fields)
}

// insert puts a field before number i, at the end if there are not so many.
func (l *Message) insert(i int, f envelope.Field) {
	l.fields = slices.Insert(l.fields, min(max(i, 0), len(l.fields)), f)
}

// replace makes another body that of the message.
func (l *Message) replace(body *Spool) (old *Spool) {
	if len(l.loose) > 0 {
		l.loose, l.blank = nil, true
	}
	old = l.replaced
	l.body, l.from, l.replaced = body, 0, body
	l.blank = l.blank || body.Size() > 0
	return old
}

// Edit has edit write the body anew to fresh, from the content as it came, and from then on takes
// what it has written for the body. whole: all of the content is the body.
func (l *Message) Edit(fresh *Spool, edit func(content io.Reader, whole bool) error) error {
	r, err := l.original.From(0)
	if err != nil {
		return err
	}
	if err := edit(r, l.from == 0); err != nil {
		return err
	}
	l.replace(fresh)
	return nil
}

// Write writes header and body.
func (l *Message) Write(w io.Writer) error {
	line := true // the next byte begins a line
	put := func(b []byte) error {
		if len(b) == 0 {
			return nil
		}
		if !line {
			if _, err := w.Write([]byte{'\n'}); err != nil {
				return err
			}
		}
		line = b[len(b)-1] == '\n'
		_, err := w.Write(b)
		return err
	}
	for _, f := range l.fields {
		if err := put(f.Raw); err != nil {
			return err
		}
	}
	if l.blank {
		if err := put([]byte{'\n'}); err != nil {
			return err
		}
	}
	// Only the last line can be without a line end.
	if _, err := w.Write(l.loose); err != nil {
		return err
	}
	return l.body.CopyTo(w, l.from)
}

// errChange is a change that cannot be made.
var errChange = errors.New("impossible change")

// change makes one that concerns the header.
func (l *Message) change(c milter.Change) error {
	if !isFieldName(c.Name) {
		return fmt.Errorf("%w: %.100q is not a field name", errChange, c.Name)
	}
	f := envelope.Field{Name: c.Name, Raw: fieldLines(c.Name, c.Value)}
	switch c.Kind {
	case milter.AddField:
		l.fields = append(l.fields, f)
	case milter.InsertField:
		if c.Index <= l.above {
			l.insert(c.Index, f)
			l.above++
		} else {
			l.insert(c.Index-1, f) // our Received field, which the router adds, stands between
		}
	case milter.ChangeField:
		l.changeField(max(c.Index, 1), c.Value != "", f)
	}
	return nil
}

// changeField replaces the n-th field of f's name by f, or removes it; without such a field,
// f is added.
func (l *Message) changeField(n int, keep bool, f envelope.Field) {
	for i := range l.fields {
		if !strings.EqualFold(l.fields[i].Name, f.Name) {
			continue
		}
		if n--; n > 0 {
			continue
		}
		if keep {
			l.fields[i] = f
		} else {
			l.fields = slices.Delete(l.fields, i, i+1)
			if i < l.above {
				l.above--
			}
		}
		return
	}
	if keep {
		l.fields = append(l.fields, f)
	}
}

// maxFieldName is the longest name of a field that fits a line.
const maxFieldName = 200

// isFieldName is RFC 5322 §3.6.8's ftext.
func isFieldName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == ':' {
			return false
		}
	}
	return s != "" && len(s) <= maxFieldName
}

// fieldLines returns a field with its line end. A line of the value that is no continuation
// would be a field of its own, so it gets a tab; an empty one would end the header.
func fieldLines(name, value string) []byte {
	value = strings.NewReplacer("\r", "", "\x00", "?").Replace(value)
	b := append([]byte(name), ':')
	for i, line := range strings.Split(value, "\n") {
		begin := 0
		if i > 0 {
			if strings.Trim(line, " \t") == "" {
				continue
			}
			b = append(b, '\n')
			begin = len(b)
			if !isFolding(line[0]) {
				b = append(b, '\t')
			}
		}
		b = appendFolded(b, begin, line)
	}
	return append(b, '\n')
}

// maxLine is the longest line of a message without its line end (RFC 5322 section 2.1.1).
// Bytes.
const maxLine = 998

// appendFolded appends a line to what begins at b[begin]. One that becomes longer than maxLine
// is folded before its last blank that fits, or anywhere if it has none, as Postfix does
// (smtp_line_length_limit).
func appendFolded(b []byte, begin int, line string) []byte {
	for len(b)-begin+len(line) > maxLine {
		fits := maxLine - (len(b) - begin)
		cut := strings.LastIndexAny(line[:fits+1], " \t")
		// A line must not be of blanks alone: some programs end the header there.
		if cut < 0 || strings.Trim(line[:cut], " \t") == "" && begin > 0 || strings.Trim(line[cut:], " \t") == "" {
			cut = fits
			for cut > fits-utf8.UTFMax && !utf8.RuneStart(line[cut]) {
				cut--
			}
		}
		b = append(append(b, line[:cut]...), '\n')
		begin = len(b)
		if line = line[cut:]; !isFolding(line[0]) {
			b = append(b, ' ')
		}
	}
	return append(b, line...)
}

// lineWriter turns CRLF into LF, in pieces of any size.
type lineWriter struct {
	w     io.Writer
	limit int64 // bytes; 0: none
	n     int64
	used  bool
	cr    bool
}

var errNewBody = errors.New("the filter's new body is larger than MAXSIZE")

func (l *lineWriter) Write(b []byte) (int, error) {
	l.used = true
	if l.n += int64(len(b)); l.limit > 0 && l.n > l.limit {
		return 0, errNewBody
	}
	out := make([]byte, 0, len(b)+1)
	for _, ch := range b {
		if l.cr && ch != '\n' {
			out = append(out, '\r')
		}
		if l.cr = ch == '\r'; !l.cr {
			out = append(out, ch)
		}
	}
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// flush writes a CR that nothing followed.
func (l *lineWriter) flush() error {
	if !l.cr {
		return nil
	}
	l.cr = false
	_, err := l.w.Write([]byte{'\r'})
	return err
}
