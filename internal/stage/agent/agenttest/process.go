package agenttest

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/wire/taproto"
)

// Process is a running agent, seen from its scheduler.
type Process struct {
	*exec.Cmd
	In  io.WriteCloser
	Log logtest.Buffer // its standard error

	t     testing.TB
	lines chan taproto.Line
	ended chan struct{}
	err   error // of Wait, when ended is closed
}

// Start runs a command until the test ends.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, t: t, lines: make(chan taproto.Line, 1000), ended: make(chan struct{})}
	cmd.Stderr = &p.Log
	var err error
	p.In, err = cmd.StdinPipe()
	assert.Must(t, err)
	out, err := cmd.StdoutPipe()
	assert.Must(t, err)
	assert.Must(t, cmd.Start())
	go func() {
		r := taproto.NewReader(out)
		for l, err := r.Line(); err == nil; l, err = r.Line() {
			p.lines <- l
		}
		close(p.lines)
		p.err = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// Say sends what a scheduler writes.
func (p *Process) Say(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.In, text); err != nil {
		p.t.Fatalf("write to the agent: %v; it logged %s", err, &p.Log)
	}
}

// Answers waits for the answers up to the next #hungry.
func (p *Process) Answers() (list []taproto.Answer) {
	p.t.Helper()
	for late := time.After(logtest.Patience * 3); ; {
		select {
		case l, ok := <-p.lines:
			switch {
			case !ok:
				p.t.Fatalf("the agent has ended; it logged %s", &p.Log)
			case l.Kind == taproto.LineHungry:
				return list
			case l.Kind == taproto.LineAnswer:
				list = append(list, l.Answer)
			case l.Kind != taproto.LineSlots:
				p.t.Errorf("got %+v", l)
			}
		case <-late:
			p.t.Fatalf("no line from the agent; it logged %s", &p.Log)
		}
	}
}

// End waits for its end and returns the exit code.
func (p *Process) End() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(logtest.Patience * 3):
		p.t.Fatal("the agent does not end")
	}
	exit := (*exec.ExitError)(nil)
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	assert.Must(p.t, p.err)
	return 0
}

// Only wants one answer, with a word and a text in it.
func Only(t testing.TB, answers []taproto.Answer, word taproto.Word, text string) {
	t.Helper()
	if len(answers) != 1 || answers[0].Word != word || !strings.Contains(answers[0].Text, text) {
		t.Errorf("got %+v, want %s %q", answers, word, text)
	}
}
