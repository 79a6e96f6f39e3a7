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

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	. "zmailer/internal/stage/agent/agenttest"
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

// spool is a postoffice with a configuration beside it.
type spool struct {
	*testing.T
	*Spool
	mail string // $MAIL of the template
	conf string // zmailer.conf
}

func newSpool(t *testing.T, template string) *spool {
	t.Helper()
	s := &spool{T: t, Spool: NewSpool(t), mail: t.TempDir()}
	users := filepath.Join(t.TempDir(), "users")
	s.conf = filepath.Join(filepath.Dir(users), "zmailer.conf")
	assert.Must(t, os.WriteFile(users, []byte("root\njim\n"), 0o644))
	assert.Must(t, os.WriteFile(s.conf, fmt.Appendf(nil, "POSTOFFICE=%s\nMAILBOX=%s\nLOCALUSERS=%s\nHOSTNAME=mta.example.org\nLOG=text\n",
		s.Dir, strings.ReplaceAll(template, "$MAIL", s.mail), users), 0o644))
	return s
}

const (
	testEnvelope = "from <s@example.org>\nto <r@example.org>\nenv-end\n"
	testHeader   = "Subject: x\n\n"
)

// queue writes a message for jim whose body is written by fill.
func (s *spool) queue(name string, fill func(w io.Writer) error) {
	s.Helper()
	f, err := os.Create(filepath.Join(s.Dir, "queue", name))
	assert.Must(s, err)
	w := bufio.NewWriter(f)
	_, err = w.WriteString(testEnvelope + testHeader)
	assert.Must(s, err, fill(w), w.Flush(), f.Close())
	jim := Rcpts("local", "jim@example.org", "jim@example.org")
	jim[0].Privilege = strconv.Itoa(os.Getuid())
	m := Message{Sender: "s@example.org", Header: "Received: here\nSubject: x\n", Rcpts: jim}
	s.Specify(name, m, int64(len(testEnvelope)+len(testHeader)))
}

func text(body string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, body); return err }
}

// command prepares ta-mailbox to run in transport/.
func (s *spool) command(conf string, args ...string) *exec.Cmd {
	s.Helper()
	self, err := os.Executable()
	assert.Must(s, err)
	cmd := exec.Command(self, args...)
	cmd.Dir = filepath.Join(s.Dir, "transport")
	cmd.Env = []string{envMain + "=1", "ZCONFIG=" + conf}
	return cmd
}

func (s *spool) start(args ...string) *Process {
	s.Helper()
	return Start(s, s.command(s.conf, args...))
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
			cmd := good.command(file, c.args...)
			if c.dir != "" {
				cmd.Dir = c.dir
			}
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
		for range 3 {
			p.Answers()
		}
		assert.Must(t, p.Process.Signal(sig))
		assert.Equal(t, p.End(), 0, "exit code after %v; log: %s", sig, &p.Log)
		if entries, err := os.ReadDir(filepath.Join(s.Dir, "owners")); err != nil || len(entries) != 0 {
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
	agents := []*Process{s.start("--slots=4"), s.start("--slots=4")}
	for i, p := range agents {
		var jobs strings.Builder
		for n := i * each; n < (i+1)*each; n++ {
			name := strconv.Itoa(n + 1)
			s.queue(name, text(body(n)))
			fmt.Fprintf(&jobs, "%s\tjim@example.org\n", name)
		}
		p.Say(jobs.String())
	}
	for _, p := range agents {
		for range 4 {
			p.Answers()
		}
		for range each {
			Only(t, p.Answers(), "ok3", "")
		}
		p.In.Close()
		assert.Equal(t, p.End(), 0, "exit code; log: %s", &p.Log)
	}
	b, err := os.ReadFile(filepath.Join(s.mail, "jim"))
	assert.Must(t, err)
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
