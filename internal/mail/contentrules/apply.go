package contentrules

import (
	"path"
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
)

// FoldAt is where header lines of ours are folded (RFC 5322 section 2.1.1). Bytes.
const FoldAt = 78

// header follows the rules about a message's own header. Decisions go to o; it ends at a final
// one, unless all is for the edits.
func (r *Rules) header(fields []envelope.Field, from Origin, o *Outcome, all bool) []envelope.Field {
	added := 0 // fields on top that rules have added
	for i := range r.steps[inHeader] {
		s := &r.steps[inHeader][i]
		if !s.concerns(from) {
			continue
		}
		if s.rule != nil && s.rule.action == addField {
			fields = slices.Insert(slices.Clip(fields), added, envelope.Fields([]byte(s.rule.line))...)
			added++
			continue
		}
		kept, left := make([]envelope.Field, 0, len(fields)), 0
		for j, f := range fields {
			if out, changed := s.field(f, o); changed {
				kept = append(kept, out...)
				if j < added {
					left += len(out)
				}
			} else {
				kept = append(kept, f)
				if j < added {
					left++
				}
			}
			if o.final() && !all {
				return fields
			}
		}
		fields, added = kept, left
	}
	return fields
}

// field returns what a step makes of a field of the message's own header.
func (s *step) field(f envelope.Field, o *Outcome) (out []envelope.Field, changed bool) {
	if f.Name == "" {
		return nil, false
	}
	if s.rule != nil {
		return s.rule.field(f, o)
	}
	if !s.only.has(f.Name) {
		return nil, false
	}
	text := string(f.Raw)
	text = strings.TrimSuffix(text, "\n")
	e, expand := first(s.table, text)
	if e == nil {
		return nil, false
	}
	if !e.action.edits() {
		o.take(e.action, e.decision(expand, text))
		return nil, false
	}
	if isTrace(f.Name) && e.action != prependField {
		return nil, false
	}
	switch e.action {
	case removeField:
		return nil, true
	case replaceLine:
		if line := tableField(expand(), inHeader); line != nil {
			return envelope.Fields(line), true
		}
	case prependField:
		if line := tableField(expand(), inHeader); line != nil {
			return append(envelope.Fields(line), f), true
		}
	}
	return nil, false
}

// field is step.field for a rule of our own form.
func (r *Rule) field(f envelope.Field, o *Outcome) (out []envelope.Field, changed bool) {
	if r.action.edits() && isTrace(f.Name) {
		return nil, false
	}
	value, ok := r.fits(f)
	switch {
	case !ok:
	case r.action == removeField:
		return nil, true
	case r.action == replaceField:
		raw := appendField(nil, f.Name, r.pattern.ReplaceAll([]byte(value), r.text))
		return []envelope.Field{{Name: f.Name, Raw: raw}}, true
	default:
		o.take(r.action, r.decision(value, f.Name+": "+value))
	}
	return nil, false
}

// fits reports whether a rule is about a field, and returns its value.
func (r *Rule) fits(f envelope.Field) (string, bool) {
	if ok, err := path.Match(r.name, strings.ToLower(f.Name)); err != nil || !ok {
		return "", false
	}
	value := f.Value()
	return value, r.pattern == nil || r.pattern.MatchString(value)
}

func (r *Rule) decision(value, where string) Decision {
	text := string(r.text)
	if r.pattern != nil {
		if m := r.pattern.FindStringSubmatchIndex(value); m != nil {
			text = string(r.pattern.ExpandString(nil, text, value, m))
		}
	}
	return Decision{Rule: r.where, Text: oneLine(text), Where: cut(where)}
}

// part follows the rules about a field of a part's header, without its line end, or about a line of
// a body. If they change it, out is what takes its place: any number of fields or lines.
func (r *Rules) part(p place, from Origin, text string, o *Outcome) (out []string, changed bool) {
	for i := range r.steps[p] {
		s := &r.steps[p][i]
		switch {
		case o.final():
			return out, changed
		case !s.concerns(from):
		case !changed:
			out, changed = s.part(p, text, o)
		default:
			var next []string
			for _, one := range out {
				if these, again := s.part(p, one, o); again {
					next = append(next, these...)
				} else {
					next = append(next, one)
				}
			}
			out = next
		}
	}
	return out, changed
}

// part is Rules.part for one step.
func (s *step) part(p place, text string, o *Outcome) (out []string, changed bool) {
	if s.rule != nil {
		return s.rule.part(p, text, o)
	}
	if text == "" {
		return nil, false // Postfix looks up no empty line
	}
	if s.only != allFields {
		name, _, _ := strings.Cut(text, ":")
		if !s.only.has(strings.TrimRight(name, " \t")) {
			return nil, false
		}
	}
	e, expand := first(s.table, text)
	if e == nil {
		return nil, false
	}
	line := ""
	switch {
	case !e.action.edits():
		o.take(e.action, e.decision(expand, text))
		return nil, false
	case e.action == removeField:
	case p == inBody:
		if line = strings.TrimLeft(expand(), blanks); line == "" {
			return nil, false
		}
	default:
		field := tableField(expand(), p)
		if field == nil {
			return nil, false
		}
		line = string(field[:len(field)-1])
	}
	o.edit(e.where)
	switch e.action {
	case removeField:
		return nil, true
	case prependField:
		return []string{line, text}, true
	}
	return []string{line}, true
}

// part is step.part for a rule of our own form.
func (r *Rule) part(p place, text string, o *Outcome) (out []string, changed bool) {
	value, name := text, ""
	if p == inBody {
		if !r.pattern.MatchString(text) {
			return nil, false
		}
	} else {
		f := envelope.Fields([]byte(text))
		if len(f) == 0 || f[0].Name == "" {
			return nil, false
		}
		var ok bool
		if value, ok = r.fits(f[0]); !ok {
			return nil, false
		}
		name = f[0].Name
	}
	switch {
	case r.action == removeField:
	case r.action != replaceField && p == inBody:
		o.take(r.action, r.decision(text, text))
		return nil, false
	case r.action != replaceField:
		o.take(r.action, r.decision(value, name+": "+value))
		return nil, false
	case p == inBody:
		out = []string{string(r.pattern.ReplaceAll([]byte(text), r.text))}
	default:
		b := appendField(nil, name, r.pattern.ReplaceAll([]byte(value), r.text))
		out = []string{string(b[:len(b)-1])}
	}
	o.edit(r.where)
	return out, true
}

// cut bounds what is said of a message.
func cut(s string) string {
	if len(s) > maxWhere {
		s = strings.ToValidUTF8(s[:maxWhere], "") + "..."
	}
	return oneLine(s)
}

// oneLine keeps a text on a line of SMTP and of the log.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")))
}

// blanks are what Postfix skips before the text of an action, after it has put in what a pattern took
// from the message.
const blanks = " \t\n\r\v\f"

// tableField returns the field that a line of Postfix's form makes, with its newline; nil if the text
// is not a field. It stays as it is written, with the folds of what a pattern took from the message. A line
// that would be a field of its own gets a tab, as Postfix does.
func tableField(text string, at place) []byte {
	text = strings.TrimLeft(text, blanks)
	name, _, ok := strings.Cut(text, ":")
	if name = strings.TrimRight(name, " \t"); !ok || !IsFieldName(name) || at == inHeader && isTrace(name) {
		return nil
	}
	var b []byte
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case b == nil:
		case strings.Trim(line, " \t") == "":
			continue // it would end the header
		case line[0] != ' ' && line[0] != '\t':
			b = append(b, '\t')
		}
		b = append(append(b, line...), '\n')
	}
	return b
}

// appendField appends a field, folded before blanks where a line would pass FoldAt; the
// blanks stay (RFC 5322 section 2.2.3).
func appendField(b []byte, name string, value []byte) []byte {
	begin := len(b)
	b = append(append(b, name...), ':', ' ')
	for first := true; len(value) > 0; first = false {
		n := 0
		for n < len(value) && (value[n] == ' ' || value[n] == '\t') {
			n++
		}
		blanks := n
		for n < len(value) && value[n] != ' ' && value[n] != '\t' {
			n++
		}
		if !first && blanks > 0 && n > blanks && len(b)-begin+n > FoldAt {
			b = append(b, '\n')
			begin = len(b)
		}
		b = append(b, value[:n]...)
		value = value[n:]
	}
	return append(b, '\n')
}

// isTrace reports whether a field is one that no rule changes (RFC 5321 sections 4.4 and 6.3):
// messages in a circle are known by it.
func isTrace(name string) bool {
	return strings.EqualFold(name, "Received") || strings.EqualFold(name, "Return-Path")
}

// IsFieldName reports whether a text is the name of a field (RFC 5322 section 3.6.8).
func IsFieldName(name string) bool {
	f := envelope.Fields([]byte(name + ": x\n"))
	return len(f) == 1 && f[0].Name == name && name != ""
}
