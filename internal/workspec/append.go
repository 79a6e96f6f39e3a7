package workspec

import (
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/human"
)

// AppendDiagnostic appends d's line to b. A line end in Text is written as CR, one
// in a Notary value as a blank.
func AppendDiagnostic(b []byte, d *Diagnostic) []byte {
	tag := byte(' ')
	if d.Reported {
		tag = byte(TagOK)
	}
	b = append(b, 'd', tag)
	for _, n := range [...]int64{d.Recipient, d.HeaderOffset, d.NotaryOffset} {
		b = append(strconv.AppendInt(b, max(n, None), 10), ':')
	}
	b = append(b, ':')
	b = strconv.AppendInt(b, unix(d.Time, time.Time.Unix), 10)
	b = append(b, '\t')
	b = appendNotary(b, &d.Notary)
	b = append(b, '\t')
	b = appendText(b, d.Text)
	return append(b, '\n')
}

// AppendEvent appends e's line to b. A line end in Text is written as CR; blanks and
// control characters in Event and in attributes become "_". Text that would read
// as an attribute, or starts with a blank, is set off by a second blank.
func AppendEvent(b []byte, e *Event) []byte {
	b = append(b, "h "...)
	b = strconv.AppendInt(b, unix(e.Time, time.Time.UnixMilli), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, max(e.Recipient, 0), 10)
	b = append(b, ' ')
	b = appendWord(b, e.Event, false)
	for _, a := range e.Attrs {
		b = append(b, ' ')
		b = appendWord(b, a.Key, true)
		b = append(b, '=')
		if a.Value != "" {
			b = appendWord(b, a.Value, false)
		}
	}
	if e.Text != "" {
		b = append(b, ' ')
		if startsLikeAttr(e.Text) {
			b = append(b, ' ')
		}
		b = appendText(b, e.Text)
	}
	return append(b, '\n')
}

// unix is t in the given unit, never negative: the zero time is 0.
func unix(t time.Time, in func(time.Time) int64) int64 { return max(in(t), 0) }

// canceled, CAN, ends a d or h line that was torn: the next writer puts it there
// (postoffice.Spec.Append).
const canceled = 0x18

// appendText appends text, the end of a line, with CR for each newline.
func appendText(b []byte, text string) []byte {
	start := len(b)
	b = append(b, text...)
	for i := start; i < len(b); i++ {
		if b[i] == '\n' {
			b[i] = '\r'
		}
	}
	if len(b) > start && b[len(b)-1] == canceled {
		b[len(b)-1] = '?'
	}
	return b
}

// appendWord appends s as one word, "-" if it is empty.
func appendWord(b []byte, s string, key bool) []byte {
	if s == "" {
		return append(b, '-')
	}
	start := len(b)
	b = append(b, s...)
	for i := start; i < len(b); i++ {
		if b[i] == ' ' || human.IsControl(b[i]) || key && b[i] == '=' {
			b[i] = '_'
		}
	}
	return b
}

// startsLikeAttr tells text that a reader would take for another attribute.
func startsLikeAttr(text string) bool {
	word, _, _ := strings.Cut(text, " ")
	return word == "" || strings.IndexByte(word, '=') > 0
}
