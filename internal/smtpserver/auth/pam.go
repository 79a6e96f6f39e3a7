package auth

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

	"zmailer/internal/config"
)

const (
	// pamTurns is how many children check passwords at a time.
	pamTurns = 8
	// pamTime is how long one may take; modules that ask other machines wait for those.
	pamTime = 30 * time.Second
	// pamAnswer is the longest answer that is read of a child. Bytes.
	pamAnswer = 4 << 10
)

// pam has a password checked by a child, the program lookup, one child for each: modules
// keep state in their process, leak memory and end it.
type pam struct {
	argv  []string
	turns chan struct{}
}

func newPAM(service string, o Options) (*pam, error) {
	dir := o.Programs
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, &config.Error{File: "AUTH=pam:" + service, Reason: "the program lookup cannot be found", Err: err}
		}
		dir = filepath.Dir(self)
	}
	program := filepath.Join(dir, "lookup")
	if _, err := exec.LookPath(program); err != nil {
		return nil, &config.Error{File: "AUTH=pam:" + service, Reason: "its program " + program + " cannot be run"}
	}
	return &pam{argv: []string{program, "pam", service}, turns: make(chan struct{}, pamTurns)}, nil
}

// Mechanisms implements Backend.
func (p *pam) Mechanisms(context.Context) []string { return []string{Plain, Login} }

// Start implements Backend.
func (p *pam) Start(_ context.Context, mechanism string, peer Peer) (Exchange, error) {
	host := ""
	if peer.Remote.IsValid() {
		host = peer.Remote.Addr().Unmap().WithZone("").String()
	}
	return passwords(mechanism, func(ctx context.Context, user, password string) (string, error) {
		return p.verify(ctx, question{User: user, Password: password, Host: host})
	})
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

func (p *pam) verify(ctx context.Context, q question) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pamTime)
	defer cancel()
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return "", fmt.Errorf("ask PAM: %w", ctx.Err())
	}
	asked, err := json.Marshal(q)
	if err != nil {
		return "", fmt.Errorf("ask PAM: %w", err)
	}
	v, err := p.ask(ctx, append(asked, '\n'))
	switch {
	case err != nil:
		return "", fmt.Errorf("ask PAM: %w", err)
	case v.Result == "ok" && v.User != "":
		return v.User, nil
	case v.Result == "refused":
		return "", ErrRefused
	}
	return "", fmt.Errorf("ask PAM: %s", strings.ToValidUTF8(v.Reason, "?"))
}

// ask runs a child. It and what its modules have started end with its process group.
func (p *pam) ask(ctx context.Context, asked []byte) (v verdict, err error) {
	answered, said := limited{most: pamAnswer}, limited{most: pamAnswer}
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(asked), &answered, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		return verdict{}, fmt.Errorf("no answer within %v", pamTime)
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
