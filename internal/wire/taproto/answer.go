package taproto

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// AppendLine appends l's line, newline included. A newline in a text is written as
// CR; TAB and newline in a NOTARY become blanks.
func AppendLine(b []byte, l *Line) []byte {
	switch l.Kind {
	case LineHungry:
		b = append(b, hungry...)
	case LineResync:
		b = append(b, resync...)
		b = appendMapped(b, l.Name, "\t\n", ' ')
		if l.Host != "" {
			b = append(b, '\t')
			b = appendMapped(b, l.Host, "\n", ' ')
		}
	case LineSlots:
		b = append(b, slots...)
		b = strconv.AppendInt(b, int64(max(l.Slots, 0)), 10)
	case LineAnswer:
		b = appendAnswer(b, &l.Answer)
	default:
		b = append(b, "# "...)
		b = appendMapped(b, l.Text, "\n", '\r')
	}
	return append(b, '\n')
}

func appendAnswer(b []byte, a *Answer) []byte {
	b = strconv.AppendUint(b, a.Number, 10)
	b = append(b, '/')
	b = strconv.AppendInt(b, max(a.Offset, 0), 10)
	b = append(b, '\t')
	b = appendMapped(b, a.Notary, "\t\n", ' ')
	b = append(b, '\t')
	word := a.Word
	if !known(string(word)) {
		word = Deferred
	}
	b = append(b, word...)
	if word == RetryAt {
		b = append(b, ' ')
		if a.Relative {
			b = append(b, '+')
			b = strconv.AppendInt(b, wholeSeconds(a.After), 10)
		} else {
			b = strconv.AppendInt(b, max(a.At.Unix(), 0), 10)
		}
	}
	if a.Text != "" {
		b = append(b, ' ')
		b = appendMapped(b, a.Text, "\n", '\r')
	}
	return b
}

// maxSeconds is the longest relative time that a time.Duration holds.
const maxSeconds = int64((1<<63 - 1) / time.Second)

// wholeSeconds rounds up: never before the time that was asked for.
func wholeSeconds(d time.Duration) int64 {
	s := int64(max(d, 0) / time.Second)
	if d > 0 && d%time.Second > 0 {
		s++
	}
	return min(s, maxSeconds)
}

// ParseLine reads a line without its newline. What it cannot read is a comment; an
// answer whose status word is not known, or whose retryat has no time, is an answer
// that defers.
func ParseLine(line []byte) Line {
	switch {
	case len(line) == 0:
		return Line{}
	case line[0] != '#':
		if a, ok := parseAnswer(line); ok {
			return Line{Kind: LineAnswer, Answer: a}
		}
		return Line{Text: newlines(line)}
	case string(line) == hungry:
		return Line{Kind: LineHungry}
	}
	if job, ok := bytes.CutPrefix(line, []byte(resync)); ok && len(job) > 0 && job[0] != '\t' {
		name, host, _ := bytes.Cut(job, []byte{'\t'})
		return Line{Kind: LineResync, Name: string(name), Host: string(host)}
	}
	if count, ok := bytes.CutPrefix(line, []byte(slots)); ok {
		if n, ok := digits(count, 9); ok {
			return Line{Kind: LineSlots, Slots: int(n)}
		}
	}
	return Line{Text: newlines(bytes.TrimPrefix(line[1:], []byte{' '}))}
}

func parseAnswer(line []byte) (a Answer, ok bool) {
	recipient, rest, tab := bytes.Cut(line, []byte{'\t'})
	notary, said, tab2 := bytes.Cut(rest, []byte{'\t'})
	number, offset, slash := bytes.Cut(recipient, []byte{'/'})
	if !tab || !tab2 || !slash {
		return a, false
	}
	if a.Number, ok = digits(number, 20); !ok {
		return a, false
	}
	off, ok := digits(offset, 18)
	if !ok {
		return a, false
	}
	a.Offset = int64(off)
	a.Notary = string(notary)
	word, text, _ := bytes.Cut(said, []byte{' '})
	switch a.Word = wordOf(word); a.Word {
	case "":
		// An unknown outcome is a temporary one.
		a.Word, text = Deferred, said
	case RetryAt:
		text = a.retryAt(text)
	}
	a.Text = newlines(text)
	return a, true
}

// retryAt reads "[+]SECONDS text" and returns the text.
func (a *Answer) retryAt(v []byte) []byte {
	when, text, _ := bytes.Cut(v, []byte{' '})
	seconds, relative := bytes.CutPrefix(when, []byte{'+'})
	n, ok := digits(seconds, 11)
	if relative && n > uint64(maxSeconds) {
		ok = false
	}
	switch {
	case !ok:
		a.Word = DeferAll
		return v
	case relative:
		a.Relative, a.After = true, time.Duration(n)*time.Second
	default:
		a.At = time.Unix(int64(n), 0)
	}
	return text
}

// wordOf returns the status word, "" if it is not known. It does not allocate.
func wordOf(v []byte) Word {
	switch string(v) {
	case string(OK):
		return OK
	case string(OK2):
		return OK2
	case string(OK3):
		return OK3
	case string(Error):
		return Error
	case string(Error2):
		return Error2
	case string(Deferred):
		return Deferred
	case string(DeferAll):
		return DeferAll
	case string(RetryAt):
		return RetryAt
	}
	return ""
}

func known(s string) bool { return wordOf([]byte(s)) != "" }

// digits reads a decimal number of at most so many digits, nothing else.
func digits(v []byte, most int) (uint64, bool) {
	if len(v) == 0 || len(v) > most {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(v), 10, 64)
	return n, err == nil
}

// newlines is v with its newlines, which are CR on the line.
func newlines(v []byte) string {
	if bytes.IndexByte(v, '\r') < 0 {
		return string(v)
	}
	var s strings.Builder
	s.Grow(len(v))
	for _, c := range v {
		if c == '\r' {
			c = '\n'
		}
		s.WriteByte(c)
	}
	return s.String()
}
