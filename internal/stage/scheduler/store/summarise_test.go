package store

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

var historyRecipients = flag.Int("history-recipients", 1000, "of the message in TestDel2HistoryIsBounded that waits for 1,000 attempts")

// allocated returns how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// deferred records an attempt as the engine does.
func (b *box) deferred(name string, n int, list []Outcome) (summarised bool) {
	b.T.Helper()
	for i := range list {
		list[i].Attempt, list[i].Next = n, b.Now.Add(time.Minute)
	}
	rec, err := b.spool.Record(name, list)
	if err == nil && rec.Long {
		err = b.spool.Summarise(name)
	}
	assert.Must(b.T, err)
	b.Now = b.Now.Add(time.Minute)
	return rec.Long
}

// bound is what a message takes after some attempts.
type bound struct {
	file      int64  // bytes
	load      uint64 // bytes that a read of the scheduler's allocates
	summaries int
}

// wait has a message with many recipients wait for its host for many attempts.
func wait(t testing.TB, rcpts, attempts int, say func(attempt int, address string) string, at func(n int, b bound)) {
	// A disk's fsync takes a minute of a thousand attempts; what is counted is the same.
	dir, err := os.MkdirTemp("/dev/shm", "bound")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	disk, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { _ = disk.Close() })
	b := newBox(t, disk)
	name := b.Queue("a@b", many(rcpts)...)
	spec := b.Parse(name)
	outcomes := make([]Outcome, rcpts)
	summaries, largest := 0, int64(0)
	var got bound
	for n := 1; n <= attempts; n++ {
		for i := range outcomes {
			outcomes[i] = Outcome{Offset: storetest.OffsetOf(spec, i), Result: thread.Deferred, Text: say(n, spec.Groups[0].Recipients[i].Address)}
		}
		if b.deferred(name, n, outcomes) {
			summaries++
		}
		info, err := b.FS.Stat("transport/" + name)
		assert.Must(t, err)
		got.file, got.summaries = info.Size, summaries
		if n < 4 || n%10 == 0 || info.Size > largest {
			got.load = allocated(func() {
				f, err := b.spool.open(name)
				assert.Must(t, err)
				f.close()
			})
		}
		largest = max(largest, info.Size)
		at(n, got)
	}
	s := b.Parse(name)
	var told []string
	for i := range s.History {
		if e := &s.History[i]; e.Event == workspec.EventDeferred && slices.Contains(offsetsAbout(s, e), storetest.OffsetOf(s, 7)) {
			told = append(told, e.Get("attempt")+" "+e.Text)
		}
	}
	if last := fmt.Sprint(attempts, " ", say(attempts, "user7@h")); told[0] != "1 "+say(1, "user7@h") || told[len(told)-1] != last {
		t.Errorf("the history of a recipient goes from %q to %q", told[0], told[len(told)-1])
	}
	// A5: a start goes on with the wait.
	l := b.load(name)
	if len(l.Open) != rcpts {
		t.Fatalf("%d recipients are open, want %d", len(l.Open), rcpts)
	}
	for _, w := range l.Open {
		if w.Attempts != attempts || !w.Next.Equal(b.Now) {
			t.Fatalf("%s was tried %d times and is tried at %v; want %d, %v", w.Address, w.Attempts, w.Next, attempts, b.Now)
		}
	}
}

func offsetsAbout(s *workspec.Spec, e *workspec.Event) (list []int64) {
	for r := range s.About(e) {
		list = append(list, r.Offset)
	}
	return list
}

// Del2: what a message takes on the disk and in memory does not grow with the number of
// attempts, and an attempt is one line for all recipients that got one reply.
func TestDel2HistoryIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		rcpts, attempts int
		say             func(n int, address string) string
	}{
		"one reply, 1,000 attempts": {*historyRecipients, 1000, func(int, string) string { return "451 4.7.1 later" }},
		"another one each time":     {1000, 300, func(n int, _ string) string { return "451 4.7.1 " + strings.Repeat("x", 1+n%50) }},
		"a number in it":            {1000, 300, func(n int, _ string) string { return fmt.Sprintf("451 4.7.1 greylisted for %d seconds", 9999-n) }},
		"of each recipient":         {1000, 200, func(n int, address string) string { return "450 4.2.0 <" + address + ">: greylisted" }},
		"of each recipient, another one each time": {1000, 200, func(n int, address string) string {
			return "450 4.2.0 <" + address + ">: " + strings.Repeat("x", 1+n%50)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var first, most bound
			wait(t, tt.rcpts, tt.attempts, tt.say, func(n int, b bound) {
				if n == 1 {
					first = b
				}
				most = bound{file: max(most.file, b.file), load: max(most.load, b.load), summaries: b.summaries}
				if n == 1 || n == 70 || n == 286 || n == 1000 {
					t.Logf("attempt %d: file %d bytes, scheduler allocates %d", n, b.file, b.load)
				}
			})
			t.Logf("at most: file %d bytes, scheduler %d; summarised %d times", most.file, most.load, most.summaries)
			if most.file > 3*first.file || most.load > 3*first.load {
				t.Errorf("after the first attempt %+v, at most %+v", first, most)
			}
		})
	}
}

// Del2: a file of before, with a line for each recipient and attempt, is summarised when the
// scheduler starts.
func TestOldHistoryIsSummarisedAtTheStart(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", many(50)...)
	had := b.Lengthen(name, 400<<10)
	before := b.Read("transport/" + name)
	l, err := b.spool.LoadNew(name)
	assert.Must(t, err)
	after := b.Read("transport/" + name)
	b.WantLog("msg=summarised", name)
	for _, w := range l.Open {
		assert.Equal(t, w.Attempts, had, "%s has attempts behind it", w.Address)
	}
	if len(l.Open) != 50 || len(after) > len(before)/20 {
		t.Errorf("%d recipients; %d bytes became %d", len(l.Open), len(before), len(after))
	}
	if got := b.List("transport"); len(got) != 1 {
		t.Errorf("transport/ holds %v", got)
	}
}

// An agent that has opened the file, and waits for its lock, does not take recipients from
// the one that was replaced.
func TestAgentThatWaitsForTheLockSeesTheSummary(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h user@h"})
	b.Lengthen(name, 2*longHistory)
	// The agent of a scheduler that was killed: it has the file open.
	old := b.opened(name)
	assert.Must(t, b.spool.Summarise(name))
	assert.Must(t, old.Lock())
	raw, err := old.Read()
	assert.Must(t, err)
	s, err := workspec.Parse(raw)
	if err != nil || !s.Superseded() {
		t.Fatalf("the old file says nothing of it: %v", err)
	}
	if replaced, err := old.Replaced(); err != nil || !replaced {
		t.Errorf("replaced %v, %v", replaced, err)
	}
	if s := b.Parse(name); s.Superseded() {
		t.Error("the summary says that it is superseded")
	}
	// What it must not do is append there.
	if err := old.Append([]byte("h 1 0 x\n")); !errors.Is(err, postoffice.ErrReplaced) {
		t.Errorf("it appends to the old file: %v", err)
	}
}

// K10: an operator edits the file at the moment in which it is replaced: by an editor that
// puts a new file there, or in place. The edit stays.
func TestEditDuringASummaryStays(t *testing.T) {
	edited := func(b *box, name string) []byte {
		return append([]byte(b.Read("transport/"+name)), "h 1795220000000 0 policy count=1 edited\n"...)
	}
	for kind, edit := range map[string]func(b *box, dir, name string) error{
		"another file": func(b *box, dir, name string) error {
			if err := os.WriteFile(dir+"/edited", edited(b, name), 0o644); err != nil {
				return err
			}
			return os.Rename(dir+"/edited", dir+"/transport/"+name)
		},
		"in place": func(b *box, dir, name string) error {
			return os.WriteFile(dir+"/transport/"+name, edited(b, name), 0o644)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			b, dir := diskBox(t)
			name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h user@h"})
			had := b.Lengthen(name, 2*longHistory)
			b.faulty().On(faultfs.Rename, "transport/"+name, 1, func(string) error { return edit(b, dir, name) })
			assert.Must(t, b.spool.Summarise(name))
			text := b.Read("transport/" + name)
			if !strings.Contains(text, "edited\n") || strings.Contains(text, " summarised ") {
				t.Errorf("the edit is gone:\n%s", text[:min(len(text), 2000)])
			}
			b.WantLog("msg=not-summarised", name)
			assert.Same(t, b.List("transport"), []string{name, "look." + name}, "transport/")
			if l := b.load(name); len(l.Open) != 1 || l.Open[0].Attempts != had {
				t.Errorf("got %+v", l.Open)
			}
		})
	}
}

// An order that waits for the lock while the history is summarised is carried out on the file
// that has the name then: mailq's KILL does not ask again.
func TestOrderDuringASummaryIsCarriedOut(t *testing.T) {
	for when, op := range map[string]faultfs.Op{"after the open": faultfs.Stat, "before the lock": faultfs.Flock} {
		t.Run(when, func(t *testing.T) {
			b, _ := diskBox(t)
			name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h user@h"})
			b.Lengthen(name, 2*longHistory)
			order := b.Request(name)
			f := faultfs.New(b.FS)
			f.On(op, "transport/*", 1, func(string) error { return b.spool.Summarise(name) })
			order.PostOffice = b.openOn(f)
			b.Ordered(operations.Hold(order, name, b.Now.Add(time.Hour)))(1)
			b.WantLog("msg=summarised", name)
			if s := b.Parse(name); s.History[len(s.History)-1].Event != workspec.EventHold {
				t.Error("the file says nothing of it")
			}
		})
	}
}

// An order that is given after a summary is logged, also of a message whose file has another
// inode number than its name says, as one has that came back from a backup.
func TestOrderAfterASummaryIsLogged(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h user@h"})
	message := []byte(b.Read("queue/" + name))
	assert.Must(t, os.WriteFile(dir+"/restored", message, 0o600))
	assert.Must(t, os.Rename(dir+"/restored", dir+"/queue/"+name))
	b.Lengthen(name, 2*longHistory)
	hold := func(verb func(operations.Request, string) (operations.Result, error), word string) {
		t.Helper()
		b.Now = b.Now.Add(time.Second)
		b.Ordered(verb(b.Request(name), name))(1)
		b.spool.LogOperations(name)
		b.WantLog("msg="+word, "rcpt=user@h")
	}
	hold(func(q operations.Request, name string) (operations.Result, error) {
		return operations.Hold(q, name, b.Now.Add(time.Hour))
	}, "held")
	assert.Must(t, b.spool.Summarise(name))
	b.WantLog("msg=summarised", name)
	hold(operations.Release, "released")
}

// A file system that cannot swap two names costs the summary, and is asked again when the
// history has grown by as much.
func TestWithoutExchangeTheHistoryStays(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h user@h"})
	had := b.Lengthen(name, 2*longHistory)
	b.faulty().Fail(faultfs.Rename, "transport/"+name, durable.ErrNoExchange, faultfs.Always)
	off := storetest.OffsetOf(b.Parse(name), 0)
	for n := had + 1; n < had+10; n++ {
		b.deferred(name, n, []Outcome{{Offset: off, Result: thread.Deferred, Text: "450 4.2.1 later"}})
	}
	assert.Equal(t, strings.Count(b.Log.String(), "msg=not-summarised"), 1, "tries")
	if l := b.load(name); l.Open[0].Attempts != had+9 {
		t.Errorf("got %+v", l.Open)
	}
	if got := b.List("transport"); len(got) != 1 {
		t.Errorf("transport/ holds %v", got)
	}
}

// BenchmarkRecordOfManyRecipients is one attempt for 10,000 recipients that get one reply.
func BenchmarkRecordOfManyRecipients(bench *testing.B) {
	b, _ := diskBox(bench)
	name := b.Queue("a@b", many(10_000)...)
	spec := b.Parse(name)
	outcomes := make([]Outcome, 10_000)
	for n := 1; bench.Loop(); n++ {
		for i := range outcomes {
			outcomes[i] = Outcome{Offset: storetest.OffsetOf(spec, i), Result: thread.Deferred, Text: "451 4.7.1 later"}
		}
		b.deferred(name, n, outcomes)
	}
}
