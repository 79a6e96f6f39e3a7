// Package credentials is the file of users and passwords for the hosts that want a login
// before they take mail.
//
// It owns nothing. The file holds secrets; config.OpenFile watches its mode.
//
// Diagnostics: errors of Parse are *config.Error with file and line, and never have a
// password in them.
package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/tlspolicy"
)

// Account is one line.
type Account struct {
	User, Password string
	Name           string // used only for clauses with auth=NAME; "": elsewhere
	From           string // lower case: the sender's address, or @domain; "": any
	Cleartext      bool   // may go where there is no TLS
	Where          string // file:line
	host           string // as tlspolicy.Key has it, or *
}

// ID distinguishes accounts, and the same one before and after a change of its password,
// without telling the password.
func (a *Account) ID() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %v", a.User, a.Password, a.Cleartext))
	return a.User + "/" + hex.EncodeToString(sum[:8])
}

// Table is the file.
type Table struct{ accounts []Account }

// Parse reads the file: HOST[:PORT] USER PASSWORD and options a line. What has blanks
// is written in "quotes" with \" and \\.
func Parse(file string, text []byte) (*Table, error) {
	t := &Table{}
	number := 0
	var wrong config.Mistakes
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		a, err := parseLine(line)
		if err != nil {
			if wrong.Add(&config.Error{File: file, Line: number, Reason: "not HOST[:PORT] USER PASSWORD [from=SENDER] [name=NAME] [cleartext]", Err: err}) {
				break
			}
			continue
		}
		a.Where = fmt.Sprintf("%s:%d", file, number)
		t.accounts = append(t.accounts, a)
	}
	return t, wrong.Err()
}

func parseLine(line string) (Account, error) {
	var a Account
	words, err := split(line)
	if err != nil {
		return a, err
	}
	if len(words) < 3 {
		return a, errors.New("there are too few words")
	}
	if a.host, err = tlspolicy.Key(words[0]); err != nil {
		return a, err
	}
	if strings.HasPrefix(a.host, ".") {
		return a, errors.New("a password is for one host")
	}
	a.User, a.Password = words[1], words[2]
	if a.User == "" || a.Password == "" {
		return a, errors.New("user or password is empty")
	}
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		switch {
		case word == "cleartext":
			a.Cleartext = true
		case key == "name" && value != "":
			a.Name = value
		case key == "from" && strings.Contains(value, "@"):
			a.From = strings.ToLower(value)
		default:
			return a, errors.New("a word behind the password is none of from=, name=, cleartext")
		}
	}
	if a.host == "*" && a.Name == "" {
		return a, errors.New("an account for any host needs a name=")
	}
	return a, nil
}

// split parts a line into words.
func split(line string) ([]string, error) {
	var words []string
	for line = strings.TrimLeft(line, " \t"); line != ""; line = strings.TrimLeft(line, " \t") {
		if line[0] != '"' {
			i := strings.IndexAny(line, " \t")
			if i < 0 {
				i = len(line)
			}
			words, line = append(words, line[:i]), line[i:]
			continue
		}
		var b strings.Builder
		i := 1
		for ; i < len(line) && line[i] != '"'; i++ {
			if line[i] == '\\' && i+1 < len(line) {
				i++
			}
			b.WriteByte(line[i])
		}
		if i >= len(line) {
			return nil, errors.New("a quote is not closed")
		}
		words, line = append(words, b.String()), line[i+1:]
		if line != "" && line[0] != ' ' && line[0] != '\t' {
			return nil, errors.New("there is no blank behind a quote")
		}
	}
	return words, nil
}

// Find returns the account for a destination: one of the name, if that is asked for, else
// the sender's own, else that of his domain, else that of the host. A line with a port
// counts for that port alone, and before one without.
func (t *Table) Find(host string, port int, sender, name string) *Account {
	var best *Account
	bestRank := 0
	withPort := tlspolicy.WithPort(host, port)
	sender = strings.ToLower(sender)
	domain := ""
	if i := strings.LastIndexByte(sender, '@'); i >= 0 {
		domain = sender[i:]
	}
	for i := range t.accounts {
		a := &t.accounts[i]
		rank := 1
		switch {
		case a.host == withPort:
			rank += 2
		case a.host == host:
			rank++
		case a.host != "*" || name == "":
			continue
		}
		switch {
		case a.Name != name:
			continue
		case name != "":
		case a.From == "":
		case a.From == sender:
			rank += 20
		case a.From == domain:
			rank += 10
		default:
			continue
		}
		if rank > bestRank {
			best, bestRank = a, rank
		}
	}
	return best
}
