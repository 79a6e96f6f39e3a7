// Package smtp holds the conformance suite of the SMTP server: dialogues as data in
// testdata, each with the section of the RFC that it shows. They are run against our server
// and, with -postfix, against Debian's Postfix, as a check of the table.
//
// A file has dialogues of this form; lines with # are comments:
//
//	== what is shown | RFC section
//	at lmtp                the port: mx (the default), submission, submissions or lmtp
//	in mail                the state to begin in: connected, greeted (the default), mail or rcpt
//	C: MAIL FROM:<a@b>     the client sends a line
//	c: MAIL\r\nRC          it sends bytes, without a line end of their own
//	S: 250 2.1.0           a reply of one or more lines; its last line begins so
//	P: 250                 what Postfix replies there instead
//	H: PIPELINING          a line of the reply before, without its code
//	L: AUTH PLAIN LOGIN    no line of the reply before begins so
//	T:                     a TLS handshake
//	X:                     the server closes the connection
//	M: Subject: x\nhello\n the content of the message that was accepted
//	N:                     no message was accepted
//	ours                   Postfix is not asked
//	cut                    all that the client sends is one group, which is cut in two at each byte
//
// In C:, c: and M: \r, \n, \t, \0, \\ and \xHH are bytes, and {text*N} is a text N times.
package smtp

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Dialogue is one of the table.
type Dialogue struct {
	File      string
	Line      int
	Title     string
	Source    string // section of an RFC
	Port      string
	State     string
	Ours, Cut bool
	Steps     []Step
}

// Step is a line of a dialogue: its letter and what follows.
type Step struct {
	Line    int
	Kind    byte
	Text    string
	Postfix string // of S: what Postfix replies
}

// Read reads a file of dialogues.
func Read(name string) ([]Dialogue, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []Dialogue
	var d *Dialogue
	for i, line := range strings.Split(string(text), "\n") {
		bad := func(why string) error { return fmt.Errorf("%s:%d: %s: %q", name, i+1, why, line) }
		word, arg, _ := strings.Cut(line, " ")
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case word == "==":
			title, source, ok := strings.Cut(arg, " | ")
			if !ok {
				return nil, bad("no section")
			}
			all = append(all, Dialogue{File: name, Line: i + 1, Title: title, Source: source, Port: "mx", State: "greeted"})
			d = &all[len(all)-1]
		case d == nil:
			return nil, bad("no dialogue")
		case word == "at":
			d.Port = arg
		case word == "in":
			d.State = arg
		case word == "ours":
			d.Ours = true
		case word == "cut":
			d.Cut = true
		case word == "P:":
			last := &d.Steps[len(d.Steps)-1]
			if last.Kind != 'S' {
				return nil, bad("not after S:")
			}
			last.Postfix = arg
		case len(word) == 2 && word[1] == ':' && strings.Contains("CcSHLTXMN", word[:1]):
			if strings.Contains("CcM", word[:1]) {
				if arg, err = expand(arg); err != nil {
					return nil, bad(err.Error())
				}
			}
			if word == "C:" {
				arg += "\r\n"
			}
			d.Steps = append(d.Steps, Step{Line: i + 1, Kind: word[0], Text: arg})
		default:
			return nil, bad("unknown line")
		}
	}
	return all, nil
}

// expand replaces escapes and repetitions.
func expand(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		end := strings.IndexByte(text[i:], '}')
		switch {
		case text[i] == '{' && end > 0 && strings.Contains(text[i:i+end], "*"):
			inner := text[i+1 : i+end]
			star := strings.LastIndexByte(inner, '*')
			n, err := strconv.Atoi(inner[star+1:])
			if err != nil {
				return "", err
			}
			part, err := expand(inner[:star])
			if err != nil {
				return "", err
			}
			b.WriteString(strings.Repeat(part, n))
			i += end
		case text[i] == '\\' && i+3 < len(text) && text[i+1] == 'x':
			n, err := strconv.ParseUint(text[i+2:i+4], 16, 8)
			if err != nil {
				return "", err
			}
			b.WriteByte(byte(n))
			i += 3
		case text[i] == '\\' && i+1 < len(text):
			i++
			c, ok := map[byte]byte{'r': '\r', 'n': '\n', 't': '\t', '0': 0, '\\': '\\'}[text[i]]
			if !ok {
				return "", fmt.Errorf("unknown escape \\%c", text[i])
			}
			b.WriteByte(c)
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String(), nil
}
