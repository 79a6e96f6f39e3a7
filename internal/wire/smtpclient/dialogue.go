package smtpclient

import (
	"strconv"
	"strings"
)

// Marks of the two sides in a dialogue, as ZMailer's agents write them.
const (
	weSaid   = "\n<<- "
	theySaid = "\n->> "
)

// dialogue is what was said, for the text of a diagnostic: lines parted by \n, the
// first of them empty.
type dialogue struct{ strings.Builder }

// said adds a command without its line end.
func (d *dialogue) said(command string) {
	d.WriteString(weSaid)
	d.WriteString(command)
}

// answered adds a reply, each of its lines as the server sent it.
func (d *dialogue) answered(r Reply) {
	if r.IsZero() {
		return
	}
	code := strconv.Itoa(r.Code)
	for rest := r.Text; ; {
		line, more, found := strings.Cut(rest, "\n")
		d.WriteString(theySaid)
		d.WriteString(code)
		if found {
			d.WriteByte('-')
		} else if line != "" {
			d.WriteByte(' ')
		}
		d.WriteString(line)
		if !found {
			return
		}
		rest = more
	}
}

// remark adds what neither side said.
func (d *dialogue) remark(text string) {
	d.WriteString("\n(")
	d.WriteString(text)
	d.WriteByte(')')
}

// broke adds the end of a connection.
func (d *dialogue) broke(err error) { d.remark(err.Error()) }
