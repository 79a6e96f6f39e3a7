package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

var update = flag.Bool("update", false, "write golden files anew")

// golden compares with a file in testdata/. Spool IDs, inode numbers and pids are not
// the same twice.
func golden(t *testing.T, name, got string) {
	t.Helper()
	for pattern, to := range map[string]string{`S[0-9]+A[0-9A-Za-z]+`: "SPOOLID", `pid [0-9]+`: "pid PID", `/[0-9]+(-[0-9]+)?\b`: "/NAME",
		`"(since|next|until|ordered)": ?"[^"]*"`: `"$1":"TIME"`, `"name":"[0-9]+[^"]*"`: `"name":"NAME"`, `"number":[0-9]+`: `"number":1`} {
		got = regexp.MustCompile(pattern).ReplaceAllString(got, to)
	}
	file := filepath.Join("testdata", name)
	if *update {
		assert.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	assert.Must(t, err)
	assert.Equal(t, got, string(want), "%s: %s", name, want)
}

// plantViews plants mail of several ages to several hosts, in every state of a recipient.
func plantViews(t *testing.T) {
	t.Helper()
	o := office.New(t)
	o.Run(t, "scheduler")
	old := func(name string, age time.Duration) {
		o.Age(t, "queue/"+name, age+30*time.Second)
		o.Age(t, "transport/"+name, age+30*time.Second)
	}
	_, one, offs := o.EnqueueFrom(t, "news@shop.example", office.To("mx.example.com", "a@example.com"), office.To("mx.example.com", "b@example.com"), office.To("other.example", "c@other.example"))
	old(one, 26*time.Hour)
	o.Event(t, one, workspec.DeferredEvent(time.Now(), offs[0], 3, time.Now().Add(2*time.Hour+30*time.Second), status.SystemTrouble, "451 4.7.1 Greylisted, try later"))
	o.Event(t, one, workspec.DeferredEvent(time.Now(), offs[1], 3, time.Now().Add(2*time.Hour+30*time.Second), status.SystemTrouble, "451 4.7.1 Greylisted, try later"))
	o.Tag(t, one, offs[2], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
	for i, age := range []time.Duration{3 * time.Hour, 12 * time.Minute, 7 * time.Minute} {
		_, name, _ := o.EnqueueFrom(t, "bob@client.example", office.To("mx.example.com", fmt.Sprintf("user%d@example.com", i)))
		old(name, age)
	}
	_, two, offs := o.EnqueueFrom(t, "<>", office.To("other.example", "held@other.example"), office.To("other.example", "frozen@other.example"))
	hold := workspec.OrderEvent(time.Now(), workspec.EventHold, "S1A1", offs[:1], "root", "20261121-031502-hold-1", "their disk is full")
	freeze := workspec.OrderEvent(time.Now(), workspec.EventFrozen, "S1A1", offs[1:], "root", "", "", workspec.Attr{Key: workspec.KeyCause, Value: "expired"})
	o.Event(t, two, hold)
	o.Event(t, two, freeze)
	old(two, 50*time.Minute)
	d := o.Submit(t, office.PlainMail)
	assert.Must(t, o.Claim(t, d).Defer("users"))
	o.Age(t, "deferred/"+first(t, o, "deferred"), 90*time.Second)
}

// M39: each view of the queue, as a file.
func TestQueueViews(t *testing.T) {
	plantViews(t)
	for name, args := range map[string][]string{
		"list": nil, "tree": {"--tree"}, "tree-top": {"--tree", "--top", "1"}, "counts": {"--counts"}, "ages": {"--ages"},
		"summary": {"--summary"}, "list.json": {"--json"}, "counts.json": {"--counts", "--json"}, "ages.json": {"--ages", "--json"},
		"summary.json": {"--summary", "--json", "--host", "mx.*"}, "tree.json": {"--tree", "--json"},
		"selected": {"--host", "mx.example.com", "--older", "1h", "--state", "open"}, "ages-selected": {"--ages", "--where", "state held or state frozen"},
	} {
		out := mustDo(t, append([]string{"queue"}, args...)...)
		for _, field := range []string{"age_seconds", "oldest_seconds"} {
			out = regexp.MustCompile(`"`+field+`": ?[0-9]+`).ReplaceAllString(out, `"`+field+`": 1`)
		}
		golden(t, "queue-"+name+".txt", out)
	}
}

// looking counts what is asked of the disk.
type looking struct {
	durable.FS
	names, opened int
}

func (l *looking) ReadDirFunc(name string, fn func([]durable.Entry) error) error {
	return durable.ReadDirFunc(l.FS, name, func(part []durable.Entry) error {
		l.names += len(part)
		return fn(part)
	})
}

func (l *looking) Open(name string, flags int, perm fs.FileMode) (durable.File, error) {
	l.opened++
	return l.FS.Open(name, flags, perm)
}

// plantMany plants messages that differ by their names alone.
func plantMany(t *testing.T, o *office.Office, n int) {
	t.Helper()
	plantBy(t, o, n, func(_, to string, b []byte) error { return os.WriteFile(to, b, 0o600) })
}

// plantLinks does that with links, for who only reads them: 50,000 files take long.
func plantLinks(t *testing.T, o *office.Office, n int) {
	t.Helper()
	plantBy(t, o, n, func(from, to string, _ []byte) error { return os.Link(from, to) })
}

func plantBy(t *testing.T, o *office.Office, n int, plant func(from, to string, b []byte) error) {
	t.Helper()
	_, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a@x"))
	message, spec := []byte(o.Read(t, "queue/"+name)), []byte(o.Read(t, "transport/"+name))
	for i := range n {
		for dir, b := range map[string][]byte{"queue": message, "transport": spec} {
			assert.Must(t, plant(o.Path(dir+"/"+name), o.Path(fmt.Sprintf("%s/%d-7", dir, 1<<40+i)), b))
		}
	}
}

// M39: of 50,000 messages the first is shown when some hundred of the directory's names
// were read and one specification opened, and memory does not grow with the listing.
func TestListingStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("plants 100,000 files")
	}
	const count = 50000
	o := office.New(t)
	plantLinks(t, o, count)
	l := &looking{FS: o.FS()}
	po, err := postoffice.Open(postoffice.Config{FS: l})
	assert.Must(t, err)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most := heap(), uint64(0)
	n, first := 0, looking{}
	sorted, err := view.New(po, time.Now()).Each(t.Context(), selector.Selector{}, func(*view.Message) error {
		if n++; n == 1 {
			first = *l
		}
		if n%10000 == 0 {
			most = max(most, heap())
		}
		return nil
	})
	if err != nil || n != count+1 || sorted {
		t.Fatalf("%d messages, sorted %v, %v", n, sorted, err)
	}
	if first.names > 2*view.SortLimit || first.opened > 2 {
		t.Errorf("before the first message %d names were read and %d files opened, of %d", first.names, first.opened, count)
	}
	if grown := int64(most) - int64(before); grown > 8<<20 {
		t.Errorf("the listing takes %d bytes", grown)
	}
}

// gone is a pipe whose reader has seen enough.
type gone struct{ left int }

func (g *gone) Write(b []byte) (int, error) {
	if g.left -= len(b); g.left < 0 {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}

// M39: a reader who goes away ends the listing, at once and without a word.
func TestListingEndsWithItsReader(t *testing.T) {
	o := office.New(t)
	plantLinks(t, o, 3000)
	a := app()
	a.Writer, a.ErrWriter = &gone{100}, io.Discard
	if err := a.RunContext(t.Context(), []string{"zmctl", "queue"}); err != nil {
		t.Errorf("got %v, want nothing", err)
	}
	l := &looking{FS: o.FS()}
	po, err := postoffice.Open(postoffice.Config{FS: l})
	assert.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = view.New(po, time.Now()).Each(ctx, selector.Selector{}, func(*view.Message) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || l.opened > 10 {
		t.Errorf("after a signal: %v, %d files opened", err, l.opened)
	}
}
