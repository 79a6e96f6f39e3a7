// Package pam has passwords checked by PAM, for smtpserver and for the web page, each by a
// child, the program lookup: modules keep state in their process, leak memory and end it.
//
// It owns nothing, and nothing is left of it after a crash: a child ends with its asker.
//
// Diagnostics: ErrRefused means that PAM said no, also to a user that is not there or whose
// account is closed. Any other error means that the answer is unknown: the password may be right.
package pam

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrRefused means that user and password do not fit, without saying which is wrong.
var ErrRefused = errors.New("pam: refused")

const (
	// turns is how many children check passwords at a time.
	turns = 8
	// patience is how long one may take; modules that ask other machines wait for those.
	patience = 30 * time.Second
	// longest is the longest answer that is read of a child. Bytes.
	longest = 4 << 10
)

// Checker checks passwords by one service of PAM. Many goroutines may use it.
type Checker struct {
	what  string
	argv  []string
	turns chan struct{}

	// Attach gives a child what it inherits beside its streams; nil: nothing. Set it before the first
	// question.
	Attach func(*exec.Cmd) (done func(), err error)
}

// Installed returns an error if this machine has no service of that name: PAM would answer by
// the service other, which refuses every password on most systems.
func Installed(service string) error {
	for _, dir := range []string{"/etc/pam.d", "/usr/lib/pam.d", "/usr/share/pam.d"} {
		if _, err := os.Stat(filepath.Join(dir, service)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("there is no file /etc/pam.d/%s, so PAM has no service of that name", service)
}

// New makes a Checker. service is the name of a file in /etc/pam.d, programs the directory
// of the program lookup; without it, that of this program.
func New(service, programs string) (*Checker, error) {
	if service == "" || strings.ContainsAny(service, "/ \t") || service[0] == '-' {
		return nil, errors.New("want the name of a file in /etc/pam.d behind \"pam:\"")
	}
	return NewChild("PAM", programs, "pam", service)
}

// NewChild makes a checker of passwords and tokens that asks another child, lookup with
// arguments, by the same question and answer. what is asked is named in errors.
func NewChild(what, programs string, args ...string) (*Checker, error) {
	if programs == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("the program lookup cannot be found: %w", err)
		}
		programs = filepath.Dir(self)
	}
	program := filepath.Join(programs, "lookup")
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("its program %s cannot be run", program)
	}
	return &Checker{what: what, argv: append([]string{program}, args...), turns: make(chan struct{}, turns)}, nil
}

// question and verdict go over a child's standard input and output as one line of JSON
// each; internal/lookup/pam has them too.
type question struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Host     string `json:"host,omitempty"` // the client's address
}

type verdict struct {
	Result string `json:"result"` // ok, refused or trouble
	User   string `json:"user,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Verify asks PAM. host is the client's address, "" if there is none. It gives the user's
// name as PAM has it.
func (c *Checker) Verify(ctx context.Context, user, password, host string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return "", fmt.Errorf("ask %s: %w", c.what, ctx.Err())
	}
	asked, err := json.Marshal(question{User: user, Password: password, Host: host})
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", c.what, err)
	}
	v, err := c.ask(ctx, append(asked, '\n'))
	switch {
	case err != nil:
		return "", fmt.Errorf("ask %s: %w", c.what, err)
	case v.Result == "ok" && v.User != "":
		return v.User, nil
	case v.Result == "refused":
		return "", ErrRefused
	}
	return "", fmt.Errorf("ask %s: %s", c.what, strings.ToValidUTF8(v.Reason, "?"))
}

// ask runs a child. It and what its modules have started end with its process group.
func (c *Checker) ask(ctx context.Context, asked []byte) (v verdict, err error) {
	answered, said := limited{most: longest}, limited{most: longest}
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(asked), &answered, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	attached := func() {}
	if c.Attach != nil {
		if attached, err = c.Attach(cmd); err != nil {
			return verdict{}, err
		}
	}
	err = cmd.Run()
	attached()
	if errors.Is(ctx.Err(), context.Canceled) {
		return verdict{}, fmt.Errorf("who asked has gone: %w", ctx.Err())
	}
	if ctx.Err() != nil {
		return verdict{}, fmt.Errorf("no answer within %v", patience)
	}
	if err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		return verdict{}, fmt.Errorf("the child has ended: %w: %s", err, strings.ToValidUTF8(text, "?"))
	}
	if err := json.Unmarshal(answered.Bytes(), &v); err != nil {
		return verdict{}, errors.New("the child's answer is none")
	}
	return v, nil
}

// limited keeps the first bytes that are written to it.
type limited struct {
	bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.most - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
