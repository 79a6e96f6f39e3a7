package tasmtp_test

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

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/suite"
)

// programDir is the variable that names the directory for the program under test.
const programDir = "TA_SMTP_TEST_DIR"

// TestMain gives the tests a directory for the program that the first one builds.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ta-smtp")
	if err == nil {
		err = os.Setenv(programDir, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program is the path of ta-smtp as it is built from this tree.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.Getenv(programDir), "ta-smtp")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	assert.Must(t, suite.BuildOne(path, "ta-smtp"))
	return path
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
	assert.Must(t, os.WriteFile(file, []byte(conf), 0o600))
	cmd := exec.Command(program(t), args...)
	cmd.Dir = filepath.Join(s.Dir, "transport")
	cmd.Env = []string{"ZCONFIG=" + file}
	return cmd
}

// start runs it until the test ends.
func start(t *testing.T, s *Spool, conf string, args ...string) *process {
	t.Helper()
	return startWith(t, command(t, s, conf, args...))
}

// startWith runs a prepared command with more environment.
func startWith(t *testing.T, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, lines: make(chan taproto.Line, 1000), ended: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	assert.Must(t, err)
	assert.Must(t, p.cmd.Start())
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

// say sends a line of the scheduler.
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
		case taproto.LineSlots:
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
