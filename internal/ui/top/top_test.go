package top

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/mailq"
)

func newOffice(t *testing.T) (dir string, s *Sampler) {
	t.Helper()
	dir = t.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	assert.Must(t, postoffice.Init(f))
	po, err := postoffice.Open(postoffice.Config{FS: f})
	assert.Must(t, err)
	s = New(po, dir)
	t.Cleanup(s.Close)
	return dir, s
}

func plant(t *testing.T, dir, name string, age time.Duration) {
	t.Helper()
	path := filepath.Join(dir, name)
	assert.Must(t, os.WriteFile(path, []byte("to bond\n\n"), 0o700))
	at := time.Now().Add(-age)
	assert.Must(t, os.Chtimes(path, at, at))
}

func take(t *testing.T, s *Sampler) *Sample {
	t.Helper()
	x, err := s.Take(t.Context())
	assert.Must(t, err)
	return x
}

func stage(t *testing.T, x *Sample, name string) Stage {
	t.Helper()
	for _, st := range x.Stages {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("no stage %s: %+v", name, x.Stages)
	return Stage{}
}

// A18: the counts are those of the disk, with a scheduler or without.
func TestCountsAreThoseOfTheDisk(t *testing.T) {
	dir, s := newOffice(t)
	assert.Must(t, os.Mkdir(filepath.Join(dir, "router2"), 0o777|os.ModeSticky))
	want := map[string]int{"router": 3, "router2": 1, "queue": 2, "deferred": 1, "freezer": 2, "postman": 1, "public": 1}
	plant(t, dir, "router/11", 2*time.Hour)
	plant(t, dir, "router/12", time.Minute)
	plant(t, dir, "router/13-4711", time.Minute) // claimed: not routed yet
	plant(t, dir, "router2/14", time.Minute)
	plant(t, dir, "router/.tries.11", time.Minute)
	plant(t, dir, "transport/15-1", time.Minute)
	plant(t, dir, "transport/16-1", time.Minute)
	plant(t, dir, "deferred/17.users", 3*24*time.Hour)
	plant(t, dir, "freezer/18.person", time.Minute)
	plant(t, dir, "freezer/19.person", time.Minute)
	plant(t, dir, "postman/20", time.Minute)
	plant(t, dir, "public/submit.1", time.Minute)
	x := take(t, s)
	for name, n := range want {
		if got := stage(t, x, name); got.Messages != n || got.Problem != "" {
			t.Errorf("%s: got %+v, want %d", name, got, n)
		}
	}
	if got := stage(t, x, "router").OldestSeconds; got < 7190 || got > 7300 {
		t.Errorf("the oldest in router/ is %d s old", got)
	}
	if x.Scheduler != nil || x.Silent == "" || x.Router || x.Seconds != 0 {
		t.Errorf("got %+v", x)
	}
	var out bytes.Buffer
	assert.Must(t, x.Print(&out, 0))
	for _, want := range []string{"no router runs, scheduler: ", "router    3         2h", "deferred  1         3d"} {
		assert.Contains(t, out.String(), want)
	}
}

// Rates are the lines that the ledger got between two looks; mail by submit, which writes
// no line of its own, is accepted too.
func TestRatesAreThoseOfTheLedger(t *testing.T) {
	dir, s := newOffice(t)
	take(t, s)
	now := time.Now()
	var lines []byte
	for i := range 10 {
		l := ledger.Line{Time: now.UnixMilli(), ID: postoffice.SpoolID{Ino: uint64(100 + i), MTime: now.UnixNano()}, N: 1}
		if l.Verb = ledger.In; i < 4 {
			lines = l.Append(lines)
		}
		l.Verb, l.N, l.Entered = ledger.Routed, 2, i < 4
		lines = l.Append(lines)
		if l.Verb, l.End = ledger.Done, (ledger.Outcomes{Delivered: 1, Failed: 1}); i < 5 {
			lines = l.Append(lines)
		}
	}
	assert.Must(t, os.WriteFile(filepath.Join(dir, postoffice.Ledger, "journal"), lines, 0o600))
	x := take(t, s)
	for _, r := range x.Rates.Named() {
		want := map[string]float64{"accepted": 10, "routed": 10, "delivered": 5, "failed": 5, "done": 5}[r.Name]
		if got := r.Value * x.Seconds; got < want-0.01 || got > want+0.01 {
			t.Errorf("%s: got %.2f, want %v", r.Name, got, want)
		}
	}
	if x = take(t, s); x.Rates != (Rates{}) {
		t.Errorf("nothing happened, got %+v", x.Rates)
	}
}

// A router lives if its number in owners/ is held.
func TestRouterIsSeen(t *testing.T) {
	_, s := newOffice(t)
	o, err := s.po.Owners.Take("router")
	assert.Must(t, err)
	if x := take(t, s); !x.Router {
		t.Error("the router is not seen")
	}
	assert.Must(t, o.Release())
	s.checked = time.Time{}
	if x := take(t, s); x.Router {
		t.Error("a router that is gone is seen")
	}
}

// A directory that takes long to count is counted less often.
func TestLargeDirectoriesAreCountedLessOften(t *testing.T) {
	dir, s := newOffice(t)
	take(t, s)
	s.stages["router"].cost = time.Hour
	plant(t, dir, "router/11", 0)
	if got := stage(t, take(t, s), "router"); got.Messages != 0 {
		t.Errorf("it was counted again: %+v", got)
	}
	s.stages["router"].cost = 0
	if got := stage(t, take(t, s), "router"); got.Messages != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestTakingEndsWithItsContext(t *testing.T) {
	_, s := newOffice(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Take(ctx); err == nil {
		t.Error("no error")
	}
}

func TestOrders(t *testing.T) {
	list := []Thread{
		{ThreadInfo: mailq.ThreadInfo{Channel: "smtp", Host: "b", State: "active", Recipients: 9, OldestSeconds: 5}, Rate: 3},
		{ThreadInfo: mailq.ThreadInfo{Channel: "smtp", Host: "a", State: "trouble", Recipients: 1, OldestSeconds: 9}},
		{ThreadInfo: mailq.ThreadInfo{Channel: "local", Host: "c", State: "waiting", Recipients: 20, OldestSeconds: 7}, Rate: 1},
	}
	for order, want := range map[Order]string{ByNeed: "a b c", ByRecipients: "c b a", ByAge: "a c b", ByRate: "b c a", ByName: "c a b"} {
		order.Sort(list)
		var got []string
		for _, x := range list {
			got = append(got, x.Host)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", order, got, want)
		}
	}
	if len(Orders()) != 5 {
		t.Error(Orders())
	}
}

// What others say cannot move the cursor, and the text has no more threads than asked for.
func TestTextIsCleanAndBounded(t *testing.T) {
	x := &Sample{Time: time.Now(), Seconds: 1, Rates: Rates{Accepted: 12.34, Failed: 0.5}, Scheduler: &mailq.StatusInfo{UptimeSeconds: 3700}, Router: true,
		Alarms: []alarm.Alarm{{Kind: alarm.TooOld, Subject: "router", Since: time.Now().Add(-time.Hour), Text: "x\x1b[2J"}}}
	for i := range 30 {
		x.Threads = append(x.Threads, Thread{ThreadInfo: mailq.ThreadInfo{Channel: "smtp", Host: fmt.Sprintf("h%d\x1b]0;x\a", i), State: "trouble", Trouble: "no\nroute\x07"}})
	}
	var out bytes.Buffer
	assert.Must(t, x.Print(&out, 5))
	text := out.String()
	if strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "smtp/h") != 5 {
		t.Errorf("got %q", text)
	}
	for _, want := range []string{"and 25 more", "accepted   12\n", "failed     0.5\n", "scheduler runs for 1h1m", "too-old", "no route"} {
		assert.Contains(t, text, want)
	}
}

func TestSparksShowTheNewestAtTheRight(t *testing.T) {
	var h History
	assert.Equal(t, h.Spark(3), "   ")
	for _, v := range []float64{0, 1, 4, 8} {
		h.Add(v)
	}
	assert.Equal(t, h.Spark(6), "   ▂▅█")
	if got := h.Spark(2); got != "▅█" || h.Most(10) != 8 {
		t.Errorf("got %q", got)
	}
	for range 3 * kept {
		h.Add(0.001)
	}
	if len(h.values) != kept || strings.Trim(h.Spark(kept), "█") != "" {
		t.Errorf("%d values kept", len(h.values))
	}
}

// BenchmarkTake is a look at a postoffice that 1,000 messages stand in.
func BenchmarkTake(b *testing.B) {
	dir := b.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(b, err)
	defer f.Close()
	assert.Must(b, postoffice.Init(f))
	po, err := postoffice.Open(postoffice.Config{FS: f})
	assert.Must(b, err)
	for i := range 1000 {
		assert.Must(b, os.WriteFile(filepath.Join(dir, "router", fmt.Sprint(1000+i)), nil, 0o600))
	}
	s := New(po, dir)
	defer s.Close()
	for range b.N {
		for _, c := range s.stages {
			c.cost = 0
		}
		if _, err := s.Take(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
