package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// The test program is an agent, or a writer, if these are set.
const (
	envAgent  = "AGENT_TEST_POSTOFFICE" // an agent whose deliveries never end
	envWriter = "AGENT_TEST_APPEND"     // DIR NAME N: append 1000 lines of writer N
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envAgent); dir != "" {
		exit(runStuckAgent(dir))
	}
	if args := os.Getenv(envWriter); args != "" {
		exit(appendLines(strings.Fields(args)))
	}
	os.Exit(m.Run())
}

// self returns the path of the test program.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	assert.Must(t, err)
	return path
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runStuckAgent says "# locked" when it has locked, "# sent" when it is about to
// send, and then waits for its end.
func runStuckAgent(dir string) error {
	p, err := postoffice.OpenDir(dir, 0, false)
	if err != nil {
		return err
	}
	o, err := p.Owners.Take("test")
	if err != nil {
		return err
	}
	a := &Agent{PostOffice: p, Owner: o, Name: "stuck"}
	return a.Run(context.Background(), os.Stdin, os.Stdout, 1, deliverFunc(func(_ context.Context, d *Delivery) {
		fmt.Println("# locked")
		if err := d.Sent(); err != nil {
			fmt.Println("#", err)
		}
		fmt.Println("# sent")
		select {}
	}))
}

func appendLines(args []string) error {
	p, err := postoffice.OpenDir(args[0], 0, false)
	if err != nil {
		return err
	}
	return appendEvents(p, args[1], args[2], 1000)
}

// appendEvents appends lines of very different lengths, some beyond a page.
func appendEvents(p *postoffice.PostOffice, name, writer string, count int) error {
	spec, err := p.Queue.Open(name)
	if err != nil {
		return err
	}
	defer spec.Close()
	for i := range count {
		e := workspec.Event{Time: testTime, Event: "test", Attrs: []workspec.Attr{{Key: "writer", Value: writer}, {Key: "n", Value: strconv.Itoa(i)}},
			Text: strings.Repeat(writer, i%97*i%9000)}
		if err := spec.Append(workspec.AppendEvent(nil, &e)); err != nil {
			return err
		}
	}
	return nil
}

func TestEightProcessesAppendWholeLines(t *testing.T) { // M19
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""})
	const writers, count = 8, 1000
	var running []*exec.Cmd
	for w := range writers {
		c := exec.Command(self(t))
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", envWriter, s.Dir, name, w))
		c.Stderr = os.Stderr
		assert.Must(t, c.Start())
		running = append(running, c)
	}
	for _, c := range running {
		assert.NoError(t, c.Wait())
	}
	// A torn last line is ignored, and ended by the next who writes.
	f, err := os.OpenFile(s.Path(name), os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(t, err)
	if _, err := f.WriteString("h 1 0 torn in the mid"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := s.Spec(name); !got.Torn || len(got.History) != writers*count {
		t.Errorf("got torn %v and %d lines, want true and %d", got.Torn, len(got.History), writers*count)
	}
	assert.Must(t, appendEvents(s.PostOffice, name, "8", 1))
	spec := s.Spec(name)
	next := map[string]int{}
	for _, e := range spec.History {
		w := e.Get("writer")
		if e.Event != "test" {
			continue // the torn one, as far as it came
		}
		if want := strconv.Itoa(next[w]); e.Get("n") != want || e.Text != strings.Repeat(w, next[w]%97*next[w]%9000) {
			t.Fatalf("writer %s: got line %s with %d bytes, want line %s", w, e.Get("n"), len(e.Text), want)
		}
		next[w]++
	}
	for w := range writers {
		assert.Equal(t, next[strconv.Itoa(w)], count, "writer %d lines", w)
	}
	if next["8"] != 1 || spec.Torn {
		t.Errorf("after the torn line: got %d lines, torn %v; want 1, false", next["8"], spec.Torn)
	}
}

// An agent is killed in mid-delivery; the next finds its lock, sees that no one
// holds it, records the doubt and delivers.
func TestKilledAgentsLockIsTakenOver(t *testing.T) { // M18
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""})
	c := s.send(t, name, "h")
	// The hangup that the kernel sends to a stopped agent without a scheduler is no end.
	assert.Must(t, c.Process.Signal(syscall.SIGHUP))
	// While it lives, its lock stands.
	assert.Equal(t, s.do(name, "h", give(ok)), "#resync "+name+"\n", "while it lives")
	dead := s.Spec(name).Groups[0].Recipients[0].Owner
	c.kill()
	begin := time.Now()
	got := s.do(name, "h", give(ok))
	if !strings.Contains(got, "\tok3 ") || s.Tags(name) != "+" {
		t.Errorf("after %v: got %q and tags %q, want it delivered", time.Since(begin), got, s.Tags(name))
	}
	h := s.Spec(name).History
	if len(h) != 2 || h[0].Event != workspec.EventSent || h[1].Event != workspec.EventInDoubt || h[1].Get("owner") != strconv.Itoa(dead) {
		t.Errorf("history: got %+v, want sent and in-doubt of owner %d", h, dead)
	}
}
