package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/taproto"
	. "zmailer/internal/tasmtp/tasmtptest"
)

// TestMain makes this binary the program under test when it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv("TA_SMTP_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a running ta-smtp, and its scheduler's end.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan taproto.Line
	stderr bytes.Buffer
	ended  chan struct{}
	err    error // of Wait, when ended is closed
}

// command prepares the program to run in a spool's transport/.
func command(t *testing.T, s *Spool, conf string, args ...string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(s.Dir, "zmailer.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = filepath.Join(s.Dir, "transport")
	cmd.Env = []string{"TA_SMTP_MAIN=1", "ZCONFIG=" + file}
	return cmd
}

// start runs it until the test ends.
func start(t *testing.T, s *Spool, conf string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, s, conf, args...), lines: make(chan taproto.Line, 1000), ended: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r := taproto.NewReader(out)
		for {
			l, err := r.Line()
			if err != nil {
				break
			}
			p.lines <- l
		}
		close(p.lines)
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// say sends what a scheduler says.
func (p *process) say(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, text); err != nil {
		p.t.Fatalf("write to the agent: %v; it said %s", err, p.stderr.String())
	}
}

// line waits for the agent's next line.
func (p *process) line() taproto.Line {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if !ok {
			<-p.ended
			p.t.Fatalf("the agent has ended: %v; it said %s", p.err, p.stderr.String())
		}
		return l
	case <-time.After(Patience):
		p.t.Fatalf("no line from the agent; it said %s", p.stderr.String())
	}
	return taproto.Line{}
}

// answers waits for the answers up to the next #hungry.
func (p *process) answers() []taproto.Answer {
	p.t.Helper()
	var a []taproto.Answer
	for {
		switch l := p.line(); l.Kind {
		case taproto.LineHungry:
			return a
		case taproto.LineAnswer:
			a = append(a, l.Answer)
		default:
			p.t.Errorf("got %+v", l)
		}
	}
}

// end waits for its end and returns the exit code.
func (p *process) end() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		p.t.Fatal("the agent does not end")
	}
	exit := (*exec.ExitError)(nil)
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	if p.err != nil {
		p.t.Fatal(p.err)
	}
	return 0
}

// conf is a configuration that sends to a sink.
func conf(s *Spool, sink *Sink, more ...string) string {
	return fmt.Sprintf("POSTOFFICE=%s\nHOSTNAME=mta.zm.example.org\nSMTPPORT=%d\nRESOLVER=127.0.0.1:1\n%s\n", s.Dir, sink.Port(), strings.Join(more, "\n"))
}
