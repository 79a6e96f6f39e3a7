package suspension_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

var now = time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC)

func order(n int) postoffice.OperationID { return postoffice.NewOperationID(now, "suspend", n) }

func made(t testing.TB, s suspension.Suspension) *suspension.Suspension {
	t.Helper()
	if s.Order == "" {
		s.Order = order(1)
	}
	if s.Since.IsZero() {
		s.Since = now
	}
	return assert.Get(suspension.New(s))(t)
}

// Op5: what is suspended is what the operator named.
func TestOp5SuspensionMatchesWhatItNames(t *testing.T) {
	for name, c := range map[string]struct {
		s                     suspension.Suspension
		channel, host, sender string
		want                  bool
	}{
		"the host in any case":               {suspension.Suspension{Host: "Example.NET"}, "smtp", "example.net", "a@b", true},
		"not a host below it":                {suspension.Suspension{Host: "example.net"}, "smtp", "mx.example.net", "a@b", false},
		"a pattern":                          {suspension.Suspension{Host: "*.example.net"}, "smtp", "mx.example.net", "a@b", true},
		"a literal address":                  {suspension.Suspension{Host: "[192.0.2.1]"}, "smtp", "[192.0.2.1]", "a@b", true},
		"which is no class":                  {suspension.Suspension{Host: "[192.0.2.1]"}, "smtp", "2", "a@b", false},
		"a channel":                          {suspension.Suspension{Channel: "smtp"}, "smtp", "x", "a@b", true},
		"not another channel":                {suspension.Suspension{Channel: "smtp"}, "local", "x", "a@b", false},
		"host and channel both":              {suspension.Suspension{Channel: "smtp", Host: "x"}, "local", "x", "a@b", false},
		"a sender":                           {suspension.Suspension{Sender: "A@shop.example"}, "smtp", "x", "a@SHOP.example", true},
		"in brackets":                        {suspension.Suspension{Sender: "<a@shop.example>"}, "smtp", "x", "a@shop.example", true},
		"a sender's domain":                  {suspension.Suspension{Sender: "@shop.example"}, "smtp", "x", "b@shop.example", true},
		"not a domain that ends in it":       {suspension.Suspension{Sender: "@shop.example"}, "smtp", "x", "b@eshop.example", false},
		"reports":                            {suspension.Suspension{Sender: "<>"}, "smtp", "x", "", true},
		"reports alone":                      {suspension.Suspension{Sender: "<>"}, "smtp", "x", "a@b", false},
		"a pattern of senders, not reports":  {suspension.Suspension{Sender: "*"}, "smtp", "x", "", false},
		"a sender's mail to one host":        {suspension.Suspension{Sender: "*", Host: "x"}, "smtp", "y", "a@b", false},
		"a drain concerns no delivery":       {suspension.Suspension{Accepting: true}, "smtp", "x", "a@b", false},
		"a pattern of one character":         {suspension.Suspension{Host: "mx?.example.net"}, "smtp", "mx10.example.net", "a@b", false},
		"a pattern that is long, in no time": {suspension.Suspension{Host: strings.Repeat("*a", 400)}, "smtp", strings.Repeat("a", 250), "a@b", false},
	} {
		s := made(t, c.s)
		assert.Equal(t, s.Thread(c.channel, c.host) && s.From(c.sender), c.want, name)
	}
	s := made(t, suspension.Suspension{Source: "[2001:db8::1]"})
	assert.Equal(t, s.By(netip.MustParseAddr("2001:db8::1")), true, "source")
	assert.Equal(t, s.By(netip.MustParseAddr("2001:db8::2")), false, "other source")
}

// The sources of a clause are those of ta-smtp: one of each family for a message.
func TestSourceOfAMessageIsOneOfItsClause(t *testing.T) {
	of := suspension.ParseSources([]string{"192.0.2.1", "[2001:db8::1]=a.example", "::ffff:192.0.2.2"})
	for source, want := range map[string][2]bool{"192.0.2.1": {true, false}, "192.0.2.2": {false, true}, "2001:db8::1": {true, true}, "192.0.2.3": {}} {
		s := made(t, suspension.Suspension{Source: source})
		assert.Equal(t, [2]bool{s.Leaves(of, 4), s.Leaves(of, 5)}, want, source)
	}
}

// What suspends nothing, or would be a line of its own in the file, is refused.
func TestSuspensionsThatCannotBeUsedAreRefused(t *testing.T) {
	for name, s := range map[string]suspension.Suspension{
		"nothing":         {},
		"no address":      {Source: "mx.example.net"},
		"a line":          {Host: "a\ndeliveries order=x"},
		"octets":          {Sender: "\xff@b"},
		"a drain of some": {Accepting: true, Host: "x"},
		"very long":       {Host: strings.Repeat("a", 2000)},
	} {
		if _, err := suspension.New(s); !errors.Is(err, suspension.ErrPattern) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The file is read as it was written, whatever the operator's words have in them.
func TestFileIsReadAsItWasWritten(t *testing.T) {
	l := &suspension.List{}
	l.Add(made(t, suspension.Suspension{Host: `a "b" \c`, Channel: "smtp", Sender: "<>", Source: "192.0.2.1", Who: "root", Reason: "line\nnew = x", Until: now.Add(time.Hour)}))
	l.Add(made(t, suspension.Suspension{Order: order(2), Accepting: true, Who: "älex"}))
	text := string(l.Append(nil))
	got := suspension.Parse([]byte(text))
	assert.Equal(t, len(got.Damaged), 0, "damaged lines")
	assert.Equal(t, string(got.Append(nil)), text, "file")
	assert.Equal(t, strings.Count(text, "\n"), 3, "lines")
}

// Op5: a line that is damaged is named, and the others are in force. One with a word that is
// not known is not in force: without the word it would suspend more.
func TestOp5DamagedLinesAreNamed(t *testing.T) {
	good := string(made(t, suspension.Suspension{Host: "x"}).AppendLine(nil))
	for name, bad := range map[string]string{
		"cut":                 good[:len(good)-1],
		"an unknown word":     good + ` weekday="monday"`,
		"twice":               good + ` host="y"`,
		"no order":            `deliveries since=2026-11-26T07:00:00Z host="x"`,
		"another kind":        "holidays" + good[len("deliveries"):],
		"nothing suspended":   "deliveries order=" + string(order(1)) + " since=2026-11-26T07:00:00Z",
		"two blanks":          strings.Replace(good, " host", "  host", 1),
		"a time that is none": strings.Replace(good, "since=2", "since=x", 1),
		"zeroes":              "\x00\x00\x00\x00",
	} {
		l := suspension.Parse([]byte("zmailer-suspensions 1\n" + bad + "\n" + good + "\n"))
		if len(l.All) != 1 || len(l.Damaged) != 1 || l.Damaged[0].Line != 2 {
			t.Errorf("%s: %d in force, damaged %v", name, len(l.All), l.Damaged)
		}
		if again := suspension.Parse(l.Append(nil)); len(again.All) != 1 || len(again.Damaged) != 1 {
			t.Errorf("%s: the next change has lost a line", name)
		}
	}
}

// Op5: one that has an end is over then, by itself.
func TestOp5SuspensionIsOverAtItsTime(t *testing.T) {
	l := &suspension.List{}
	l.Add(made(t, suspension.Suspension{Host: "x", Until: now.Add(time.Hour)}))
	l.Add(made(t, suspension.Suspension{Order: order(2), Accepting: true, Until: now.Add(time.Minute)}))
	assert.Equal(t, len(l.Active(now)), 2, "before")
	assert.Equal(t, l.Accepting(now).Order, order(2), "refusal of mail")
	assert.Equal(t, len(l.Active(now.Add(time.Minute))), 1, "after a minute")
	assert.Equal(t, l.Accepting(now.Add(time.Minute)), nil, "refusal of mail after a minute")
	assert.Equal(t, len(l.Active(now.Add(time.Hour))), 0, "after an hour")
}

func add(po *postoffice.PostOffice, s *suspension.Suspension) error {
	return suspension.Change(po, now, func(l *suspension.List) error {
		l.Add(s)
		return nil
	})
}

// Op5: suspending and resuming are stopped after each operation on the disk, by a kill and by
// a loss of power. What was confirmed is in force, what was not is there whole or not at all,
// and the next change succeeds.
func TestOp5CutWhileSuspendingAndResuming(t *testing.T) {
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			whole := emptyDisk(t, model)
			whole.CutAfter(1 << 30)
			confirmed := 0
			assert.Must(t, suspendAndResume(t, whole, &confirmed))
			lives := 0
			for n := range whole.Ops() {
				for _, tear := range []bool{false, true} {
					disk := emptyDisk(t, model)
					if tear {
						disk.CutInside(n)
					} else {
						disk.CutAfter(n)
					}
					confirmed := 0
					if err := suspendAndResume(t, disk, &confirmed); !disk.Dead() {
						t.Fatalf("cut %d: ended before it: %v", n, err)
					}
					for _, loss := range disk.Losses() {
						lives++
						checkCut(t, fmt.Sprintf("cut %d (torn %v), %v", n, tear, loss), disk.Restart(loss), confirmed)
					}
				}
			}
			t.Logf("%d operations, %d restarts", whole.Ops(), lives)
		})
	}
}

// Op5: moving the file of an earlier version, and resuming what it suspends, are stopped after each
// operation on the disk: what was suspended is, until the end of that was confirmed, and not again.
func TestOp5CutWhileTheFileOfAnEarlierVersionIsMoved(t *testing.T) {
	a := made(t, suspension.Suspension{Host: "a"})
	prepared := func(model cutfs.Model) *cutfs.FS {
		disk := emptyDisk(t, model)
		f := assert.Get(disk.Open(postoffice.EarlierSuspensions, os.O_WRONLY|os.O_CREATE, 0o644))(t)
		assert.Get(f.Write((&suspension.List{All: []*suspension.Suspension{a}}).Append(nil)))(t)
		assert.Must(t, errors.Join(f.Sync(), f.Close(), disk.SyncDir(".")))
		return disk
	}
	moveAndResume := func(disk *cutfs.FS) (moved, resumed bool, err error) {
		po, err := postoffice.Open(postoffice.Config{FS: disk})
		if err == nil {
			err = po.PlaceSuspensions()
		}
		if err != nil {
			return false, false, err
		}
		err = suspension.Change(po, now, func(l *suspension.List) error {
			l.Remove(l.Find(a.Order))
			return nil
		})
		return true, err == nil, err
	}
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		whole := prepared(model)
		whole.CutAfter(1 << 30)
		if _, resumed, err := moveAndResume(whole); !resumed {
			t.Fatal(err)
		}
		for n := range whole.Ops() {
			disk := prepared(model)
			disk.CutAfter(n)
			moved, resumed, err := moveAndResume(disk)
			if !disk.Dead() {
				t.Fatalf("cut %d: ended before it: %v", n, err)
			}
			for _, loss := range disk.Losses() {
				po := assert.Get(postoffice.Open(postoffice.Config{FS: disk.Restart(loss)}))(t)
				assert.Must(t, po.PlaceSuspensions())
				l := assert.Get(suspension.Read(po))(t)
				if got := hosts(l); got != "a" && (got != "" || !moved) || got == "a" && resumed || len(l.Damaged) > 0 {
					t.Fatalf("%v, cut %d, %v: %q is in force, resumed: %v", model, n, loss, got, resumed)
				}
			}
		}
	}
}

func emptyDisk(t *testing.T, model cutfs.Model) *cutfs.FS {
	t.Helper()
	disk := cutfs.New()
	disk.SetModel(model)
	assert.Must(t, postoffice.Init(disk))
	return disk
}

// steps are the suspensions in force after each change of suspendAndResume.
var steps = []string{"", "a", "a b", "b", ""}

func suspendAndResume(t *testing.T, disk *cutfs.FS, confirmed *int) error {
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		return err
	}
	a, b := made(t, suspension.Suspension{Host: "a"}), made(t, suspension.Suspension{Order: order(2), Host: "b"})
	remove := func(id postoffice.OperationID) error {
		return suspension.Change(po, now, func(l *suspension.List) error {
			l.Remove(l.Find(id))
			return nil
		})
	}
	for _, step := range []func() error{
		func() error { return add(po, a) }, func() error { return add(po, b) },
		func() error { return remove(a.Order) }, func() error { return remove(b.Order) },
	} {
		if err := step(); err != nil {
			return err
		}
		*confirmed++
	}
	return nil
}

func hosts(l *suspension.List) string {
	var list []string
	for _, s := range l.All {
		list = append(list, s.Host)
	}
	return strings.Join(list, " ")
}

func checkCut(t *testing.T, name string, disk *cutfs.FS, confirmed int) {
	t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	l, err := suspension.Read(po)
	if err != nil || len(l.Damaged) > 0 {
		t.Fatalf("%s: %v, damaged %v", name, err, l.Damaged)
	}
	got := hosts(l)
	if next := steps[min(confirmed+1, len(steps)-1)]; got != steps[confirmed] && got != next {
		t.Fatalf("%s: %q is in force, %q was confirmed, %q was being written", name, got, steps[confirmed], next)
	}
	if err := add(po, made(t, suspension.Suspension{Order: order(3), Host: "c"})); err != nil {
		t.Fatalf("%s: the next change: %v", name, err)
	}
	l, err = suspension.Read(po)
	if err != nil || hosts(l) != strings.TrimSpace(got+" c") {
		t.Fatalf("%s: after the next change %q is in force, %v", name, hosts(l), err)
	}
}

// Op5: the programs that follow the file learn of each change and of each end.
func TestOp5FollowersLearnOfEachChange(t *testing.T) {
	dir := t.TempDir()
	po := assert.Get(postoffice.OpenDir(initDir(t, dir), 0, false))(t)
	ctx, cancel := context.WithTimeout(t.Context(), logtest.Patience)
	defer cancel()
	seen := make(chan int, 10)
	go suspension.Follow(ctx, suspension.Following{PostOffice: po, Dir: dir, Every: time.Hour, Now: time.Now, Log: (&logtest.Buffer{}).Logger(),
		Changed: func(l *suspension.List, err error) {
			if err == nil {
				seen <- len(l.Active(time.Now()))
			}
		}})
	want := func(n int) {
		t.Helper()
		select {
		case got := <-seen:
			assert.Equal(t, got, n, "suspensions")
		case <-ctx.Done():
			t.Fatal("nothing was reported")
		}
	}
	want(0)
	assert.Must(t, suspension.Change(po, time.Now(), func(l *suspension.List) error {
		l.Add(made(t, suspension.Suspension{Host: "a", Until: time.Now().Add(300 * time.Millisecond).Truncate(time.Second).Add(time.Second)}))
		return nil
	}))
	want(1)
	want(0)
}

func initDir(t *testing.T, dir string) string {
	t.Helper()
	f := assert.Get(durable.NewOS(dir))(t)
	assert.Must(t, postoffice.Init(f))
	assert.Must(t, f.Close())
	return dir
}

// Whatever is in the file, reading it does not fail, and what was read is read again from
// what is written then.
func FuzzParse(f *testing.F) {
	l := &suspension.List{}
	s, err := suspension.New(suspension.Suspension{Order: order(1), Since: now, Host: "a*", Channel: "smtp", Sender: "@b", Source: "::1", Who: "x", Reason: `"`})
	if err != nil {
		f.Fatal(err)
	}
	l.Add(s)
	f.Add(l.Append(nil))
	f.Add([]byte("accepting order=20261126-070000-drain-1 since=2026-11-26T07:00:00Z by=\"x\"\n#\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		first := suspension.Parse(b)
		text := first.Append(nil)
		again := suspension.Parse(text)
		if len(again.All) != len(first.All) || len(again.Damaged) != len(first.Damaged) {
			t.Fatalf("%d and %d lines are %d and %d after a change:\n%q", len(first.All), len(first.Damaged), len(again.All), len(again.Damaged), text)
		}
		for _, s := range first.All {
			s.Thread("smtp", "host")
			s.From("a@b")
		}
	})
}
