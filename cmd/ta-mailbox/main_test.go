package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// The test program is ta-mailbox itself if this is set.
const envMain = "TA_MAILBOX_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// self is the path of the test program.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	assert.Must(t, err)
	return path
}

// spool is a postoffice with a configuration beside it.
type spool struct {
	*testing.T
	dir  string // postoffice
	mail string // $MAIL of the template
	conf string // zmailer.conf
}

func newSpool(t *testing.T, template string) *spool {
	t.Helper()
	s := &spool{T: t, dir: t.TempDir(), mail: t.TempDir()}
	for _, sub := range []string{"public", "router", "queue", "transport", "deferred", "postman", "freezer", "owners"} {
		s.must(os.Mkdir(filepath.Join(s.dir, sub), 0o755))
	}
	users := filepath.Join(t.TempDir(), "users")
	s.conf = filepath.Join(filepath.Dir(users), "zmailer.conf")
	s.must(os.WriteFile(users, []byte("root\njim\n"), 0o644))
	s.must(os.WriteFile(s.conf, fmt.Appendf(nil, "POSTOFFICE=%s\nMAILBOX=%s\nLOCALUSERS=%s\nHOSTNAME=mta.example.org\nLOG=text\n",
		s.dir, strings.ReplaceAll(template, "$MAIL", s.mail), users), 0o644))
	return s
}

func (s *spool) must(err error) {
	s.Helper()
	assert.Must(s, err)
}

const (
	testEnvelope = "from <s@example.org>\nto <r@example.org>\nenv-end\n"
	testHeader   = "Subject: x\n\n"
)

func ownUID() string { return strconv.Itoa(os.Getuid()) }

// queue writes a message for jim whose body is written by fill.
func (s *spool) queue(name string, fill func(w io.Writer) error) {
	s.Helper()
	f, err := os.Create(filepath.Join(s.dir, "queue", name))
	s.must(err)
	w := bufio.NewWriter(f)
	_, err = w.WriteString(testEnvelope + testHeader)
	s.must(err)
	s.must(fill(w))
	s.must(w.Flush())
	s.must(f.Close())

	s.must(os.WriteFile(filepath.Join(s.dir, "transport", name), specification(name, "jim@example.org", "jim@example.org", 0), 0o600))
}

// specification is one for a single recipient on the channel local, whose r line is
// at an offset; 0: wherever it falls.
func specification(name, host, address string, offset int) []byte {
	before := fmt.Sprintf("@ 0x00000007\ni %s\no %d\nl ", name, len(testEnvelope)+len(testHeader))
	sender := "\ns local s@example.org s@example.org 1\n"
	pad := max(1, offset-len(before)-len(sender))
	return []byte(before + strings.Repeat("x", pad) + sender +
		"r           local " + host + " " + address + " " + ownUID() + "\nm\nReceived: here\nSubject: x\n\n")
}

func text(body string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, body); return err }
}

// process is a running ta-mailbox.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	stderr bytes.Buffer
}

func (s *spool) start(args ...string) *process {
	s.Helper()
	p := &process{T: s.T, cmd: exec.Command(self(s.T), args...), lines: make(chan string, 1000)}
	p.cmd.Dir = filepath.Join(s.dir, "transport")
	p.cmd.Env = []string{envMain + "=1", "ZCONFIG=" + s.conf}
	p.cmd.Stderr = &p.stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	s.must(err)
	out, err := p.cmd.StdoutPipe()
	s.must(err)
	s.must(p.cmd.Start())
	s.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p
}

func (p *process) say(s string) {
	p.Helper()
	if _, err := io.WriteString(p.in, s); err != nil {
		p.Fatal(err)
	}
}

// hear waits for the next line.
func (p *process) hear() string {
	p.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.Fatalf("it ended; standard error:\n%s", p.stderr.String())
		}
		return line
	case <-time.After(60 * time.Second):
		p.Fatal("it says nothing")
	}
	return ""
}

// end ends it and gives its exit code.
func (p *process) end() int {
	p.Helper()
	p.in.Close()
	for range p.lines {
	}
	if err := p.cmd.Wait(); err != nil && p.cmd.ProcessState == nil {
		p.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestExitCodesAndWhatTheySay(t *testing.T) {
	good := newSpool(t, "$MAIL/%u")
	for name, c := range map[string]struct {
		args []string
		conf string // appended
		dir  string
		code int
		says string
	}{
		"a foreign channel":       {args: []string{"smtp"}, code: config.ExitUsage, says: "smtp"},
		"no slots":                {args: []string{"--slots", "0"}, code: config.ExitUsage, says: "--slots"},
		"a template without user": {conf: "MAILBOX=/var/mail\n", code: config.ExitConfig, says: "MAILBOX"},
		"not in a postoffice":     {dir: t.TempDir(), code: config.ExitConfig, says: "transport/"},
		"nothing wrong":           {code: 0},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := os.ReadFile(good.conf)
			assert.Must(t, err)
			file := filepath.Join(t.TempDir(), "zmailer.conf")
			assert.Must(t, os.WriteFile(file, append(conf, c.conf...), 0o644))
			cmd := exec.Command(self(t), c.args...)
			cmd.Dir = c.dir
			if c.dir == "" {
				cmd.Dir = filepath.Join(good.dir, "transport")
			}
			cmd.Env = []string{envMain + "=1", "ZCONFIG=" + file}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, _ := cmd.Output()
			assert.Equal(t, cmd.ProcessState.ExitCode(), c.code, "exit code")
			assert.Contains(t, stderr.String(), c.says, "standard error")
			if want := map[bool]string{true: "#hungry\n"}[c.code == 0]; string(out) != want {
				t.Errorf("standard output: got %q, want %q", out, want)
			}
		})
	}
}

func TestSignalEndsItInOrder(t *testing.T) { // A17
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s := newSpool(t, "$MAIL/%u/")
		p := s.start("--slots", "3", "local")
		for _, want := range []string{"#slots 3", "#hungry", "#hungry", "#hungry"} {
			assert.Equal(t, p.hear(), want)
		}
		s.must(p.cmd.Process.Signal(sig))
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%v: got %v, want exit code 0; standard error:\n%s", sig, err, p.stderr.String())
		}
		if entries, err := os.ReadDir(filepath.Join(s.dir, "owners")); err != nil || len(entries) != 0 {
			t.Errorf("owners/: got %v, %v, want it empty", entries, err)
		}
	}
}

func TestTwoProcessesShareOneMbox(t *testing.T) {
	s := newSpool(t, "$MAIL/%u")
	const each = 100
	body := func(n int) string {
		return fmt.Sprintf("message %d\n%send %d\n", n, strings.Repeat("From here on\n", n%50), n)
	}
	agents := []*process{s.start("--slots=4"), s.start("--slots=4")}
	for i, p := range agents {
		var jobs strings.Builder
		for n := i * each; n < (i+1)*each; n++ {
			name := strconv.Itoa(n + 1)
			s.queue(name, text(body(n)))
			fmt.Fprintf(&jobs, "%s\tjim@example.org\n", name)
		}
		p.say(jobs.String())
	}
	for _, p := range agents {
		for done := 0; done < each; {
			switch line := p.hear(); {
			case strings.Contains(line, "\tok3 "):
				done++
			case line != "#hungry" && line != "#slots 4":
				t.Errorf("got %q, want ok3", line)
				done++
			}
		}
		assert.Equal(t, p.end(), 0, "exit code; standard error: %s", p.stderr.String())
	}
	b, err := os.ReadFile(filepath.Join(s.mail, "jim"))
	s.must(err)
	got := map[string]int{}
	for m := range strings.SplitSeq(strings.TrimPrefix(string(b), "From "), "\n\nFrom ") {
		_, m, _ = strings.Cut(m, "\n\n")
		got[strings.TrimRight(strings.ReplaceAll(m, ">From ", "From "), "\n")+"\n"]++
	}
	want := map[string]int{}
	for n := range 2 * each {
		want[body(n)] = 1
	}
	assert.Same(t, got, want, "messages")
	if _, err := os.Stat(filepath.Join(s.mail, "jim.lock")); err == nil {
		t.Error("the dot lock is left")
	}
}
