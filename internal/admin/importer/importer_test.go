package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

func openOffice(t *testing.T, disk durable.FS) *postoffice.PostOffice {
	t.Helper()
	p, err := postoffice.Open(postoffice.Config{FS: disk})
	assert.Must(t, err)
	return p
}

func newOffice(t *testing.T) (*postoffice.PostOffice, durable.FS) {
	t.Helper()
	dir := t.TempDir()
	disk, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, postoffice.Init(disk))
	return openOffice(t, disk), disk
}

func config(p *postoffice.PostOffice, f *fake) Config {
	return Config{PostOffice: p, Source: f, System: "postfix", Path: "/var/spool/old", Who: "tester"}
}

// message is one that is in the postoffice.
type message struct {
	dir string
	env envelope.Envelope
	age time.Time
}

// messages returns those in router/ and freezer/, by Subject and, of several, recipient.
func messages(t *testing.T, disk durable.FS) map[string]message {
	t.Helper()
	all := map[string]message{}
	for _, dir := range []string{postoffice.Router, postoffice.Freezer} {
		entries, err := disk.ReadDir(dir)
		assert.Must(t, err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name, "reason.") {
				continue
			}
			f, err := disk.Open(dir+"/"+e.Name, os.O_RDONLY, 0)
			assert.Must(t, err)
			b, err := io.ReadAll(f)
			assert.Must(t, err)
			info, err := f.Stat()
			assert.Must(t, err)
			f.Close()
			m, err := envelope.Read(bytes.NewReader(b))
			assert.Must(t, err)
			name := envelope.Fields(m.Header)[0].Value() + " " + m.Recipients[0].Address
			if _, twice := all[name]; twice {
				t.Errorf("%s is there twice", name)
			}
			all[name] = message{dir, m.Envelope, info.ModTime}
		}
	}
	return all
}

// wanted returns the names of what newFake(n) has.
func wanted(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("M%02d r%d@far.example", i, i))
		if i%4 == 3 {
			list = append(list, fmt.Sprintf("M%02d q%d@far.example", i, i))
		}
	}
	slices.Sort(list)
	return list
}

func names(all map[string]message) []string {
	var list []string
	for n := range all {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

func TestMailIsTakenOnceWithItsEnvelopeAndAge(t *testing.T) {
	p, disk := newOffice(t)
	f := newFake(130) // more than a batch
	sum, err := Run(t.Context(), config(p, f))
	assert.Must(t, err)
	all := messages(t, disk)
	if diff := cmp.Diff(wanted(130), names(all)); diff != "" {
		t.Fatalf("messages (-want +got):\n%s", diff)
	}
	assert.Equal(t, sum, Sum{Taken: 130, Recipients: 162, Held: 43})
	m := all["M00 r0@far.example"]
	assert.Same(t, m.env, envelope.Envelope{External: true, Comments: []string{"imported from postfix M00"}, Via: "import", HasFrom: true, From: "s@old.example",
		EnvID: "E0", NotaryRet: "HDRS", Recipients: []envelope.Recipient{{Address: "r0@far.example", DSN: "NOTIFY=DELAY"}}, Octets: m.env.Octets}, "envelope")
	if late := m.age.Sub(time.Unix(1_700_000_000, 0)); late < 0 || late > time.Second || m.dir != postoffice.Router {
		t.Errorf("in %s/, %v younger than in the old queue", m.dir, late)
	}
	if held := all["M02 r2@far.example"]; held.dir != postoffice.Freezer {
		t.Errorf("what was held is in %s/", held.dir)
	}
	again, err := Run(t.Context(), config(p, f))
	if err != nil || again != (Sum{Before: 130}) {
		t.Errorf("a second import: %+v, %v", again, err)
	}
	assert.Same(t, names(messages(t, disk)), wanted(130), "after a second import")
}

func TestHeldMailSaysWhyBesideIt(t *testing.T) {
	p, disk := newOffice(t)
	if _, err := Run(t.Context(), config(p, newFake(3))); err != nil {
		t.Fatal(err)
	}
	entries, err := disk.ReadDir(postoffice.Freezer)
	assert.Must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name, "reason.") {
			f, err := disk.Open(postoffice.Freezer+"/"+e.Name, os.O_RDONLY, 0)
			assert.Must(t, err)
			b, _ := io.ReadAll(f)
			f.Close()
			if !strings.Contains(string(b), "tester frozen import from postfix deferred/M02: on hold") {
				t.Errorf("got %q", b)
			}
			return
		}
	}
	t.Error("no reason is in freezer/")
}

func TestMovedMailLeavesTheOldQueue(t *testing.T) {
	p, disk := newOffice(t)
	f := newFake(4)
	f.errs["deferred/M01"] = fmt.Errorf("still being written: %w", ErrLeft)
	f.errs["deferred/M02"] = errors.New("no sender is in it")
	f.messages["deferred/M03"].Parts = nil
	c := config(p, f)
	if _, err := Run(t.Context(), c); err != nil || len(f.removed) > 0 {
		t.Fatalf("without Move: %v, removed %q", err, f.removed)
	}
	// Taken by an earlier import: it is removed all the same.
	c.Move = true
	var told []string
	c.Tell = func(r *Result) error {
		told = append(told, fmt.Sprintf("%s %s %v %s", r.Message, r.Did, r.Moved, r.Why))
		return nil
	}
	sum, err := Run(t.Context(), c)
	assert.Must(t, err)
	if want := (Sum{Before: 1, Done: 1, Left: 1, Failed: 1, Moved: 1}); sum != want || !slices.Equal(f.removed, []string{"M00"}) {
		t.Errorf("got %+v, removed %q", sum, f.removed)
	}
	want := []string{"deferred/M00 before true ", "deferred/M01 left false still being written",
		"deferred/M02 failed false no sender is in it", "deferred/M03 done false "}
	assert.Same(t, told, want, "told")
	assert.Equal(t, len(messages(t, disk)), 1, "messages in the postoffice")
}

// What is left of a message is removed if an earlier import took it: by its key, or by what
// stands in that before a point.
func TestRemainsAreKnownByTheirKey(t *testing.T) {
	p, _ := newOffice(t)
	f := newFake(2)
	f.messages["deferred/M01"].Key = "M01.digest.1"
	c := config(p, f)
	if sum, err := Run(t.Context(), c); err != nil || sum.Taken != 2 {
		t.Fatalf("%+v, %v", sum, err)
	}
	c.Move = true
	for i, key := range []string{"M00", "M01", "M0", "M01.digest", "digest", ""} {
		name := fmt.Sprintf("deferred/R%d", i)
		f.names, f.errs[name] = append(f.names, name), &Remains{Why: "empty", Key: key}
	}
	f.names = f.names[2:]
	sum, err := Run(t.Context(), c)
	if want := (Sum{Before: 2, Left: 4, Moved: 2}); err != nil || sum != want || !slices.Equal(f.removed, []string{"R0", "R1"}) {
		t.Errorf("got %+v, %v, want %+v; removed %q", sum, err, want, f.removed)
	}
}

func TestBrokenLetterLeavesNothingBehind(t *testing.T) {
	p, disk := newOffice(t)
	f := newFake(3)
	f.messages["deferred/M00"].Parts[0].Recipients[0].Address = "no address\nto x"
	f.messages["deferred/M01"].Write = func(w io.Writer) error {
		_, err := io.WriteString(w, "Subject: half\n")
		return errors.Join(err, errors.New("it ends in the middle of a record"))
	}
	sum, err := Run(t.Context(), config(p, f))
	if want := (Sum{Taken: 1, Recipients: 1, Held: 1, Failed: 2}); err != nil || sum != want {
		t.Errorf("got %+v, %v; want %+v", sum, err, want)
	}
	if left, err := p.Imports.List("import-"); err != nil || len(left) > 0 {
		t.Errorf("imports/ has %q, %v", left, err)
	}
	assert.Equal(t, len(messages(t, disk)), 1, "messages in the postoffice")
}

func TestDryRunChangesNothing(t *testing.T) {
	p, disk := newOffice(t)
	f := newFake(5)
	c := config(p, f)
	c.Move = true
	sum, err := Look(t.Context(), c)
	if want := (Sum{Taken: 5, Recipients: 6, Held: 1}); err != nil || sum != want {
		t.Errorf("got %+v, %v; want %+v", sum, err, want)
	}
	if n := len(messages(t, disk)); n != 0 || len(f.removed) > 0 {
		t.Errorf("%d messages are in the postoffice, removed %q", n, f.removed)
	}
	if entries, err := disk.ReadDir(postoffice.Imports); err != nil || len(entries) > 0 {
		t.Errorf("imports/ has %v, %v", entries, err)
	}
}

// What is taken is taken once, wherever the import is killed or the power goes, if the
// same import is called again; nothing leaves the old queue before it is safe here. That
// holds on disks that keep less in order than a journal does, and with SYNC=strict where a
// file's sync does not cover its name.
func TestEveryCutOfAnImportLosesAndRepeatsNothing(t *testing.T) {
	for _, v := range []struct {
		model  cutfs.Model
		strict bool
	}{{model: cutfs.Journal}, {model: cutfs.Loose}, {model: cutfs.POSIX, strict: true}} {
		t.Run(v.model.String(), func(t *testing.T) {
			t.Parallel()
			cutImports(t, v.model, v.strict)
		})
	}
}

func cutImports(t *testing.T, model cutfs.Model, strict bool) {
	const n = 5
	office := func(disk durable.FS) *postoffice.PostOffice {
		p, err := postoffice.Open(postoffice.Config{FS: disk, Strict: strict})
		assert.Must(t, err)
		return p
	}
	cuts := 0
	for at := 0; ; at++ {
		base := cutfs.New()
		base.SetModel(model)
		assert.Must(t, postoffice.Init(base))
		disk := base.Restart(cutfs.KeepAll())
		p := office(disk)
		f := newFake(n)
		c := config(p, f)
		c.Move = true
		if at%2 == 0 {
			disk.CutAfter(at / 2)
		} else {
			disk.CutInside(at / 2)
		}
		_, err := Run(t.Context(), c)
		if !disk.Dead() {
			if err != nil || cuts < 20 {
				t.Fatalf("uncut: %v, after %d cuts", err, cuts)
			}
			return
		}
		cuts++
		for _, loss := range disk.Losses() {
			what := fmt.Sprintf("cut %d, %v", at, loss)
			next := disk.Restart(loss)
			again := newFake(n)
			again.names, again.removed = slices.Clone(f.names), nil
			c := config(office(next), again)
			c.Move = true
			if _, err := Run(t.Context(), c); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if diff := cmp.Diff(wanted(n), names(messages(t, next))); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", what, diff)
			}
			if len(again.names) > 0 {
				t.Fatalf("%s: %q are still in the old queue", what, again.names)
			}
		}
	}
}

// What makes names durable is done once for a batch, also where each step is (SYNC=strict).
func TestDirectoriesAreSyncedOncePerBatch(t *testing.T) {
	for _, strict := range []bool{false, true} {
		_, real := newOffice(t)
		disk := faultfs.New(real)
		p, err := postoffice.Open(postoffice.Config{FS: disk, Strict: strict})
		assert.Must(t, err)
		count := func(dir string) *faultfs.Rule {
			return disk.On(faultfs.SyncDir, dir, faultfs.Always, func(string) error { return nil })
		}
		top, imports := count("."), count(postoffice.Imports)
		if _, err := Run(t.Context(), config(p, newFake(together))); err != nil {
			t.Fatal(err)
		}
		// For the record's name; before the record names the messages; behind their moves.
		if top.Hits() != 1 || imports.Hits() != 3 {
			t.Errorf("strict %v: . %d times, imports/ %d times, want 1 and 3", strict, top.Hits(), imports.Hits())
		}
	}
}

func TestFullDiskEndsTheImportAndTheNextGoesOn(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Write, faultfs.Sync, faultfs.Create, faultfs.Rename, faultfs.SyncDir} {
		t.Run(string(op), func(t *testing.T) {
			_, real := newOffice(t)
			disk := faultfs.New(real)
			f := newFake(6)
			rule := disk.Fail(op, "*", unix.ENOSPC, 3)
			c := config(openOffice(t, disk), f)
			c.Move = true
			for range 10 {
				_, err := Run(t.Context(), c)
				if err == nil {
					break
				}
				if !Retry(err) {
					t.Fatal(err)
				}
			}
			if rule == nil {
				t.Fatal("no rule")
			}
			if diff := cmp.Diff(wanted(6), names(messages(t, real))); diff != "" || len(f.names) > 0 {
				t.Errorf("old queue %q (-want +got):\n%s", f.names, diff)
			}
		})
	}
}

func TestTwoImportsOfOneQueueDoNotRunAtOnce(t *testing.T) {
	p, _ := newOffice(t)
	c := config(p, newFake(1))
	name, _ := recordName(c.System, c.Path)
	r, _, err := p.Imports.OpenRecord(name, []byte("# x\n"))
	assert.Must(t, err)
	defer r.Close()
	if _, err := Run(t.Context(), c); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("got %v, want %v", err, durable.ErrLocked)
	}
}

func TestRecordNamesAreReadableAndTheirOwn(t *testing.T) {
	a, _ := recordName("postfix", "/var/spool/postfix")
	b, _ := recordName("postfix", "/var/spool-postfix")
	long, _ := recordName("maildir", "/"+strings.Repeat("long/\xff", 100))
	if !strings.HasPrefix(a, "postfix-var-spool-postfix-") || a == b {
		t.Errorf("got %q and %q", a, b)
	}
	if len(long) > 120 || strings.Contains(long, "/") {
		t.Errorf("got %q", long)
	}
}

// A line that a loss of power has cut says nothing, also when others follow it.
func TestTornLinesOfTheRecordAreNotBelieved(t *testing.T) {
	p, _ := newOffice(t)
	name, _ := recordName("postfix", "/x")
	const line = "2026-11-22T18:20:01Z prepared M1 import-1.2.3.4\n"
	for n := 1; n < len(line); n++ {
		r, _, err := p.Imports.OpenRecord(name, []byte(line[:n]))
		assert.Must(t, err)
		r.Close()
		r, text, err := p.Imports.OpenRecord(name, nil)
		assert.Must(t, err)
		if got := parseRecord(text); len(got) > 0 {
			t.Fatalf("%q: got %v", text, got)
		}
		assert.Must(t, r.Append([]byte("2026-11-22T18:20:01Z taken M2 S1A1\n")))
		r.Close()
		text, err = p.Imports.ReadRecord(name)
		if got := parseRecord(text); err != nil || len(got) != 1 || !got["M2"].taken {
			t.Fatalf("%q: got %v, %v", text, got, err)
		}
		assert.Must(t, p.Imports.Drop(name))
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte("# x\n2026-11-22T18:20:01Z prepared M1 a b:held\n2026-11-22T18:20:01Z taken M1 S1A1 -\n"))
	f.Add([]byte("2026-11-22T18:20:01Z prepared M1 a torn\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for key, n := range parseRecord(text) {
			if key == "" || !n.taken && len(n.files) == 0 {
				t.Fatalf("%q: %q is %+v", text, key, n)
			}
		}
	})
}

func FuzzEscape(f *testing.F) {
	f.Add("a b%\n\xff")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if got := escape(s); len(strings.Fields(got)) != 1 || strings.ContainsAny(got, "\n\x00") {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
