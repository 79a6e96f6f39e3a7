package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// S21, M49: 3,000 messages from 20 connections arrive once each, and no file and no descriptor is
// left.
func TestLoadArrivesExactlyOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	count := 3000
	if testing.Short() {
		count = 500
	}
	arrivals := make([]int, count+1)
	var mu sync.Mutex
	sink := newSink(t, &peer.Sink{Discard: true, OnMessage: func(m *peer.Message) {
		var n int
		if _, err := fmt.Sscanf(m.Recipients[0], "n%d@", &n); err == nil && n <= count {
			mu.Lock()
			arrivals[n]++
			mu.Unlock()
		}
	}})
	s := start(t, sink, nil)
	body := []byte("Subject: load\r\n\r\n" + strings.Repeat(strings.Repeat("x", 76)+"\r\n", 50))
	src := func(messages int) *peer.Source {
		return &peer.Source{Addr: s.SMTPAddr, Connections: 20, Messages: messages, From: "bob@mta.example",
			To: func(n int) string { return fmt.Sprintf("n%d@sink.example", n) }, Body: func(int) []byte { return body }}
	}
	// One message first: agents are started and connections opened by it.
	one := src(1)
	one.To = func(int) string { return fmt.Sprintf("n%d@sink.example", count) }
	assert.Must(t, one.Run(context.Background()))
	assert.Must(t, sink.Wait(1, patience))
	before := map[int]int{}
	for _, p := range processes(t, s) {
		before[p.Pid] = p.Descriptors()
	}
	assert.Must(t, src(count).Run(context.Background()))
	assert.Must(t, sink.Wait(count+1, 2*patience))
	awaitEmpty(t, s)
	mu.Lock()
	for n, got := range arrivals {
		assert.Equal(t, got, 1, n)
	}
	mu.Unlock()
	// The connections kept for the next message are all that may stay: 20 of the agent.
	await(t, s, "end of idle connections", func() (bool, error) {
		for _, p := range processes(t, s) {
			if p.Descriptors() > before[p.Pid]+1 {
				return false, nil
			}
		}
		return true, nil
	})
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := processes(t, s); len(left) > 0 {
		t.Errorf("still running after the stop: %v", left)
	}
}

// One fsync for each message on the relay path, and none besides.
func TestRelayedMessageCostsOneFsync(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	sink := newSink(t, &peer.Sink{Discard: true})
	s := start(t, sink, nil)
	send := func(n, total int) {
		t.Helper()
		src := source(s, n, "bob@mta.example", "far@sink.example", "Subject: x\n\nx\n")
		src.Connections = 4
		assert.Must(t, src.Run(context.Background()))
		assert.Must(t, sink.Wait(total, patience))
		awaitEmpty(t, s)
	}
	send(1, 1) // starts the agent, whose owner number is synced
	tr := trace(t, s, "fsync,fdatasync,sync,syncfs,sync_file_range")
	const n = 50
	send(n, 1+n)
	calls := 0
	for line := range strings.Lines(tr.stop(t)) {
		if strings.Contains(line, "sync") && !strings.Contains(line, "resumed") {
			calls++
		}
	}
	assert.Equal(t, calls, n)
}

// An idle system sleeps: no process wakes more often than once in two seconds.
func TestIdleDaemonsSleep(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	if testing.Short() {
		t.Skip("it watches for seconds")
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example", "alice@mta.example")
	assert.Must(t, sink.Wait(1, patience))
	awaitEmpty(t, s)
	const watched = 30 * time.Second
	timer := time.NewTimer(12 * time.Second) // idle connections end, runtimes collect
	<-timer.C
	// Where others keep the processors busy what is one wait may take several: then the
	// next span decides.
	for spans := 2; ; spans-- {
		tr := trace(t, s, "all")
		timer.Reset(watched)
		<-timer.C
		wakes, restless := tr.wakeups(t), 0
		for _, p := range processes(t, s) {
			t.Logf("%s woke %d times in %v", p.Name, wakes[p.Pid], watched)
			if wakes[p.Pid] > int(watched/(2*time.Second)) {
				restless++
			}
		}
		if restless == 0 {
			return
		}
		if spans == 1 {
			t.Fatalf("%d processes woke more than once in two seconds", restless)
		}
	}
}

// tracing is an strace that is attached to a system.
type tracing struct {
	cmd     *exec.Cmd
	out     string          // the file it writes
	said    strings.Builder // on its standard error
	threads map[int]int     // traced threads and their processes
}

// trace attaches strace to all programs of the system.
func trace(t *testing.T, s *suite.Suite, calls string) *tracing {
	t.Helper()
	tr := &tracing{out: filepath.Join(t.TempDir(), "trace"), threads: map[int]int{}}
	args := []string{"-f", "-ttt", "-o", tr.out, "-e", "trace=" + calls}
	for _, p := range processes(t, s) {
		args = append(args, "-p", strconv.Itoa(p.Pid))
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(p.Pid) + "/task")
		assert.Must(t, err)
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			tr.threads[tid] = p.Pid
		}
	}
	tr.cmd = exec.Command("strace", args...)
	tr.cmd.Stderr = &tr.said
	assert.Must(t, tr.cmd.Start())
	// Attached is every thread whose TracerPid is strace.
	await(t, s, "attached strace", func() (bool, error) {
		for tid, pid := range tr.threads {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/status")
			if err == nil && !strings.Contains(string(b), "TracerPid:\t"+strconv.Itoa(tr.cmd.Process.Pid)+"\n") {
				return false, nil
			}
		}
		return true, nil
	})
	return tr
}

// stop ends the tracing and gives strace's output, each line beginning with a
// thread's number and a time in seconds.
func (tr *tracing) stop(t *testing.T) string {
	t.Helper()
	assert.Must(t, tr.cmd.Process.Signal(syscall.SIGINT))
	_ = tr.cmd.Wait() // it ends by our signal
	b, err := os.ReadFile(tr.out)
	if err != nil {
		t.Fatalf("%v: %s", err, tr.said.String())
	}
	return string(b)
}

// wakeups ends the tracing and counts, by process, the bursts of system calls: calls
// of one process less than 20 ms apart are one wake-up.
func (tr *tracing) wakeups(t *testing.T) map[int]int {
	t.Helper()
	const together = 20 * time.Millisecond
	count := map[int]int{}
	last := map[int]time.Duration{}
	for line := range strings.Lines(tr.stop(t)) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.HasPrefix(f[2], "---") || strings.HasPrefix(f[2], "+++") {
			continue
		}
		tid, err1 := strconv.Atoi(f[0])
		at, err2 := strconv.ParseFloat(f[1], 64)
		pid, known := tr.threads[tid]
		// What a thread was blocked in when strace came is no wake-up: it shows as
		// "resumed" or "restart_syscall" at the attach.
		if err1 != nil || err2 != nil || !known {
			continue
		}
		now := time.Duration(at * float64(time.Second))
		if prev, ok := last[pid]; !ok || now-prev > together {
			count[pid]++
		}
		last[pid] = now
	}
	return count
}

// tail hashes the last bytes of what is written, beginning with the first empty line.
type tail struct {
	hash.Hash
	head []byte // until the empty line has come
	body bool
}

func (w *tail) Write(b []byte) (int, error) {
	if w.body {
		return w.Hash.Write(b)
	}
	w.head = append(w.head, b...)
	if _, rest, ok := bytes.Cut(w.head, []byte("\r\n\r\n")); ok {
		w.body = true
		w.Hash.Write(rest)
	}
	return len(b), nil
}

// Z2: a message of 1 GB goes in and out by SMTP, and into a Maildir, in memory that does
// not grow with it.
func TestGigabyteGoesInAndOutInFlatMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a message of 1 GB")
	}
	const lines = 1 << 30 / 1024
	line := strings.Repeat("0123456789abcdef", 64)[:1022]
	sink := newSink(t, &peer.Sink{Content: func(*peer.Message) io.Writer { return &tail{Hash: sha256.New()} }})
	s := start(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"MAXSIZE": "2G"} })
	c, err := smtp.Dial(s.SMTPAddr)
	assert.Must(t, err)
	defer c.Close()
	for _, err := range []error{c.Hello("client.example"), c.Mail("bob@mta.example"), c.Rcpt("far@sink.example"), c.Rcpt("alice@mta.example")} {
		assert.Must(t, err)
	}
	w, err := c.Data()
	assert.Must(t, err)
	want := sha256.New()
	block := []byte(strings.Repeat(line+"\r\n", 64))
	if _, err := io.WriteString(w, "Subject: huge\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for range lines / 64 {
		want.Write(block)
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	assert.Must(t, w.Close())
	assert.Must(t, sink.Wait(1, patience))
	if got := sink.Messages()[0].Content.(*tail).Sum(nil); !bytes.Equal(got, want.Sum(nil)) {
		t.Error("the body at the sink differs")
	}
	awaitEmpty(t, s)
	const limit = 64 << 20
	for _, p := range processes(t, s) {
		t.Logf("%s: %d MB at most", p.Name, p.Peak()>>20)
		if got := p.Peak(); got > limit {
			t.Errorf("%s grew to %d MB, want at most %d", p.Name, got>>20, limit>>20)
		}
	}
	files, err := filepath.Glob(filepath.Join(s.Maildir("alice"), "new", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("alice has %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() < lines*1023 {
		t.Errorf("alice's message: %v, %v", info, err)
	}
}

// M33: one agent serves one host after the other, and each host over one connection, however many
// messages there are.
func TestForksAndConnectsAreFew(t *testing.T) {
	t.Parallel()
	const rounds = 8
	var sinks []*peer.Sink
	routes := ""
	for _, domain := range []string{"one", "two", "three"} {
		sink := newSink(t, &peer.Sink{})
		sinks = append(sinks, sink)
		routes += "." + domain + ".example smtp!" + sink.RouteHost() + "\n"
	}
	s := prepare(t, sinks[0], func(s *suite.Suite) {
		s.Files["routes"] = routes
		s.Files["scheduler.conf"] = "*/* interval=1m retries=1 expiry=1d idlemax=5m maxthr=5\nsmtp/*\n\tcommand=\"ta-smtp --slots=5 --idle=5m $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	begin(t, s)
	for n := range rounds {
		for i, domain := range []string{"one", "two", "three"} {
			submit(t, s, "Subject: forks\n\nbody\n", "-f", "bob@mta.example", "u@"+domain+".example")
			// The one before has ended, so its agent and its connection are free.
			assert.Must(t, sinks[i].Wait(n+1, patience))
			want := 3*n + i + 1
			if _, err := s.Wait(patience, "the delivery", func(suite.Event) bool { return s.Count("delivered") >= want }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, sink := range sinks {
		if _, connects := sink.Count(); connects != 1 {
			t.Errorf("host %d: %d connections for %d messages, want 1", i, connects, rounds)
		}
	}
	assert.Equal(t, s.Count("agent-started"), 1, "agents")
}
