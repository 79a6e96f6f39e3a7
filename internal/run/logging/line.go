package logging

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Line is one line of a log that a program of ours has written, read back.
type Line struct {
	// Time is when; of a line that tint has written the time of day in the year 0.
	Time    time.Time
	Level   slog.Level
	Event   string // the constant word
	Program string
	Fields  []Field // the others, in their order
}

// Field is a key of a line with its value as text.
type Field struct{ Key, Value string }

// ParseLine reads a line of the text, the JSON, the postfix or the tint form, with or without its
// newline. What a journal or a syslog has put before it is passed over, and the priority for
// one (<4>). False: it is none.
func ParseLine(line []byte) (Line, bool) {
	line = bytes.TrimRight(line, "\r\n")
	if i := bytes.Index(line, []byte(`{"`)); i >= 0 {
		if l, ok := parseJSON(line[i:]); ok {
			return l, true
		}
	}
	if i := bytes.Index(line, []byte("time=")); i == 0 || i > 0 && (line[i-1] == ' ' || line[i-1] == '>') {
		if l, ok := parseText(string(line[i:])); ok {
			return l, true
		}
	}
	if l, ok := parsePostfix(string(line)); ok {
		return l, true
	}
	return parseTint(string(line))
}

// Get returns a field's value, "" if there is none.
func (l *Line) Get(key string) string {
	for i := range l.Fields {
		if l.Fields[i].Key == key {
			return l.Fields[i].Value
		}
	}
	return ""
}

// Duration returns a field that holds a time, which JSON has in nanoseconds.
func (l *Line) Duration(key string) (time.Duration, bool) {
	text := l.Get(key)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Duration(n), true
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// put takes a key; the four that every line has are not among the fields.
func (l *Line) put(key, value string) (ok bool) {
	var err error
	switch key {
	case slog.TimeKey:
		l.Time, err = time.Parse(time.RFC3339Nano, value)
	case slog.LevelKey:
		err = l.Level.UnmarshalText([]byte(value))
	case slog.MessageKey:
		l.Event = value
	case "program":
		l.Program = value
	default:
		l.Fields = append(l.Fields, Field{key, value})
	}
	return err == nil
}

// whole reports whether it is a line of ours.
func (l *Line) whole() bool { return l.Event != "" && !l.Time.IsZero() }

func parseJSON(b []byte) (l Line, ok bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return Line{}, false
	}
	for d.More() {
		t, err := d.Token()
		key, is := t.(string)
		if err != nil || !is {
			return Line{}, false
		}
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return Line{}, false
		}
		value := string(raw)
		if raw[0] == '"' && json.Unmarshal(raw, &value) != nil || !l.put(key, value) {
			return Line{}, false
		}
	}
	_, err := d.Token()
	return l, err == nil && l.whole()
}

func parseText(s string) (l Line, ok bool) {
	if !l.pairs(s) {
		return Line{}, false
	}
	return l, l.whole()
}

// pairs reads key=value, with blanks between.
func (l *Line) pairs(s string) bool {
	for s = strings.TrimLeft(s, " "); s != ""; s = strings.TrimLeft(s, " ") {
		key, rest, ok := cutKey(s)
		if !ok {
			return false
		}
		value := rest
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return false
			}
			if value, err = strconv.Unquote(quoted); err != nil {
				return false
			}
			s = rest[len(quoted):]
			if s != "" && s[0] != ' ' {
				return false
			}
		} else {
			value, s, _ = strings.Cut(rest, " ")
		}
		if !l.put(key, value) {
			return false
		}
	}
	return true
}

// cutKey takes a key, which the writer quotes if it is odd.
func cutKey(s string) (key, rest string, ok bool) {
	if strings.HasPrefix(s, `"`) {
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil || !strings.HasPrefix(s[len(quoted):], "=") {
			return "", "", false
		}
		key, err = strconv.Unquote(quoted)
		return key, s[len(quoted)+1:], err == nil
	}
	key, rest, ok = strings.Cut(s, "=")
	return key, rest, ok && key != "" && !strings.ContainsRune(key, ' ')
}

// tintTime is the time of day as New has tint write it.
const tintTime = "15:04:05.000"

// parseTint reads "15:04:05.000 INF event key=value".
func parseTint(s string) (l Line, ok bool) {
	clock, rest, ok := strings.Cut(uncoloured(s), " ")
	at, err := time.Parse(tintTime, clock)
	if !ok || err != nil {
		return Line{}, false
	}
	level, rest, ok := strings.Cut(rest, " ")
	if !ok || len(level) < 3 {
		return Line{}, false
	}
	if l.Level, ok = map[string]slog.Level{"DBG": slog.LevelDebug, "INF": slog.LevelInfo, "WRN": slog.LevelWarn, "ERR": slog.LevelError}[level[:3]]; !ok {
		return Line{}, false
	}
	word, rest, _ := strings.Cut(rest, " ")
	if word == "" || strings.ContainsAny(word, "=\"") || !l.pairs(rest) {
		return Line{}, false
	}
	l.Time, l.Event = at, word
	return l, true
}

// uncoloured takes out what colours text on a terminal (ECMA-48 SGR).
func uncoloured(s string) string {
	if !strings.ContainsRune(s, '\x1b') {
		return s
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		end := strings.IndexByte(rest, 'm')
		if end < 0 {
			return b.String()
		}
		s = rest[end+1:]
	}
}
