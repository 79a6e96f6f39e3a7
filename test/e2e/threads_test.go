package e2e

import (
	"bufio"
	"encoding/json"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/wire/mailq"
	"zmailer/test/suite"
)

// M39: a person sees what the scheduler waits for; without one he is told so.
func TestThreadsOfTheRunningScheduler(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, name := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	wantIn(t, zmctl(t, s, "thread"), "THREAD", "smtp/"+host, "2 recipients in ")
	one := zmctl(t, s, "thread", "smtp/"+host)
	wantIn(t, one, "smtp/"+host, id, "one@sink.example", "two@sink.example", "1 attempt", "next in ")
	if strings.Contains(one, "ok@sink.example") {
		t.Errorf("who was delivered is shown: %s", one)
	}
	var info mailq.ThreadInfo
	if err := json.Unmarshal([]byte(strings.Split(zmctl(t, s, "thread", "--json"), "\n")[0]), &info); err != nil || info.Messages != 1 || info.Recipients != 2 {
		t.Errorf("got %+v, %v", info, err)
	}
	said, code := call(t, s, "zmctl", "thread", "smtp/none.example")
	if code != 1 {
		t.Errorf("exit code %d for a thread that is none", code)
	}
	wantIn(t, said, "no such thread")
	coloured(t, s, host, id)
	classic(t, s.PostOffice(), name, host)
	stop(t, s)
	said, code = call(t, s, "zmctl", "thread")
	if code != 1 {
		t.Errorf("exit code %d without a scheduler", code)
	}
	wantIn(t, said, "no scheduler", "zmctl queue")
}

// coloured asks with colours and without: they are all that differs, also in what router
// and scheduler print.
func coloured(t *testing.T, s *suite.Suite, host, id string) {
	t.Helper()
	const red, yellow, bold, end = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
	code := regexp.MustCompile("\x1b\\[[0-9]*m")
	lapsed := regexp.MustCompile(`\b[0-9.]+[smhd][0-9smhd.]*\b *| {2,}`)
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"thread", []string{bold + "THREAD" + end, bold + "smtp/" + host + end}},
		{"thread smtp/" + host, []string{bold + id + end, yellow + "waiting, 1 attempt"}},
		{"route nobody@sink.example", []string{bold + "<nobody@sink.example>" + end, "=> " + bold + "smtp!"}},
		{"simulate --down " + host + " --until 1h", []string{bold + "channel/host ", red + "       2" + end}},
		{"events", []string{bold + id + end}},
		{"why " + id, []string{bold + id + end, yellow}},
	} {
		args := strings.Fields(tt.args)
		plain := zmctl(t, s, args...)
		got := zmctl(t, s, append([]string{"--color", "always"}, args...)...)
		wantIn(t, got, tt.want...)
		steady := func(text string) string { return lapsed.ReplaceAllString(code.ReplaceAllString(text, ""), " ") }
		if strings.Contains(plain, "\x1b") || tt.args[0] != 's' && steady(got) != steady(plain) {
			t.Errorf("zmctl %s: got\n%s\nwithout colours\n%s", tt.args, steady(got), steady(plain))
		}
	}
}

// classic says, byte for byte, what ZMailer's mailq says without -Q, and reads the answer
// as that does.
func classic(t *testing.T, dir, name, want string) {
	t.Helper()
	conn, err := net.Dial("unix", dir+"/.mailq")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(conn)
	line := func() string {
		t.Helper()
		if !in.Scan() {
			t.Fatalf("the scheduler hung up: %v", in.Err())
		}
		return in.Text()
	}
	say := func(text string) {
		t.Helper()
		if _, err := conn.Write([]byte(text + "\n")); err != nil {
			t.Fatal(err)
		}
		if got := line(); !strings.HasPrefix(got, "+") {
			t.Fatalf("%s: %s", text, got)
		}
	}
	if got := line(); !strings.HasPrefix(got, "version zmailer 2.0") {
		t.Fatalf("it begins with %q", got)
	}
	say("AUTH nobody " + mailq.Authenticator(line(), "nobody"))
	say("SHOW QUEUE THREADS2")
	channel, rest, _ := strings.Cut(line(), "\t")
	host, _, _ := strings.Cut(rest, "\t")
	if got := line(); got != "." || channel != "smtp" || host != want {
		t.Errorf("got thread %s/%s, then %q", channel, host, got)
	}
	say("SHOW THREAD " + channel + " " + host)
	if got := line(); !strings.HasPrefix(got, "#"+channel+"/"+host+"/0 ") {
		t.Errorf("got %q, want the thread's line", got)
	}
	for i, want := range []string{"0", "1"} {
		f := strings.Split(line(), "\t")
		if len(f) != 10 || f[0] != name || f[1] != want || f[2] != "<bob@mta.example>" || f[7] != "1" || !strings.HasPrefix(f[9], "4") {
			t.Errorf("recipient %d: %q", i, f)
		}
	}
	if got := line(); got != "." {
		t.Errorf("got %q, want the end", got)
	}
	say("QUIT")
}

// following is a zmctl events --follow.
type following struct {
	t    *testing.T
	mu   sync.Mutex
	list []map[string]any
	more chan struct{}
}

func (f *following) count(event, rcpt string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.list {
		if e["event"] == event && (rcpt == "" || e["rcpt"] == rcpt) {
			n++
		}
	}
	return n
}

func (f *following) wait(n int, event, rcpt string) {
	f.t.Helper()
	deadline := time.After(patience)
	for f.count(event, rcpt) < n {
		select {
		case <-f.more:
		case <-deadline:
			f.t.Fatalf("%d events %s %s, want %d: %v", f.count(event, rcpt), event, rcpt, n, f.list)
		}
	}
}

// A21: who follows sees a message from its acceptance to its end, orders among it, and
// goes on over a restart of the scheduler; the journal says the same.
func TestEventsFromAcceptanceToTheEnd(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	cmd := s.Command("zmctl", "events", "--follow", "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &following{t: t, more: make(chan struct{}, 1)}
	var ended sync.WaitGroup
	ended.Go(func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			e := map[string]any{}
			if err := json.Unmarshal(in.Bytes(), &e); err != nil {
				t.Errorf("%q: %v", in.Text(), err)
			}
			f.mu.Lock()
			f.list = append(f.list, e)
			f.mu.Unlock()
			select {
			case f.more <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		ended.Wait()
		_ = cmd.Wait()
	})
	event(t, s, "query-served")
	// It is there when it tells of something that happens again and again.
	for f.count("etrn", "") == 0 {
		conn, err := net.Dial("unix", s.PostOffice()+"/.mailq")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("ETRN probe.example\nQUIT\n")); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		select {
		case <-f.more:
		case <-time.After(100 * time.Millisecond):
		}
	}
	id, _ := waits(t, s)
	f.wait(1, "spooled", "")
	f.wait(1, "routed", "")
	f.wait(1, "delivered", "ok@sink.example")
	f.wait(1, "deferred", "one@sink.example")
	yes(t, s, "hold", "--to", "one@*")
	f.wait(1, "held", "one@sink.example")
	yes(t, s, "release", "--to", "one@*")
	f.wait(1, "released", "one@sink.example")
	close(sink.open)
	yes(t, s, "retry", "--all")
	f.wait(1, "delivered", "one@sink.example")
	f.wait(1, "finished", "")
	f.mu.Lock()
	for _, e := range f.list {
		if e["event"] != "etrn" && e["event"] != "lost" && e["id"] != id && e["event"] != "alarm-raised" && e["event"] != "alarm-cleared" {
			t.Errorf("got %v of another message than %s", e, id)
		}
	}
	f.mu.Unlock()
	journal := zmctl(t, s, "events", id)
	wantIn(t, journal, id+"  spooled", id+"  routed", id+"  finished", "3 delivered")
	wantIn(t, zmctl(t, s, "events", "--json", id), `"event":"finished"`, `"by":"ledger"`)
}
