package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// office returns a new postoffice on a file system.
func office(t testing.TB, f durable.FS) *postoffice.PostOffice {
	t.Helper()
	assert.Must(t, postoffice.Init(f))
	po, err := postoffice.Open(postoffice.Config{FS: f})
	assert.Must(t, err)
	return po
}

func realOffice(t testing.TB) (*postoffice.PostOffice, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return office(t, f), dir
}

// at returns a clock that stands still.
func at(ms int64) func() time.Time { return func() time.Time { return time.UnixMilli(ms) } }

func testConfig(role string) Config {
	return Config{Role: role, Now: at(1795220010123), Boot: func() string { return "boot-1" }}
}

// text returns a file of the ledger, with P for the pid.
func text(t testing.TB, po *postoffice.PostOffice, name string) string {
	t.Helper()
	var b []byte
	err := readFile(po.FS(), postoffice.Ledger+"/"+name, func(in io.Reader) (err error) {
		b, err = io.ReadAll(in)
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return "-"
	}
	assert.Must(t, err)
	return strings.ReplaceAll(string(b), fmt.Sprint(" ", os.Getpid()), " P")
}

func wantText(t testing.TB, po *postoffice.PostOffice, name string, lines ...string) {
	t.Helper()
	want := ""
	for _, l := range lines {
		want += "1795220010123 " + l + "\n"
	}
	assert.Equal(t, text(t, po, name), want, name)
}

// A18: the ledger can be read with cat.
func TestEachStepIsALineOfItsOwn(t *testing.T) {
	po, _ := realOffice(t)
	j := New(po, testConfig("router"))
	if text(t, po, "journal") != "-" {
		t.Error("a process that enters nothing makes a journal")
	}
	accepting := j.Accepting()
	accepting.In(id(12, 1), 2)
	j.Accepting().Abandon()
	j.Routed(id(12, 1), 3, true)
	j.Moved(id(13, 1), 12)
	j.Done(id(12, 1), Outcomes{Delivered: 2, Expired: 1})
	j.Gone(id(14, 1), 1, "vanished")
	j.Half(15, time.Unix(0, 62), Outcomes{Gone: 1})
	j.Close()
	j.Routed(id(12, 1), 3, true)
	wantText(t, po, "journal", "open router P boot-1", "in S12A1 2", "routed S12A1 3 entered", "moved S13A1 12",
		"done S12A1 delivered=2 expired=1", "gone S14A1 1 vanished", "half S15A10 delivered=0 gone=1", "close router P")
	var none *Journal
	none.Accepting().In(id(1, 1), 1)
	none.Routed(id(1, 1), 1, false)
	none.Close()
	assert.Must(t, none.Keep())
}

// M19: processes append to one journal, and no line is torn or lost.
func TestManyWritersDoNotMixTheirLines(t *testing.T) {
	po, _ := realOffice(t)
	const writers, each = 6, 200
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			j := New(po, testConfig("smtpserver"))
			defer j.Close()
			for n := range each {
				j.Accepting().In(id(uint64(w+1), int64(n)), w)
			}
		})
	}
	running.Wait()
	b, err := Read(po)
	assert.Must(t, err)
	if b.Bad != 0 || len(b.Records) != writers*each {
		t.Errorf("got %d records, %d bad lines", len(b.Records), b.Bad)
	}
}

// A daemon without mail lets go of the journal, and does not wake again. It has not ended
// by that.
func TestIdleProcessLetsGo(t *testing.T) {
	po, _ := realOffice(t)
	j := New(po, testConfig("smtpserver"))
	j.Routed(id(12, 1), 1, false)
	j.tick()
	if j.open == nil {
		t.Error("it let go after a line")
	}
	j.tick()
	j.tick()
	if j.open != nil || j.timer.Stop() {
		t.Error("it holds the journal, or will wake")
	}
	j.Routed(id(12, 1), 2, false)
	if !j.timer.Stop() {
		t.Error("a line does not set the timer")
	}
	j.tick()
	j.tick()
	j.Close()
	wantText(t, po, "journal", "open smtpserver P boot-1", "routed S12A1 1", "open smtpserver P boot-1", "routed S12A1 2",
		"open smtpserver P boot-1", "close smtpserver P")
}

// A journal that was renamed is not folded while somebody writes to it, and a line for
// a message whose acceptance had begun is in it, whatever the process does meanwhile.
func TestLateLineIsReadBeforeThoseThatFollowFromIt(t *testing.T) {
	po, _ := realOffice(t)
	server, router := New(po, testConfig("smtpserver")), New(po, testConfig("scheduler"))
	accepting := server.Accepting()
	router.Routed(id(12, 1), 3, true)
	router.Done(id(12, 1), Outcomes{Delivered: 3})
	router.c.Limit = 1
	assert.Must(t, router.Keep())
	server.tick() // it goes on to the new journal
	server.Routed(id(99, 1), 1, false)
	assert.Must(t, router.Keep())
	if n, err := through(po.FS()); n != 0 || err != nil {
		t.Errorf("folded through %d, %v, while a line is to come", n, err)
	}
	accepting.In(id(12, 1), 2)
	router.c.Limit = 1 << 30
	assert.Must(t, router.Keep())
	b, err := Read(po)
	assert.Must(t, err)
	if b.Through != 1 || b.Records[id(12, 1)] != nil || b.Sum.Accepted != 2 || b.Sum.Added != 1 || b.Sum.Delivered != 3 {
		t.Errorf("got %+v through %d", b.Sum, b.Through)
	}
	if b.Records[id(99, 1)] == nil {
		t.Error("the line after the rename is lost")
	}
}

// K12 S21: a full disk is logged once, mail is not stopped, and the line behind a torn
// one is read.
func TestTroubleIsLoggedOnceAndEnds(t *testing.T) {
	below, err := durable.NewOS(t.TempDir())
	assert.Must(t, err)
	f := faultfs.New(below)
	po := office(t, f)
	var log bytes.Buffer
	c := testConfig("router")
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	j := New(po, c)
	defer j.Close()
	j.Routed(id(1, 1), 1, false)
	full := f.Fail(faultfs.Write, journalName, unix.ENOSPC, faultfs.Always)
	j.Routed(id(2, 1), 1, false)
	j.Routed(id(3, 1), 1, false)
	full.End()
	j.Routed(id(4, 1), 1, false)
	b, err := Read(po)
	assert.Must(t, err)
	if b.Records[id(1, 1)] == nil || b.Records[id(4, 1)] == nil || b.Bad != 0 {
		t.Errorf("got %v, %d bad lines", b.Records, b.Bad)
	}
	if strings.Count(log.String(), "ledger-trouble") != 1 || strings.Count(log.String(), "ledger-recovered") != 1 {
		t.Errorf("logged\n%s", &log)
	}
}

func TestPostofficeOfAnEarlierVersionGetsTheDirectory(t *testing.T) {
	po, dir := realOffice(t)
	assert.Must(t, os.Remove(filepath.Join(dir, postoffice.Ledger)))
	if b, err := Read(po); err != nil || len(b.Records) != 0 {
		t.Errorf("got %v, %v", b, err)
	}
	j := New(po, testConfig("router"))
	defer j.Close()
	assert.Must(t, j.Keep())
	j.Routed(id(1, 1), 1, false)
	if b, err := Read(po); err != nil || len(b.Records) != 1 {
		t.Errorf("got %v, %v", b, err)
	}
}

// One line costs one write(2) and no memory.
func BenchmarkLine(b *testing.B) {
	po, _ := realOffice(b)
	j := New(po, Config{Role: "bench"})
	defer j.Close()
	b.ReportAllocs()
	for i := range b.N {
		j.Done(id(uint64(i), 1795220010123456789), Outcomes{Delivered: 1})
	}
}

func BenchmarkRead(b *testing.B) {
	po := benchLedger(b, true)
	for b.Loop() {
		book, err := Read(po)
		assert.Must(b, err)
		if len(book.Records) != benchMessages {
			b.Fatal(len(book.Records))
		}
	}
}

// What each start of the scheduler reads beside messages that wait.
func BenchmarkReadStart(b *testing.B) {
	po := benchLedger(b, false)
	b.ReportAllocs()
	for b.Loop() {
		_, err := read(po, true)
		assert.Must(b, err)
	}
}

const benchMessages = 25_000

func benchLedger(b *testing.B, ended bool) *postoffice.PostOffice {
	po, _ := realOffice(b)
	j := New(po, Config{Role: "bench"})
	for i := range benchMessages {
		m := id(uint64(i+1), 1795220010123456789)
		j.Accepting().In(m, 1)
		j.Routed(m, 1, true)
		if ended {
			j.Done(m, Outcomes{Delivered: 1})
		}
	}
	j.Close()
	return po
}

// A18: what ends together is entered in one write, a line for each.
func TestEndsOfSeveralMessagesAreOneWrite(t *testing.T) {
	below, err := durable.NewOS(t.TempDir())
	assert.Must(t, err)
	f := faultfs.New(below)
	po := office(t, f)
	j := New(po, testConfig("scheduler"))
	defer j.Close()
	j.Routed(id(1, 1), 1, false) // the journal is open
	writes := f.On(faultfs.Write, journalName, faultfs.Always, func(string) error { return nil })
	j.DoneAll(func(yield func(postoffice.SpoolID, Outcomes) bool) {
		for i := range uint64(3) {
			if !yield(id(i+1, 1), Outcomes{Delivered: int64(i) + 1}) {
				return
			}
		}
	})
	assert.Equal(t, writes.Hits(), 1, "writes of three ends")
	b, err := Read(po)
	assert.Must(t, err)
	for i := range uint64(3) {
		if r := b.Records[id(i+1, 1)]; r == nil || r.Ended != Done || r.End.Delivered != int64(i)+1 {
			t.Errorf("message %d: got %+v, want it done", i+1, r)
		}
	}
}

// Sec5: no other user can open the journal and hold its lock, which would keep every line
// out of the ledger: a new one is closed to others, and so is one that an earlier version
// has left.
func TestSec5JournalIsClosedToOthers(t *testing.T) {
	for what, left := range map[string]bool{"new": false, "left open": true} {
		t.Run(what, func(t *testing.T) {
			po, dir := realOffice(t)
			file := filepath.Join(dir, journalName)
			if left {
				assert.Must(t, os.WriteFile(file, nil, 0o644))
			}
			j := New(po, Config{Role: "test"})
			j.Gone(postoffice.SpoolID{Ino: 1, MTime: time.Now().UnixNano()}, 1, "test")
			j.Close()
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != durable.LockMode || info.Size() == 0 {
				t.Errorf("got %v, %v, want lines in a file of mode %v", info, err, durable.LockMode)
			}
		})
	}
}

// Dur1: the ledger names a message that has ended with a failure that is in no report, and
// keeps its account until an operator settles it.
func TestDur1LedgerFindsUnreportedFailures(t *testing.T) {
	tests := map[string]struct {
		lines func(s *spool)
		want  string // what is wrong
	}{
		"reported":     {func(s *spool) { s.j.Done(id(77, 1), Outcomes{Delivered: 1, Failed: 2}) }, ""},
		"not reported": {func(s *spool) { s.j.DoneUnreported(id(77, 1), Outcomes{Delivered: 1, Failed: 2}, 2) }, "unreported"},
		"one of two":   {func(s *spool) { s.j.DoneUnreported(id(77, 1), Outcomes{Delivered: 1, Failed: 2}, 1) }, "unreported"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			s.j.Routed(id(77, 1), 3, false)
			tt.lines(s)
			for _, folded := range []bool{false, true} {
				if folded { // the account is kept in base
					s.j.Close()
					assert.Must(t, rotate(s.po.FS()))
					if _, err := fold(s.po); err != nil {
						t.Fatal(err)
					}
				}
				b, err := Compare(t.Context(), s.po, Patience{Looks: 1})
				assert.Must(t, err)
				got := ""
				for _, w := range b.Wrong {
					got += string(w.Kind)
				}
				if got != tt.want || b.Difference != (Count{}) {
					t.Errorf("folded %v: got %q and the difference %+v, want %q", folded, got, b.Difference, tt.want)
				}
				if folded && tt.want != "" {
					j := New(s.po, Config{Role: "zmctl"})
					defer j.Close()
					assert.Must(t, j.Explain(b, id(77, 1)))
					if b, err = Compare(t.Context(), s.po, Patience{Looks: 1}); err != nil || len(b.Wrong) > 0 {
						t.Errorf("settled: %+v, %v", b.Wrong, err)
					}
				}
			}
		})
	}
}
