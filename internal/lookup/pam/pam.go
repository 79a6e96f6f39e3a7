// Package pam checks one password with PAM (pam(3)), for a parent that asks on standard
// input: the program `lookup pam SERVICE`. libpam is loaded when it runs, without cgo, and
// in this program alone: its modules are other people's code in our address space.
//
// It owns nothing on disk.
//
// Diagnostics: Run's error says that the question cannot be read or the answer not be
// written. What PAM says becomes a verdict: ok, refused (user, password or account), or
// trouble with its reason. A crash of a module ends the program without a verdict.
package pam

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Question is one line of JSON on standard input.
type Question struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Host     string `json:"host,omitempty"` // whose client it is, for modules that look at it
}

// Verdict is the line of JSON that answers it.
type Verdict struct {
	Result string `json:"result"`         // Ok, Refused or Trouble
	User   string `json:"user,omitempty"` // with Ok: as PAM knows him
	Reason string `json:"reason,omitempty"`
}

// Results.
const (
	Ok      = "ok"
	Refused = "refused"
	Trouble = "trouble"
)

// Config is the request: who asks PAM about whom.
type Config struct {
	Service string // a file in /etc/pam.d
	Dir     string // another directory of such files; "": /etc/pam.d
	In      io.Reader
	Out     io.Writer
}

// maxQuestion bounds what is read. Bytes.
const maxQuestion = 16 << 10

// Run answers one question.
func Run(c Config) error {
	q, err := ReadQuestion(c.In)
	if err != nil {
		return err
	}
	return WriteVerdict(c.Out, check(c, q))
}

// ReadQuestion reads a question.
func ReadQuestion(in io.Reader) (q Question, err error) {
	line, err := bufio.NewReader(io.LimitReader(in, maxQuestion)).ReadBytes('\n')
	if err != nil {
		return q, fmt.Errorf("read the question: %w", err)
	}
	if err := json.Unmarshal(line, &q); err != nil {
		// The error would reveal bytes of it.
		return q, errors.New("read the question: it is no JSON of user, password and host")
	}
	return q, nil
}

// WriteVerdict writes an answer.
func WriteVerdict(out io.Writer, v Verdict) error {
	answer, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	_, err = out.Write(append(answer, '\n'))
	return err
}

// installed reports whether a service has a file. PAM asks the service "other" instead, which
// refuses everyone: a misspelt name would look like wrong passwords.
func installed(c Config) bool {
	dirs := []string{"/etc/pam.d", "/usr/lib/pam.d", "/usr/share/pam.d", "/usr/etc/pam.d"}
	if c.Dir != "" {
		dirs = []string{c.Dir}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, strings.ToLower(c.Service))); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	// A system with the one old file has no directory.
	_, err := os.Stat(dirs[0])
	return err != nil
}

func check(c Config, q Question) Verdict {
	if q.User == "" || strings.ContainsRune(q.User+q.Password+q.Host, 0) {
		return Verdict{Result: Refused, Reason: "no name, or a NUL"}
	}
	if !installed(c) {
		return Verdict{Result: Trouble, Reason: "PAM has no service " + c.Service + ": there is no file /etc/pam.d/" + c.Service}
	}
	return authenticate(c, q)
}
