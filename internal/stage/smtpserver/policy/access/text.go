package access

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
)

// blanks separate words.
const blanks = " \t\n"

// splitRule cuts a rule into its words, which may hold "..." with blanks, and the text
// behind a colon that is a word of its own. A word that begins with # is a comment up to
// the end of the line.
func splitRule(line string) (words []string, text string, err error) {
	for rest := line; rest != ""; rest = strings.TrimLeft(rest, blanks) {
		if rest[0] == ':' && (len(rest) == 1 || strings.IndexByte(blanks+`"`, rest[1]) >= 0) {
			text, err = unquote(strings.Join(strings.Fields(rest[1:]), " "))
			return words, text, err
		}
		if rest[0] == '#' {
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		}
		word, more, err := cutWord(rest)
		if err != nil {
			return nil, "", err
		}
		words, rest = append(words, word), more
	}
	return words, "", nil
}

// cutWord takes the first word off.
func cutWord(s string) (word, rest string, err error) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case !quoted && strings.IndexByte(blanks, c) >= 0:
			return b.String(), s[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", errors.New(`no closing "`)
	}
	return b.String(), "", nil
}

// unquote takes the quotes off a text.
func unquote(s string) (string, error) {
	if s == "" || s[0] != '"' {
		return s, nil
	}
	if len(s) < 2 || s[len(s)-1] != '"' || strings.Contains(s[1:len(s)-1], `"`) {
		return "", errors.New(`the text must be between two ", with nothing behind it`)
	}
	return s[1 : len(s)-1], nil
}

// setReply takes the reply's text of a rule whose test decides whether it is a reject or a
// defer.
func (v *Verdict) setReply(text string) error {
	if text == "" {
		return nil
	}
	v.Action = Reject
	if text[0] == '4' {
		v.Action = Defer
	}
	err := v.setText(text)
	v.Action = None
	return err
}

// setText takes a reply's text, which may begin with a code, an enhanced code or both:
// "554 5.7.1 go away".
func (v *Verdict) setText(text string) error {
	if text == "" {
		return nil
	}
	if v.Action == Accept || v.Action == Freeze {
		if v.Action == Accept {
			return errors.New("accept has no text")
		}
		v.Text = text
		return nil
	}
	class := byte('5')
	if v.Action == Defer {
		class = '4'
	}
	word, rest, _ := strings.Cut(text, " ")
	if n, err := strconv.Atoi(word); err == nil && len(word) == 3 && n >= 400 && n < 600 {
		if word[0] != class {
			return fmt.Errorf("the code %s does not fit the action: want %cxx", word, class)
		}
		v.Code, text = n, strings.TrimSpace(rest)
		word, rest, _ = strings.Cut(text, " ")
	}
	if c, ok := status.Parse(word); ok {
		if word[0] != class {
			return fmt.Errorf("the code %s does not fit the action: want %c.x.x", word, class)
		}
		v.Status, text = c, strings.TrimSpace(rest)
	}
	v.Text = text
	return nil
}
