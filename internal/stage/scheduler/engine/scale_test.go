package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// plant makes many messages as a router hands them over, without its fsyncs.
func (r *rig) plant(n int, address, host func(i int) string) {
	r.T.Helper()
	for i := range n {
		assert.Must(r.T, plantOne(r.dir, address(i), host(i)))
	}
}

func plantOne(dir, address, host string) error {
	f, err := os.CreateTemp(filepath.Join(dir, "router"), "..plant")
	if err != nil {
		return err
	}
	defer f.Close()
	const envelope = "channel error\nto x\nenv-end\nFrom: a@b\n\n"
	if _, err := f.WriteString(envelope + "Body.\n"); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	name := strconv.FormatUint(st.Ino, 10)
	if err := os.Rename(f.Name(), filepath.Join(dir, "queue", name)); err != nil {
		return err
	}
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(envelope))})
	w.Group(workspec.Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1"},
		[]workspec.Recipient{{Channel: "smtp", Host: host, Address: address, Privilege: "1"}}, []byte(storetest.Header))
	if err := w.Close(); err != nil {
		return err
	}
	work := filepath.Join(dir, "router", "..plant."+name)
	if err := os.WriteFile(work, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(work, filepath.Join(dir, "transport", name))
}

// Z18, M34: 20,000 messages wait for a dead host. What it costs is one attempt for each
// retry of the host, whatever waits for it; and the other hosts' mail goes.
func TestDeadHostIsTriedOnceForEachRetry(t *testing.T) {
	t.Parallel()
	const messages, probes = 20_000, 10
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=20"), 0, quick)
	// The agent cannot connect: it says so of each message that it is given.
	r.plant(messages, func(i int) string { return fmt.Sprintf("host60000.%d@h", i) }, func(int) string { return "dead" })
	r.start()
	r.wait(1, "msg=scanned", fmt.Sprintf("messages=%d", messages))
	before := len(r.notes("deferall host60000"))
	for i := range probes {
		r.wait(before+i, "msg=deferred", "host60000")
		r.queue(fmt.Sprintf("smtp alive ok.%d@h", i))
		r.wait(i+1, "msg=finished")
	}
	r.stop()
	// As many as may run at once can have begun before the first of them was answered;
	// then one at a time.
	attempts := len(r.notes("deferall host60000"))
	tries := 0
	for line := range strings.Lines(r.events.String()) {
		if strings.Contains(line, "msg=deferred") && strings.Contains(line, "host60000") {
			tries++
		}
	}
	t.Logf("%d messages, %d connects when everything was read, %d at the end", messages, before, attempts)
	if attempts > 20+2*probes+before || attempts != tries {
		t.Errorf("%d attempts and %d deferrals for %d retries of the host", attempts, tries, probes)
	}
	if before > 20+40 {
		t.Errorf("%d attempts before the host's trouble was known", before)
	}
}

// A start does not wait for what lies there: the listing stands still behind its first
// names until a message has been delivered.
func TestDeliveriesBeginDuringTheScan(t *testing.T) {
	t.Parallel()
	const messages = 3 * namesAtOnce
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=20"), 0, func(s *conf.Settings) { s.Interval = time.Hour })
	r.plant(messages, func(i int) string { return fmt.Sprintf("ok.%d@h", i) }, func(i int) string { return fmt.Sprintf("h%d", i%100) })
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open) // before the scheduler is stopped
	calls := 0
	r.config.tuning.listing = func() {
		if calls++; calls == 2 {
			<-gate
		}
	}
	r.start()
	t.Cleanup(open)
	r.wait(1, "msg=delivered")
	r.never("msg=scanned")
	open()
	r.wait(1, "msg=scanned")
}

// While the queue grows through hundreds of thousands of messages, the scheduler's heap is
// never more than 1.3 times as large as what the queue takes in the end. It is counted in
// bytes that the heap has in use, whether they live or not.
func TestDel8HeapIsBoundedWhileTheQueueGrows(t *testing.T) {
	if os.Getenv("GOGC") != "" || testing.Short() {
		t.Skip("GOGC is set, or -short")
	}
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	trimHeap()
	base, peak := inUse(), uint64(0)
	const messages = 250_000
	e := grow(t, messages, func(i int) {
		if i%1000 == 0 {
			peak = max(peak, inUse())
		}
	})
	e.now = e.now.Add(trimAfter)
	e.heap.trimAt, e.heap.grownTo = time.Time{}, 0 // trimSoon would trim in the background
	e.heap.tuneHeap()
	trimHeap()
	steady := inUse()
	assert.Equal(t, e.heap.gcPercent, manyPercent, "percent of the collector after the queue has grown")
	if n := e.messages.len(); n != messages || (view{e}).Status().Messages != messages {
		t.Errorf("%d messages, want %d", n, messages)
	}
	ratio := float64(peak-base) / float64(steady-base)
	t.Logf("at most %.1f MB, %.1f MB in the end: %.2f", float64(peak-base)/1e6, float64(steady-base)/1e6, ratio)
	if ratio > 1.3 {
		t.Errorf("the heap was %.2f times as large as in the end, want at most 1.3", ratio)
	}
	runtime.KeepAlive(e)
}

// Del8: what reading many messages has used is given back once they have stopped coming, and
// not for a few more; messages that come and go are no growing queue.
func TestDel8HeapIsTrimmedWhenManyMessagesHaveCome(t *testing.T) {
	e := heap{base: &base{now: time.Unix(2e9, 0)}}
	next := uint64(1)
	come := func(n int) {
		for range n {
			e.messages.put(&thread.Message{Number: next})
			e.grown()
			next++
		}
	}
	leave := func(n int) {
		for range n {
			next--
			e.messages.remove(e.messages.get(next))
		}
	}
	wait := func(d time.Duration) {
		e.now = e.now.Add(d)
		e.trimSoon()
	}
	for _, step := range []struct {
		name string
		do   func()
		due  bool
	}{
		{"a few", func() { come(trimFrom - 1) }, false},
		{"many", func() { come(1) }, true},
		{"more within the second", func() { wait(trimAfter / 2); come(1); wait(trimAfter / 2) }, true},
		{"a second of silence", func() { wait(trimAfter / 2) }, false},
		{"a few more", func() { come(trimFrom - 1) }, false},
		{"many are gone", func() { leave(2*trimFrom - 10) }, false},
		{"and many come again", func() { come(trimFrom + 1) }, true},
	} {
		step.do()
		assert.Equal(t, !e.trimAt.IsZero(), step.due, "%s: due (%d messages, %d at the last time)", step.name, e.messages.len(), e.trimmed)
	}
	for range 100 {
		leave(1)
		e.now = e.now.Add(trimAfter / 10)
		come(1)
	}
	if !e.trimAt.Before(e.now) {
		t.Error("the heap is never trimmed while messages come and go")
	}
}

// The table says the same as a map after any sequence of changes.
func TestTableHoldsWhatAMapHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var got table
	want := map[uint64]*thread.Message{}
	for range 200_000 {
		number := random.Uint64N(20_000) + 1e6
		if m := want[number]; m != nil {
			got.remove(m)
			got.remove(&thread.Message{Number: number}) // another message: nothing
			delete(want, number)
			continue
		}
		m := &thread.Message{Number: number}
		got.put(m)
		want[number] = m
	}
	assert.Equal(t, got.len(), len(want), "messages")
	for number := uint64(1e6); number < 1e6+20_000; number++ {
		if got.get(number) != want[number] {
			t.Fatalf("%d: got %p, want %p", number, got.get(number), want[number])
		}
	}
	seen := 0
	for i := range got.parts {
		got.parts[i].each(func(m *thread.Message) {
			if want[m.Number] != m {
				t.Fatalf("%d is not to be there", m.Number)
			}
			seen++
		})
	}
	assert.Equal(t, seen, len(want), "messages given")
	for _, m := range want {
		got.remove(m)
	}
	for i := range got.parts {
		if got.parts[i].slots != nil {
			t.Fatal("an empty table keeps its slots")
		}
	}
}

// Whoever learns from one exclusive step that it is done may come with the next one
// before the pool has noticed the end of the first: a look at transport/ did, its step
// was dropped, and the scheduler looked at nothing more.
func TestExclusiveStepAfterExclusiveStepIsRun(t *testing.T) {
	p := newPool(func([]string) {})
	defer p.close()
	done := make(chan string, 3)
	p.exclusively(func() {
		p.exclusively(func() { done <- "second" })
		p.do(func() { done <- "change" })
		done <- "first"
	})
	for _, want := range []string{"first", "second", "change"} {
		select {
		case got := <-done:
			assert.Equal(t, got, want, "run")
		case <-time.After(time.Minute):
			t.Fatalf("%s was never run", want)
		}
	}
}
