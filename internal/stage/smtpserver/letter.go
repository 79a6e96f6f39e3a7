package smtpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/smtpserver/held"
	"zmailer/internal/wire/milter"
)

// letter is a message in our hands: held, looked at, perhaps changed, before it is
// written to its message file.
type letter struct {
	// fields are the header, after split as far as it is one: up to the first line that is
	// neither a field nor goes on with one.
	fields []envelope.Field
	// loose are the lines from there to the end of the header, with the empty line. For
	// filters they begin the body, so that nothing is hidden from them.
	loose []byte
	// blank: an empty line follows the fields.
	blank bool

	body *held.Content
	from int64 // where the body begins in it

	original  *held.Content // as it came
	originals []envelope.Field

	replaced *held.Content // the latest new body
	changes  int
	by       []string // who has changed it
}

// newLetter reads the header of what is held.
func newLetter(h *held.Content) (*letter, error) {
	head, err := h.Head()
	if err != nil {
		return nil, err
	}
	l := &letter{fields: head.Fields, blank: head.Empty, body: h, from: head.Length, original: h, originals: slices.Clone(head.Fields)}
	if len(l.fields) > 0 && isFolding(l.fields[0].Raw[0]) {
		// What we put on top would go on in this line. An empty line between them makes
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

// split leaves in fields only what a filter takes for a header.
func (l *letter) split() {
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

// isMbox tells the line that an mbox file begins a message with.
func isMbox(f envelope.Field) bool {
	return f.Name == "" && (bytes.HasPrefix(f.Raw, []byte("From ")) || bytes.HasPrefix(f.Raw, []byte(">From ")))
}

// content is the body as filters see it.
func (l *letter) content() (io.Reader, error) {
	r, err := l.body.From(l.from)
	if err != nil {
		return nil, err
	}
	return io.MultiReader(bytes.NewReader(l.loose), r), nil
}

// whole is the message as it came.
func (l *letter) whole() (io.Reader, error) { return l.original.From(0) }

// drop removes fields.
func (l *letter) drop(unwanted func(envelope.Field) bool) (n int) {
	before := len(l.fields)
	l.fields = slices.DeleteFunc(slices.Clone(l.fields), unwanted)
	return before - len(l.fields)
}

// insert puts a field before number i, at the end if there are not so many.
func (l *letter) insert(i int, f envelope.Field) {
	l.fields = slices.Insert(slices.Clone(l.fields), min(max(i, 0), len(l.fields)), f)
}

// replace makes another body that of the message.
func (l *letter) replace(body *held.Content) (old *held.Content) {
	if len(l.loose) > 0 {
		l.loose, l.blank = nil, true
	}
	old = l.replaced
	l.body, l.from, l.replaced = body, 0, body
	l.blank = l.blank || body.Size() > 0
	return old
}

// writeTo writes header and body.
func (l *letter) writeTo(w io.Writer) error {
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
	// A field without a line end is the last there is: nothing stands behind it.
	if _, err := w.Write(l.loose); err != nil {
		return err
	}
	return l.body.CopyTo(w, l.from)
}

// errChange is a change that cannot be made.
var errChange = errors.New("cannot be done")

// change makes one that concerns the header.
func (l *letter) change(c milter.Change) error {
	if !isFieldName(c.Name) {
		return fmt.Errorf("%w: %.100q is no field's name", errChange, c.Name)
	}
	f := envelope.Field{Name: c.Name, Raw: fieldLines(c.Name, c.Value)}
	switch c.Kind {
	case milter.AddField:
		l.fields = append(l.fields, f)
	case milter.InsertField:
		l.insert(c.Index, f)
	case milter.ChangeField:
		l.changeField(max(c.Index, 1), c.Value != "", f)
	}
	return nil
}

// changeField puts f in the place of the field number n of its name, or removes that. One
// that is not there is added.
func (l *letter) changeField(n int, keep bool, f envelope.Field) {
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

// fieldLines is a field with its line end. Lines of the value that do not go on with it
// would be fields of their own, so they begin with a tab then; empty ones would end the
// header.
func fieldLines(name, value string) []byte {
	value = strings.NewReplacer("\r", "", "\x00", "?").Replace(value)
	b := append([]byte(name), ':')
	for i, line := range strings.Split(value, "\n") {
		if i > 0 {
			if strings.Trim(line, " \t") == "" {
				continue
			}
			b = append(b, '\n')
			if !isFolding(line[0]) {
				b = append(b, '\t')
			}
		}
		b = append(b, line...)
	}
	return append(b, '\n')
}

// lineWriter makes LF of CRLF, wherever the pieces end.
type lineWriter struct {
	w     io.Writer
	limit int64 // bytes; 0: none
	n     int64
	used  bool
	cr    bool
}

var errNewBody = errors.New("the new body is larger than MAXSIZE")

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
