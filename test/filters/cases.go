// Package filters runs real mail filters behind our server and behind Debian's Postfix, with the
// same messages, and compares what becomes of them: testdata/cases.txt has the cases,
// testdata/outcomes.txt what came out of each on both sides.
//
// It owns nothing. Diagnostics: a filter or a Postfix that is not installed skips its part.
package filters

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Case is a message, a filter and what the filter does.
type Case struct {
	Name    string
	Use     string                // which filters; "": the one of testdata/filter.py
	Acts    map[string][][]string // of that filter: verbs by stage
	Client  [][]string            // what the client does besides, in place of the usual dialogue
	From    string                // of the message
	Sign    string                // relaxed, simple or broken: how the message is signed by its author's domain
	Message string
	Compare [][]string // what of the filter's log is compared
	Differs string     // why we differ from Postfix; "": we do not
}

// defaultMessage is what a client sends unless a case has its own message. The number of the
// case is put in for N.
const defaultMessage = "Subject: x\nX-T: one\nX-T: two\n\nhi\n"

// stages are the words that begin a line about the filter.
var stages = map[string]bool{"negotiate": true, "connect": true, "hello": true, "envfrom": true, "envrcpt": true, "data": true,
	"unknown": true, "header": true, "eoh": true, "body": true, "eom": true}

// ReadCases reads a file of cases: "case NAME", then lines of words, of which quoted ones are
// Go strings:
//
//	STAGE VERB...     what the filter does there (testdata/filter.py)
//	client WORD...    tls, bdat, xclient ATTRIBUTES, mail ARGUMENT, rcpt ARGUMENT, say COMMAND
//	from ADDRESS      the author
//	sign KIND         relaxed, simple or broken
//	message TEXT      "(text)*n" repeats text
//	compare WORD...   heard, offered, or macros STAGE NAME...
//	use FILTERS       opendkim, rspamd, twice, default_action=ACTION
//	differs REASON
func ReadCases(name string) (list []*Case, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seen := map[string]bool{}
	for n, in := 1, bufio.NewScanner(f); in.Scan(); n++ {
		words, err := split(in.Text())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		if words[0] == "case" {
			c := &Case{Name: strings.Join(words[1:], " "), Acts: map[string][][]string{}, From: "a@client.example", Message: defaultMessage}
			if seen[c.Name] {
				return nil, fmt.Errorf("%s:%d: case %s stands there twice", name, n, c.Name)
			}
			seen[c.Name] = true
			list = append(list, c)
			continue
		}
		c, rest := list[len(list)-1], words[1:]
		switch {
		case stages[words[0]]:
			c.Acts[words[0]] = append(c.Acts[words[0]], rest)
		case words[0] == "client":
			c.Client = append(c.Client, rest)
		case words[0] == "from":
			c.From = rest[0]
		case words[0] == "sign":
			c.Sign = rest[0]
		case words[0] == "message":
			c.Message = rest[0]
		case words[0] == "compare":
			c.Compare = append(c.Compare, rest)
		case words[0] == "use":
			c.Use = rest[0]
		case words[0] == "differs":
			c.Differs = strings.Join(rest, " ")
		default:
			return nil, fmt.Errorf("%s:%d: %s is unknown", name, n, words[0])
		}
	}
	return list, nil
}

// split splits a line into words.
func split(line string) (words []string, err error) {
	for line = strings.TrimLeft(line, " \t"); line != ""; line = strings.TrimLeft(line, " \t") {
		if line[0] != '"' {
			word, rest, _ := strings.Cut(line, " ")
			words, line = append(words, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return nil, err
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, err
		}
		words, line = append(words, repeated(text)), line[len(quoted):]
	}
	return words, nil
}

// repeated makes "(text)*n" n times text, anywhere in a text.
func repeated(text string) string {
	for {
		end := strings.Index(text, ")*")
		if end < 0 {
			return text
		}
		begin := strings.LastIndexByte(text[:end], '(')
		digits := end + 2
		for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(text[end+2 : digits])
		if begin < 0 || err != nil {
			return text
		}
		text = text[:begin] + strings.Repeat(text[begin+1:end], n) + text[digits:]
	}
}
