package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// old is another mail system whose queue is taken.
type old struct {
	name   string
	here   func() bool
	make   func(dir, listen, relay string, routes map[string]string) (cmd func() (*exec.Cmd, error), queue string, hold func(t *testing.T))
	calm   func(t *testing.T, queue string) bool // nothing is on its way any more
	golden string                                // where a copy of its queue is kept for tests without it
}

// oldSystems returns those of Debian; PEERS names the directory of unpacked packages.
func oldSystems() []old {
	root := os.Getenv("PEERS")
	return []old{{
		name: "postfix", golden: "postfix/testdata/queue",
		here: func() bool { _, err := exec.LookPath(peer.PostfixMaster); return err == nil },
		make: func(dir, listen, relay string, routes map[string]string) (func() (*exec.Cmd, error), string, func(t *testing.T)) {
			p := &peer.Postfix{Dir: dir, Listen: listen, RelayHost: relay, Routes: routes, Settings: []string{"smtp_tls_security_level = none"}}
			return p.Command, p.Queue(), func(t *testing.T) { postfixHolds(t, p) }
		},
		calm: func(t *testing.T, queue string) bool {
			return len(under(t, queue, "deferred")) == 4 && len(under(t, queue, "active", "incoming", "maildrop")) == 0
		},
	}, {
		name: "exim", golden: "exim/testdata/spool",
		here: func() bool { return peer.FindExim(root) },
		make: func(dir, listen, relay string, routes map[string]string) (func() (*exec.Cmd, error), string, func(t *testing.T)) {
			p := &peer.Exim{Dir: dir, Root: root, Listen: listen, Relay: relay, Routes: routes, Extra: []string{"dsn_advertise_hosts = *"}}
			return p.Command, p.Spool(), func(t *testing.T) { eximFreezes(t, p) }
		},
		calm: eximIsCalm,
	}, {
		name: "opensmtpd", golden: "opensmtpd/testdata/spool",
		here: func() bool { return peer.FindOpenSMTPD(root) },
		make: func(dir, listen, relay string, routes map[string]string) (func() (*exec.Cmd, error), string, func(t *testing.T)) {
			p := &peer.OpenSMTPD{Dir: dir, Root: root, Listen: listen, Relay: relay, Routes: routes}
			return p.Command, p.Spool(), nil
		},
		calm: func(t *testing.T, queue string) bool {
			envelopes := 0
			for _, name := range under(t, queue, "queue") {
				if b, err := os.ReadFile(name); err == nil && len(filepath.Base(name)) == 16 && bytes.Contains(b, []byte("last-try:")) {
					envelopes++
				}
			}
			return envelopes == 5 && len(under(t, queue, "incoming")) == 0
		},
	}}
}

// under lists the files below some directories of a queue.
func under(t *testing.T, queue string, dirs ...string) []string {
	t.Helper()
	var list []string
	for _, d := range dirs {
		err := filepath.WalkDir(filepath.Join(queue, d), func(name string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				list = append(list, name)
			}
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
		assert.Must(t, err)
	}
	return list
}

func postfixHolds(t *testing.T, p *peer.Postfix) {
	for _, name := range under(t, p.Queue(), "deferred") {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte("held@far.example")) {
			if out, err := exec.Command("/usr/sbin/postsuper", "-c", p.Config(), "-h", filepath.Base(name)).CombinedOutput(); err != nil {
				t.Fatalf("postsuper: %v\n%s", err, out)
			}
			return
		}
	}
	t.Fatal("nothing is there to hold")
}

func eximFreezes(t *testing.T, p *peer.Exim) {
	for _, name := range under(t, p.Spool(), "input") {
		id, head := strings.CutSuffix(filepath.Base(name), "-H")
		if b, err := os.ReadFile(name); err == nil && head && bytes.Contains(b, []byte("held@far.example")) {
			if out, err := p.Inside("exim4", "-Mf", id).CombinedOutput(); err != nil {
				t.Fatalf("exim -Mf: %v\n%s", err, out)
			}
			return
		}
	}
	t.Fatal("nothing is there to freeze")
}

// eximIsCalm reports whether each message was tried, and the results are in the heads.
func eximIsCalm(t *testing.T, queue string) bool {
	heads, done := 0, false
	for _, name := range under(t, queue, "input") {
		switch {
		case strings.HasSuffix(name, "-H"):
			if b, err := os.ReadFile(name); err == nil && !bytes.Contains(b, []byte("-deliver_firsttime")) {
				heads++
				done = done || bytes.Contains(b, []byte("NN got@special.example"))
			}
		case strings.HasSuffix(name, "-J"):
			return false
		}
	}
	return heads == 4 && done
}

// dictate speaks SMTP, a command a line; after DATA it sends the message.
func dictate(t *testing.T, addr string, commands ...string) {
	t.Helper()
	k := connect(t, addr)
	for _, line := range commands {
		if line == "DATA" {
			k.say(line, "354")
			line = string(stuffed(letter)) + "."
		}
		k.say(line, "2")
	}
}

// Real queues: what waits in a Postfix, an Exim and an OpenSMTPD goes out from here, each
// open recipient once, with sender, DSN parameters and content; recipients that have it do not
// get it again; held messages are in freezer/.
func TestQueueOfAnotherSystemGoesOutFromHere(t *testing.T) {
	needRoot(t)
	for _, o := range oldSystems() {
		t.Run(o.name, func(t *testing.T) {
			if !o.here() {
				t.Skip(o.name + " is not here")
			}
			queue := fillOld(t, o)
			if dir := os.Getenv("UPDATE_QUEUES"); dir != "" {
				keepQueue(t, queue, filepath.Join("../../internal/admin/importer", o.golden))
			}
			takeOld(t, o, queue)
		})
	}
}

// fillOld runs the other system until its mail waits, and stops it.
func fillOld(t *testing.T, o old) (queue string) {
	dir, err := os.MkdirTemp("", "old-") // which other users may enter
	assert.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// An address of its own: OpenSMTPD puts a host aside whose other port refuses.
	special := newSink(t, &peer.Sink{Listen: "127.0.0.2:0"})
	listen, err := peer.FreeAddr()
	assert.Must(t, err)
	dead, err := peer.FreeAddr()
	assert.Must(t, err)
	host, port := split(t, dead)
	make, queue, hold := o.make(dir, listen, "["+host+"]:"+port, map[string]string{"special.example": special.RouteHost()})
	cmd, err := make()
	assert.Must(t, err)
	log, err := os.Create(filepath.Join(dir, "said"))
	assert.Must(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	assert.Must(t, cmd.Start())
	log.Close()
	stopped := false
	end := func() {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // by our signal
		stuck.Stop()
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s said:\n%s", o.name, said[max(0, len(said)-3000):])
		}
	})
	assert.Must(t, peer.AwaitListener(listen, time.Minute))
	never := " NOTIFY=NEVER"
	if o.name == "opensmtpd" {
		never = "" // it rejects that after another recipient's NOTIFY
	}
	dictate(t, listen,
		"MAIL FROM:<bob@old.example>"+" RET=HDRS ENVID=QQ+2B314",
		"RCPT TO:<one@far.example>"+" NOTIFY=SUCCESS,DELAY ORCPT=rfc822;orig+2Bx@far.example",
		"RCPT TO:<two@far.example>"+never, "RCPT TO:<got@special.example>", "DATA",
		"MAIL FROM:<>", "RCPT TO:<null@far.example>", "DATA",
		"MAIL FROM:<bob@old.example>", "RCPT TO:<held@far.example>", "DATA",
		`MAIL FROM:<bob@old.example>`, quotedRcpt(o), "DATA", "QUIT")
	assert.Must(t, special.Wait(1, patience))
	awaitState(t, "mail that waits in "+o.name, func() bool { return o.calm(t, queue) })
	refuseRunning(t, o, queue)
	if hold != nil {
		hold(t)
	}
	end()
	return queue
}

// quotedRcpt returns a recipient with a blank, which OpenSMTPD takes none of.
func quotedRcpt(o old) string {
	if o.name == "opensmtpd" {
		return "RCPT TO:<john.doe@far.example>"
	}
	return `RCPT TO:<"john doe"@far.example>`
}

// refuseRunning wants that nothing is taken from a system that works.
func refuseRunning(t *testing.T, o old, queue string) {
	t.Helper()
	s := prepare(t, nil, nil)
	out, err := s.Command("zmctl", "import", o.name, queue).CombinedOutput()
	var code *exec.ExitError
	if !errors.As(err, &code) || code.ExitCode() != 64 || !strings.Contains(string(out), "stop it first") {
		t.Errorf("%s runs: %v\n%s", o.name, err, out)
	}
}

// taken is one line of zmctl import --json.
type takenLine struct {
	Did        string
	Sender     *string
	Recipients []string
	Held       string
	Notes      []string
	Why        string
	Moved      bool
}

func importJSON(t *testing.T, s *suite.Suite, args ...string) []takenLine {
	t.Helper()
	out, err := s.Command("zmctl", append([]string{"import"}, args...)...).Output()
	if err != nil {
		t.Fatalf("zmctl import %q: %v\n%s", args, err, out)
	}
	var list []takenLine
	for line := range strings.Lines(string(out)) {
		var l takenLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		list = append(list, l)
	}
	return list
}

// did counts what became of messages: "taken 4".
func did(list []takenLine) string {
	n := map[string]int{}
	for _, l := range list {
		n[l.Did]++
	}
	var words []string
	for d, k := range n {
		words = append(words, fmt.Sprintf("%s %d", d, k))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func takeOld(t *testing.T, o old, queue string) {
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, nil)
	before := under(t, queue, ".")
	if got := did(importJSON(t, s, o.name, "--dry-run", "--json", queue)); got != "would 4" {
		t.Fatalf("dry run: %s", got)
	}
	list := importJSON(t, s, o.name, "--json", queue)
	if did(list) != "taken 4" {
		t.Fatalf("got %+v", list)
	}
	if after := under(t, queue, "."); !slices.Equal(before, after) {
		t.Errorf("without --move: %q became %q", before, after)
	}
	begin(t, s)
	want := 4
	if o.name != "opensmtpd" {
		want = 3
	}
	assert.Must(t, sink.Wait(want, patience))
	assert.Equal(t, did(importJSON(t, s, o.name, "--json", queue)), "before 4")
	if o.name != "opensmtpd" {
		if out, err := s.Command("zmctl", "freezer", "thaw", "--yes", "import").CombinedOutput(); err != nil {
			t.Fatalf("thaw: %v\n%s", err, out)
		}
		assert.Must(t, sink.Wait(4, patience))
	}
	compareOld(t, o, sink.Messages())
	awaitEmpty(t, s)
	if got := importJSON(t, s, o.name, "--move", "--json", queue); did(got) != "before 4" || !got[0].Moved {
		t.Errorf("a third import: %+v", got)
	}
	left := under(t, queue, map[string][]string{
		"postfix": {"active", "deferred", "hold", "incoming", "maildrop", "defer", "bounce", "trace"}, "exim": {"input", "msglog"}, "opensmtpd": {"queue"},
	}[o.name]...)
	if len(left) > 0 {
		t.Errorf("after --move the old queue has %q", left)
	}
	assert.Equal(t, len(importJSON(t, s, o.name, "--json", queue)), 0)
}

// compareOld wants what was accepted there, and nothing else.
func compareOld(t *testing.T, o old, got []*peer.Message) {
	t.Helper()
	var lines []string
	_, body, _ := strings.Cut(letter, "\n\n")
	body = strings.ReplaceAll(body, "\n", "\r\n")
	for _, m := range got {
		rcpts := slices.Clone(m.Commands[1:])
		slices.Sort(rcpts)
		lines = append(lines, strings.Join(append([]string{m.Commands[0]}, rcpts...), " | "))
		if !bytes.HasSuffix(m.Data, []byte("\r\n\r\n"+body)) {
			t.Errorf("%s: got %q", m.Commands[1], abbreviate(string(m.Data)))
		}
		assert.Equal(t, bytes.Count(m.Data, []byte("Received:")), 2, m.Commands[1])
	}
	slices.SortFunc(lines, cmp.Compare)
	golden := filepath.Join("testdata", "import-"+o.name+".golden")
	text := regexpSize.ReplaceAllString(strings.Join(lines, "\n")+"\n", "")
	if os.Getenv("UPDATE_QUEUES") != "" {
		assert.Must(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	want := assert.Get(os.ReadFile(golden))(t)
	assert.Equal(t, text, string(want))
}

// regexpSize is what depends on lengths of names and dates.
var regexpSize = regexp.MustCompile(` SIZE=\d+`)

// keepQueue keeps a copy of the messages of a queue for tests without its system.
func keepQueue(t *testing.T, queue, to string) {
	t.Helper()
	assert.Must(t, os.RemoveAll(to))
	for _, name := range under(t, queue, "active", "deferred", "hold", "defer", "input", "queue") {
		rel := assert.Get(filepath.Rel(queue, name))(t)
		b := assert.Get(os.ReadFile(name))(t)
		info := assert.Get(os.Stat(name))(t)
		mode := os.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		file := filepath.Join(to, rel)
		assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, b, mode)))
	}
}
