package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/ui/top"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
	"zmailer/test/suite"
)

// zmctl history has the events of a message in their order, and zmctl why the operations that
// hold it, with and without a scheduler, and after its end.
func TestHistoryAndWhyOfAMessage(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	wantIn(t, zmctl(t, s, "why", id), "451 4.2.1 later")
	zmctl(t, s, "hold", "--until", "3h", "--reason", "for a test", id)
	wantIn(t, zmctl(t, s, "why", id), "<one@sink.example>, <two@sink.example>", `"for a test"`, "zmctl release "+id)
	zmctl(t, s, "freeze", id)
	wantIn(t, zmctl(t, s, "why", id), "zmctl thaw "+id)
	var events []string
	for line := range strings.Lines(zmctl(t, s, "history", "--json", id)) {
		var h struct{ ID, Event, Text string }
		if err := json.Unmarshal([]byte(line), &h); err != nil || h.ID != id || h.Text == "" {
			t.Errorf("%s: %v, %+v", line, err, h)
		}
		events = append(events, h.Event)
	}
	for _, want := range []string{"deferred", "hold", "frozen"} {
		if !slices.Contains(events, want) {
			t.Errorf("got the events %q, want %s among them", events, want)
		}
	}
	stop(t, s)
	wantIn(t, zmctl(t, s, "why", id), "zmctl thaw "+id)
	restart(t, s)
	close(sink.open)
	zmctl(t, s, "thaw", id)
	zmctl(t, s, "release", id)
	awaitEmpty(t, s)
	wantIn(t, zmctl(t, s, "history", id), "3 delivered")
	wantIn(t, zmctl(t, s, "why", id), "3 delivered")
	exits(t, s, 1, "zmctl", "why", "S1A1")
}

// onTerminal starts a program on a terminal of its own.
func onTerminal(t *testing.T, cmd *exec.Cmd) (keys func(text string), shown *logtest.Buffer) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: " + err.Error())
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	assert.Must(t, err)
	assert.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	assert.Must(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	assert.Must(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = tty.Close()
	assert.Must(t, err)
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	shown = &logtest.Buffer{}
	go func() { _, _ = io.Copy(shown, master) }() // it ends with the program
	return func(text string) {
		_, err := io.WriteString(master, text)
		assert.Must(t, err)
	}, shown
}

// Z30: zmctl top prints samples as JSON. On a terminal it runs until the operator leaves it, and
// then restores the screen.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	var x top.Sample
	assert.Must(t, json.Unmarshal([]byte(zmctl(t, s, "top", "--json", "--interval", "100ms")), &x))
	if x.Scheduler == nil || !x.Router || len(x.Threads) != 1 || x.Threads[0].Recipients != 2 || x.Seconds <= 0 {
		t.Errorf("got %+v", x)
	}
	exits(t, s, 64, "zmctl", "top", "--interval", "1ms")
	exits(t, s, 64, "zmtop") // which wants a terminal
	cmd := s.Command("zmctl", "top", "--interval", "200ms")
	// A terminal of this kind is not queried for its colours; nothing would answer here.
	cmd.Env = append(cmd.Env, "TERM=tmux-256color", "NO_COLOR=1")
	keys, shown := onTerminal(t, cmd)
	shows := func(want string) {
		t.Helper()
		awaitState(t, want+" on the terminal", func() bool { return strings.Contains(shown.String(), want) })
	}
	shows("> smtp/" + host)
	wantIn(t, shown.String(), "\x1b[?1049h")
	keys("\r")
	shows("one@sink.example")
	wantIn(t, shown.String(), id)
	keys("q")
	assert.Must(t, cmd.Wait())
	shows("\x1b[?1049l")
}

// M39: zmctl thread lists what the scheduler waits for; without a scheduler it fails.
func TestThreadsOfTheRunningScheduler(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	one := zmctl(t, s, "thread", "smtp/"+host)
	wantIn(t, one, id, "one@sink.example", "two@sink.example")
	if strings.Contains(one, "ok@sink.example") {
		t.Errorf("a recipient that has the message is listed: %s", one)
	}
	var info mailq.ThreadInfo
	line, _, _ := strings.Cut(zmctl(t, s, "thread", "--json"), "\n")
	if err := json.Unmarshal([]byte(line), &info); err != nil || info.Messages != 1 || info.Recipients != 2 {
		t.Errorf("got %+v, %v", info, err)
	}
	exits(t, s, 1, "zmctl", "thread", "smtp/none.example")
	stop(t, s)
	exits(t, s, 1, "zmctl", "thread")
}

// followed are the events that zmctl events --follow prints.
type followed struct {
	t   *testing.T
	out *logtest.Buffer
}

// events parses what has come so far.
func (f *followed) events() (list []map[string]any) {
	f.t.Helper()
	text := f.out.String()
	for line := range strings.Lines(text[:strings.LastIndexByte(text, '\n')+1]) {
		e := map[string]any{}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			f.t.Errorf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

func (f *followed) has(event, rcpt string) bool {
	f.t.Helper()
	return slices.ContainsFunc(f.events(), func(e map[string]any) bool { return e["event"] == event && (rcpt == "" || e["rcpt"] == rcpt) })
}

func (f *followed) wait(event, rcpt string) {
	f.t.Helper()
	awaitState(f.t, "event "+event+" "+rcpt, func() bool { return f.has(event, rcpt) })
}

// A21: zmctl events --follow prints a message's events from its acceptance to its end, with the
// operations on it; the journal has the same.
func TestEventsFromAcceptanceToTheEnd(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	cmd := s.Command("zmctl", "events", "--follow", "--json")
	f := &followed{t, &logtest.Buffer{}}
	cmd.Stdout = f.out
	assert.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	event(t, s, "query-served")
	// It follows when it has printed something that happens again and again.
	awaitState(t, "first event", func() bool {
		_, _ = call(t, s, "zmctl", "etrn", "probe.example") // nothing waits there
		return f.has("etrn", "")
	})
	id, _ := waits(t, s)
	f.wait("spooled", "")
	f.wait("routed", "")
	f.wait("delivered", "ok@sink.example")
	f.wait("deferred", "one@sink.example")
	yes(t, s, "hold", "--to", "one@*")
	f.wait("held", "one@sink.example")
	yes(t, s, "release", "--to", "one@*")
	f.wait("released", "one@sink.example")
	close(sink.open)
	yes(t, s, "retry", "--all")
	f.wait("delivered", "one@sink.example")
	f.wait("finished", "")
	others := []any{"etrn", "lost", "alarm-raised", "alarm-cleared"}
	for _, e := range f.events() {
		if e["id"] != id && !slices.Contains(others, e["event"]) {
			t.Errorf("got %v of another message than %s", e, id)
		}
	}
	wantIn(t, zmctl(t, s, "events", "--json", id), `"event":"spooled"`, `"event":"routed"`, `"event":"finished"`, `"by":"ledger"`)
}

// Del8: of a long queue zmctl status prints the counts of the running scheduler, which are those of
// the files. Without a scheduler it counts the files itself.
func TestDel8StatusTakesTheSchedulersCounts(t *testing.T) {
	t.Parallel()
	const messages = 20_001 // one more than status counts file by file
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = "*/*\n\tqueueonly interval=1h maxta=1\n\tcommand=\"ta-smtp $channel\"\n"
	})
	for i := range messages {
		plantQueued(t, s, strconv.Itoa(i)+"@a.example")
	}
	begin(t, s)
	event(t, s, "scanned", "messages", strconv.Itoa(messages))
	type counts struct {
		Directories []struct {
			Name   string
			States []struct {
				State string
				Files int
			}
		}
		Counts *struct{ Messages, Recipients int } `json:"scheduler_counts"`
	}
	status := func() (got counts, queued map[string]int) {
		t.Helper()
		said, code := call(t, s, "zmctl", "status", "--json")
		if err := json.Unmarshal([]byte(said), &got); err != nil || code > 1 { // 1: there are alarms
			t.Fatalf("exit code %d, %v: %s", code, err, abbreviate(said))
		}
		queued = map[string]int{}
		for _, d := range got.Directories {
			for _, g := range d.States {
				if g.State == "queued" {
					queued[d.Name] = g.Files
				}
			}
		}
		return got, queued
	}
	got, byScheduler := status()
	if got.Counts == nil || got.Counts.Messages != messages || got.Counts.Recipients != messages {
		t.Fatalf("got %+v, want the scheduler's counts", got.Counts)
	}
	assert.Must(t, s.Stop())
	got, byFiles := status()
	if got.Counts != nil {
		t.Errorf("got %+v, the counts of a scheduler that does not run", got.Counts)
	}
	for _, dir := range []string{"queue", "transport"} {
		if byScheduler[dir] != messages || byFiles[dir] != messages {
			t.Errorf("%s: the scheduler counts %d, the files are %d, want %d", dir, byScheduler[dir], byFiles[dir], messages)
		}
	}
}

// plantQueued makes a message as a router hands it over, without its fsyncs.
func plantQueued(t *testing.T, s *suite.Suite, address string) {
	t.Helper()
	const envelope, header = "channel error\nto x\nenv-end\nFrom: a@b\n\n", "From: a@b\n"
	work := path(s, "router/..plant")
	assert.Must(t, os.WriteFile(work, []byte(envelope+"Body.\n"), 0o600))
	var st unix.Stat_t
	assert.Must(t, unix.Stat(work, &st))
	name := strconv.FormatUint(st.Ino, 10)
	assert.Must(t, os.Rename(work, path(s, "queue/"+name)))
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(envelope))})
	w.Group(workspec.Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1"},
		[]workspec.Recipient{{Channel: "smtp", Host: "a.example", Address: address, Privilege: "1"}}, []byte(header))
	assert.Must(t, w.Close())
	assert.Must(t, os.WriteFile(work, b.Bytes(), 0o600))
	assert.Must(t, os.Rename(work, path(s, "transport/"+name)))
}
