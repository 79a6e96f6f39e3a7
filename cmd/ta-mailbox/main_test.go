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

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/config"
	"zmailer/internal/taproto"
	"zmailer/internal/workspec"
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
	if err != nil {
		s.Fatal(err)
	}
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

	var b bytes.Buffer
	spec := workspec.NewWriter(&b)
	spec.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(testEnvelope) + len(testHeader))})
	spec.Group(workspec.Sender{Channel: "local", Host: "s", Address: "s@example.org", Privilege: "1"},
		[]workspec.Recipient{{Channel: "local", Host: "jim@example.org", Address: "jim@example.org", Privilege: ownUID()}},
		[]byte("Received: here\nSubject: x\n"))
	s.must(spec.Close())
	s.must(os.WriteFile(filepath.Join(s.dir, "transport", name), b.Bytes(), 0o600))
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
	p := &process{T: s.T, cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 1000)}
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

// What ZMailer's own mailbox agent and its scheduler said to each other: ours says
// the same, but for the text of an answer.
func TestRecordedConversationIsReplayed(t *testing.T) { // M32
	f, err := os.Open(filepath.Join("testdata", "mailbox-1202.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	steps, err := taproto.ReadTranscript(f)
	if err != nil {
		t.Fatal(err)
	}
	s := newSpool(t, "$MAIL/%u")
	s.plant(steps)
	p := s.start()
	spoken := 0
	for _, step := range steps {
		switch step.Kind {
		case taproto.SchedulerSaid:
			p.say(step.Said)
		case taproto.AgentSaid:
			for _, want := range step.Lines() {
				spoken++
				if got := p.hear(); fixed(got) != fixed(want) {
					t.Errorf("line %d: got %q, want %q", spoken, got, want)
				}
			}
		}
	}
	if got := p.end(); got != 0 {
		t.Errorf("exit code: got %d, want 0; standard error:\n%s", got, p.stderr.String())
	}
	// Two messages for root, of which one is of ZMailer's own making, three for a file.
	for name, want := range map[string]int{"root": 2, "archive": 3} {
		b, err := os.ReadFile(filepath.Join(s.mail, name))
		s.must(err)
		if got := strings.Count("\n"+string(b), "\nFrom s"); got != want {
			t.Errorf("%s: got %d messages, want %d:\n%s", name, got, want, b)
		}
	}
}

// fixed is a line without the free text of an answer.
func fixed(line string) string {
	if i := strings.Index(line, "\tok3 "); i >= 0 {
		return line[:i+len("\tok3 ")]
	}
	return line
}

// plant writes a message and a specification for each job of a conversation, with
// the recipient at the offset that the answer names.
func (s *spool) plant(steps []taproto.Step) {
	s.Helper()
	var name, host string
	for _, step := range steps {
		for _, line := range step.Lines() {
			switch {
			case step.Kind == taproto.SchedulerSaid && line != "#idle":
				name, host, _ = strings.Cut(line, "\t")
			case step.Kind == taproto.AgentSaid && line != "#hungry":
				said := taproto.ParseLine([]byte(line))
				if said.Kind != taproto.LineAnswer || !strings.HasSuffix(name, "/"+strconv.FormatUint(said.Answer.Number, 10)) {
					s.Fatalf("got line %q for %q", line, name)
				}
				s.plantOne(name, host, said.Answer.Offset)
			}
		}
	}
}

func (s *spool) plantOne(name, host string, offset int64) {
	s.Helper()
	number := filepath.Base(name)
	message := []byte(testEnvelope + testHeader + "body\n")
	address := host
	if host == "file.nobody" {
		address = filepath.Join(s.mail, "archive")
	}
	before := fmt.Sprintf("@ 0x00000007\ni %s\no %d\nl ", number, len(testEnvelope)+len(testHeader))
	sender := "\ns local s@example.org s@example.org 1\n"
	pad := int(offset) - len(before) - len(sender)
	if pad < 0 {
		s.Fatalf("%s: no room before offset %d", name, offset)
	}
	spec := []byte(before + strings.Repeat("x", pad) + sender +
		"r           local " + host + " " + address + " " + ownUID() + "\nm\nReceived: here\nSubject: x\n\n")
	if number == "10117779" {
		// This one is there as ZMailer wrote it.
		var err1, err2 error
		message, err1 = os.ReadFile(filepath.Join("testdata", "02-multi", "router-file"))
		spec, err2 = os.ReadFile(filepath.Join("testdata", "02-multi", "transport-before"))
		s.must(err1)
		s.must(err2)
	}
	for dir, b := range map[string][]byte{"queue": message, "transport": spec} {
		s.must(os.MkdirAll(filepath.Join(s.dir, dir, filepath.Dir(name)), 0o755))
		s.must(os.WriteFile(filepath.Join(s.dir, dir, name), b, 0o600))
	}
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
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "zmailer.conf")
			if err := os.WriteFile(file, append(conf, c.conf...), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], c.args...)
			cmd.Dir = c.dir
			if c.dir == "" {
				cmd.Dir = filepath.Join(good.dir, "transport")
			}
			cmd.Env = []string{envMain + "=1", "ZCONFIG=" + file}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, _ := cmd.Output()
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code: got %d, want %d", got, c.code)
			}
			if !strings.Contains(stderr.String(), c.says) {
				t.Errorf("standard error: got %q, want %q in it", stderr.String(), c.says)
			}
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
			if got := p.hear(); got != "#hungry" {
				t.Errorf("got %q, want #hungry", got)
			}
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
			case line != "#hungry":
				t.Errorf("got %q, want ok3", line)
				done++
			}
		}
		if got := p.end(); got != 0 {
			t.Errorf("exit code: got %d, want 0; standard error:\n%s", got, p.stderr.String())
		}
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
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("messages, got - want +:\n%.3000s", diff)
	}
	if _, err := os.Stat(filepath.Join(s.mail, "jim.lock")); err == nil {
		t.Error("the dot lock is left")
	}
}
