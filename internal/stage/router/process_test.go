package router

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/test/suite"
)

// TestMain removes the program that tests have built.
func TestMain(m *testing.M) {
	// Most of them wait for programs.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(programDir)
	os.Exit(code)
}

// programDir is where the program of these tests is; other users run it, too.
var programDir = filepath.Join(os.TempDir(), fmt.Sprint("router-", os.Getpid()))

// built builds the program once.
var built = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programDir, "router")
	return path, errors.Join(os.Mkdir(programDir, 0o755), suite.BuildOne(path, "router"))
})

// program returns the real router.
func program(t *testing.T) string {
	t.Helper()
	path := assert.Get(built())(t)
	return path
}

// process is a running router.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *logtest.Buffer
	end sync.WaitGroup
}

// run starts the program on the office's postoffice; each line of its log also goes
// to all.
func (o *office) run(t *testing.T, path string, all io.Writer, args ...string) *process {
	t.Helper()
	p := &process{t: t, log: &logtest.Buffer{}}
	p.cmd = exec.Command(path, append([]string{"--config", filepath.Join(o.conf, "zmailer.conf")}, args...)...)
	o.begin(t, p, all)
	return p
}

// begin starts a process.
func (o *office) begin(t *testing.T, p *process, all io.Writer) {
	t.Helper()
	stderr := assert.Get(p.cmd.StderrPipe())(t)
	assert.Must(t, p.cmd.Start())
	p.end.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(io.MultiWriter(p.log, all), lines.Text())
		}
	})
	t.Cleanup(func() {
		// It has ended by itself unless the test failed.
		_ = p.cmd.Process.Kill()
		p.end.Wait()
	})
}

// stop ends it with a signal and gives its exit code.
func (p *process) stop(sig syscall.Signal) int {
	p.t.Helper()
	assert.Must(p.t, p.cmd.Process.Signal(sig))
	return p.wait()
}

func (p *process) wait() int {
	p.end.Wait()
	// The exit code says it; Wait's error is the same.
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// M6, M7, K9: four routers route each of a thousand messages once. Two of them are killed in the
// middle of their work; those that live take it up.
func TestFourProcessesRouteEachOfAThousandMessagesOnce(t *testing.T) {
	t.Parallel()
	const messages = 1000
	o := newOffice(t, nil)
	assert.Must(t, o.po.Router.EnsureDirs([]string{"router2"}))
	path := program(t)
	ids := map[string]int{}
	for i := range messages / 2 {
		ids[o.submit(plain(fmt.Sprintf("a%d@example.net", i))).ID.String()] = 0
	}
	all := &logtest.Buffer{}
	var routers []*process
	for range 4 {
		routers = append(routers, o.run(t, path, all))
	}
	for i := range messages / 2 {
		ids[o.submitInto([]string{"router", "router2"}[i%2], plain(fmt.Sprintf("b%d@example.net", i))).ID.String()] = 0
	}
	for i, r := range routers[:2] {
		// Whose they are does not matter: on a loaded machine one may route most of them.
		all.AwaitCount(t, 50*(i+1), "msg=routed")
		assert.Equal(t, r.stop(syscall.SIGKILL), -1, "exit code of a killed router")
	}
	// The survivors look for what dead routers have left at every poll.
	all.Until(t, "all messages are handed over", func() bool { return len(o.names("transport")) == messages })
	for _, r := range routers[2:] {
		assert.Equal(t, r.stop(syscall.SIGTERM), 0, "exit code")
		r.log.Expect(t, 1, "msg=stopped")
		r.log.Expect(t, 0, "level=ERROR")
	}
	for line := range strings.Lines(all.String()) {
		if _, rest, ok := strings.Cut(line, " id="); ok && strings.Contains(line, "msg=routed") {
			id, _, _ := strings.Cut(rest, " ")
			ids[id]++
		}
	}
	for id, n := range ids {
		if n > 1 { // what a killed router has handed over may not be in its log
			t.Errorf("%s was routed %d times", id, n)
		}
	}
	assert.Must(t, o.r.Recover())
	o.expect("in the end", map[string]int{"queue": messages, "transport": messages})
	assert.Equal(t, len(handedOver(t, o.po)), messages, "whole specifications")
	assert.Equal(t, len(ids), messages, "spool IDs")
}

func TestProgramSaysWhatIsWrongAndExits(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	path := program(t)
	tests := map[string]struct {
		file, text string
		args       []string
		code       int
		want       string
	}{
		"bad table":       {"aliases", "a b\n", nil, 78, "aliases:1: bad alias"},
		"no postoffice":   {"aliases", "", []string{"--postoffice", o.conf}, 78, "zmctl init makes one"},
		"an argument":     {"aliases", "", []string{"now"}, 64, "no arguments"},
		"no worker":       {"aliases", "", []string{"--workers", "0"}, 64, "above 0"},
		"all is well":     {"aliases", "", []string{"--once", "-s"}, 0, ""},
		"unknown setting": {"users", "bond bond\n", nil, 78, "users:1: want one login name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o.table(tt.file, tt.text)
			defer o.table(tt.file, "")
			assert.Must(t, os.RemoveAll(filepath.Join(o.dir, "lastgood"))) // it would go on with a copy
			p := o.run(t, path, io.Discard, tt.args...)
			if code := p.wait(); code != tt.code || !strings.Contains(p.log.String(), tt.want) {
				t.Errorf("got %d %s, want %d %s", code, p.log, tt.code, tt.want)
			}
		})
	}
}
