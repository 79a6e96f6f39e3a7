package workspec

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// attempts appends the deferrals of some attempts for all recipients, a line each as before
// ranges or one for all, and gives each attempt the reply that say has for it.
func attempts(tb testing.TB, file []byte, from, to int, each bool, say func(attempt, rcpt int) string) []byte {
	tb.Helper()
	s := assert.Get(Parse(file))(tb)
	all := allOffsets(s)
	for n := from; n <= to; n++ {
		now := time.UnixMilli(1795220000000).Add(time.Duration(n) * time.Minute)
		bySay := map[string][]int64{}
		var order []string
		for i, off := range all {
			text := say(n, i)
			if each {
				text = fmt.Sprint(i, " ", text)
			}
			if bySay[text] == nil {
				order = append(order, text)
			}
			bySay[text] = append(bySay[text], off)
		}
		for _, text := range order {
			said := text
			if each {
				_, said, _ = strings.Cut(text, " ")
			}
			e := Event{Time: now, Event: EventDeferred, Text: said, Attrs: []Attr{
				{"attempt", fmt.Sprint(n)}, {"next", fmt.Sprint(now.Add(time.Minute).UnixMilli())}, {"status", "4.7.1"}}}
			s.SetAbout(&e, bySay[text])
			file = AppendEvent(file, &e)
		}
	}
	return file
}

// life returns what the history says of one recipient's attempts: number and reply of each.
func life(tb testing.TB, file []byte, rcpt int) (list []string) {
	tb.Helper()
	s := assert.Get(Parse(file))(tb)
	off := allOffsets(s)[rcpt]
	for i := range s.History {
		if e := &s.History[i]; e.Event == EventDeferred && slices.Contains(aboutOf(s, e), off) {
			list = append(list, e.Get("attempt")+" "+e.Text)
		}
	}
	return list
}

var summarisedAt = time.UnixMilli(1795999000000)

// The first attempt, the last and each change of the reply stay; lines for each recipient
// become one for all.
func TestSummaryKeepsEachChange(t *testing.T) {
	for name, each := range map[string]bool{"a line for each recipient": true, "a line for all": false} {
		t.Run(name, func(t *testing.T) {
			file := attempts(t, many(t, 100, 1), 1, 70, each, func(n, rcpt int) string {
				switch {
				case n > 50 && rcpt%2 == 0:
					return "452 4.2.2 mailbox full"
				case n > 20:
					return fmt.Sprintf("451 4.7.1 greylisted, come back in %d seconds", 9000-n)
				}
				return "connection refused"
			})
			out := Summarise(file, summarisedAt)
			if out == nil {
				t.Fatal("it was not summarised")
			}
			t.Logf("%d bytes became %d", len(file), len(out))
			want := map[int][]string{
				0: {"1 connection refused", "21 451 4.7.1 greylisted, come back in 8979 seconds", "51 452 4.2.2 mailbox full", "70 452 4.2.2 mailbox full"},
				1: {"1 connection refused", "21 451 4.7.1 greylisted, come back in 8979 seconds", "70 451 4.7.1 greylisted, come back in 8930 seconds"},
			}
			for rcpt, want := range want {
				assert.Same(t, life(t, out, rcpt), want, "recipient %d", rcpt)
			}
			before, _ := Parse(file)
			head := before.ZOffset + int64(bytes.IndexByte(file[before.ZOffset:], '\n')) + 1
			if !bytes.Equal(out[:head], file[:head]) {
				t.Error("what the router wrote has changed")
			}
			if again := Summarise(out, summarisedAt); !bytes.Equal(again, out) {
				t.Errorf("summarised twice it is another one:\n%s\n%s", again[head:], out[head:])
			}
		})
	}
}

// What is not about attempts stays byte for byte, and what was left out is counted.
func TestSummaryLeavesAllElse(t *testing.T) {
	file := many(t, 6, 1)
	s := assert.Get(Parse(file))(t)
	all := allOffsets(s)
	same := func(int, int) string { return "451 later" }
	var keep []string
	add := func(line string) {
		file = append(file, line...)
		keep = append(keep, line)
	}
	file = attempts(t, file, 1, 5, true, same)
	add(string(AppendDiagnostic(nil, &Diagnostic{Recipient: all[5], Time: summarisedAt, Notary: Notary{Action: "failed", Status: "5.1.1"}, Text: "a\nb"})))
	file = attempts(t, file, 6, 9, false, same)
	hold := OrderEvent(summarisedAt, EventHold, "S7A1", all[:2], "me", "", "a b  c")
	add(string(AppendEvent(nil, &hold)))
	add("q a line of another program\n")
	file = append(file, "h 1795220000000 0 torn\x18\n\n"...)
	file = attempts(t, file, 10, 19, true, same)
	add("h 1795220000000 0 report file=report.1.x.1 kind=delayed rcpts=" + fmt.Sprint(all[0]) + "\n")
	file = append(file, "h 1795220000000 0 de"...)
	out := Summarise(file, summarisedAt)
	if out == nil {
		t.Fatal("it was not summarised")
	}
	text := string(out)
	for _, line := range keep {
		before, after, there := strings.Cut(text, line)
		if !there {
			t.Errorf("%q is gone, or not in order", line)
			continue
		}
		_, text = before, after
	}
	// Who was held begins a new run: its first deferral behind it is kept.
	assert.Same(t, life(t, out, 0), []string{"1 451 later", "10 451 later", "19 451 later"}, "held")
	assert.Same(t, life(t, out, 3), []string{"1 451 later", "19 451 later"}, "not held")
	got, err := Parse(out)
	if err != nil || got.Torn || got.History[0].Event != EventSummarised || got.History[0].Get(keyLines) == "0" {
		t.Errorf("%v, %+v", err, got.History)
	}
	if end := got.Summarised(); end < got.Size-100 || end > got.Size {
		t.Errorf("of %d bytes, those before %d are said to be summarised", got.Size, end)
	}
}

// However often the reply changes, the history stays within its bound.
func TestSummaryIsBounded(t *testing.T) {
	for name, say := range map[string]func(n, rcpt int) string{
		"one reply":              func(int, int) string { return "451 4.7.1 later" },
		"another one each time":  func(n, _ int) string { return "451 4.7.1 " + strings.Repeat("x", n%37) + string(rune('a'+n%26)) },
		"of each recipient":      func(n, rcpt int) string { return fmt.Sprintf("451 4.7.1 <user%d@h> later", rcpt) },
		"of each, and each time": func(n, rcpt int) string { return fmt.Sprintf("451 4.7.1 <user%d@h%d> later", rcpt, n) },
	} {
		t.Run(name, func(t *testing.T) {
			file := many(t, 400, 1)
			first := len(attempts(t, file, 1, 1, false, say))
			for n := 1; n <= 200; n += 20 {
				file = Summarise(attempts(t, file, n, n+19, false, say), summarisedAt)
				if file == nil {
					t.Fatal("it was not summarised")
				}
				if bound := max(2*first, first+smallHistory) + 200; len(file) > bound {
					t.Fatalf("after attempt %d it has %d bytes, after the first %d", n+19, len(file), first)
				}
			}
			if got := life(t, file, 7); !strings.HasPrefix(got[0], "1 451") || !strings.HasPrefix(got[len(got)-1], "200 451") {
				t.Errorf("first and last are %q and %q", got[0], got[len(got)-1])
			}
		})
	}
}

// Random histories: what programs act on is the same in the summary, and it is never refused.
func TestSummaryTellsTheSame(t *testing.T) {
	random := seeded(t)
	for range 300 {
		file := many(t, 2+2*random.IntN(6), 1)
		s := assert.Get(Parse(file))(t)
		all := allOffsets(s)
		for i := range 5 + random.IntN(60) {
			now := time.UnixMilli(1795220000000 + int64(i/(1+random.IntN(3))))
			var some []int64
			for _, off := range all {
				if random.IntN(2) == 0 {
					some = append(some, off)
				}
			}
			if len(some) == 0 {
				continue
			}
			e := Event{Time: now}
			owner := Attr{"owner", fmt.Sprint(1 + random.IntN(3))}
			switch random.IntN(9) {
			case 0:
				e.Event, e.Attrs = EventSent, []Attr{owner}
				if random.IntN(3) > 0 {
					s.SetAbout(&e, some)
				}
			case 1:
				e.Event, e.Attrs, e.Recipient = EventUnlocked, []Attr{owner}, some[0]
			case 2:
				e.Event, e.Attrs, e.Recipient = EventInDoubt, []Attr{owner}, some[0]
			case 3:
				e = OrderEvent(now, []string{EventHold, EventRelease, EventFrozen, EventThawed, EventRetry}[random.IntN(5)], "S7A1", some, "me", "", "")
			default:
				e.Event, e.Text = EventDeferred, []string{"451 a", "451 b", "refused"}[random.IntN(3)]
				e.Attrs = []Attr{{"attempt", fmt.Sprint(random.IntN(4))}, {"next", "1795220000001"}, {"status", "4.0.0"}}
				s.SetAbout(&e, some)
			}
			file = AppendEvent(file, &e)
		}
		for _, off := range all {
			if random.IntN(2) == 0 {
				copy(file[TagOffset(off):], LockBytes(1+random.IntN(3)))
			}
		}
		out := Summarise(file, summarisedAt)
		if out == nil {
			t.Fatalf("it was not summarised:\n%s", file)
		}
		before, _ := Parse(file)
		after := assert.Get(Parse(out))(t)
		// By means of their own, not by what Summarise asks.
		now := summarisedAt
		x, y := before.Orders(), after.Orders()
		dx, dy := before.Doubts(), after.Doubts()
		for gi := range before.Groups {
			for ri := range before.Groups[gi].Recipients {
				r := before.Groups[gi].Recipients[ri]
				if x.Waits(&r, now) != y.Waits(&r, now) || x.Of(r.Offset).Away(now, now, nil) != y.Of(r.Offset).Away(now, now, nil) {
					t.Fatalf("orders about %d differ:\n%s\n%s", r.Offset, file, out)
				}
				// As it is, and when its lock is given back.
				for _, r.Tag = range []Tag{r.Tag, TagToDo} {
					a, b := dx.Sent(&r), dy.Sent(&r)
					if dx.About(&r) != dy.About(&r) || (a == nil) != (b == nil) || a != nil && (!a.Time.Equal(b.Time) || a.Get("owner") != b.Get("owner")) {
						t.Fatalf("the doubt about %d differs:\n%s\n%s", r.Offset, file, out)
					}
				}
				fresh := func(s *Spec, o *Orders) (text string) {
					for i := range s.History {
						if e := &s.History[i]; e.Event == EventDeferred && slices.Contains(aboutOf(s, e), r.Offset) {
							text = fmt.Sprint(e.Text, e.Attrs[:3], o.Of(r.Offset).Fresh(e.LineOffset), o.Of(r.Offset).Hurried(e.LineOffset))
						}
					}
					return text
				}
				if a, b := fresh(before, x), fresh(after, y); a != b {
					t.Fatalf("the last deferral of %d was %s and is %s:\n%s\n%s", r.Offset, a, b, file, out)
				}
			}
		}
	}
}

// Deferrals of one moment that came from several hosts do not become one: each recipient's
// report names the host that has answered for it.
func TestSummaryKeepsWhoHasAnswered(t *testing.T) {
	file := many(t, 4, 1)
	s := assert.Get(Parse(file))(t)
	all := allOffsets(s)
	for n := 1; n < 9; n++ {
		for i, off := range all {
			e := Event{Time: summarisedAt.Add(time.Duration(n) * time.Minute), Recipient: off, Event: EventDeferred, Text: "451 later",
				Attrs: []Attr{{"attempt", fmt.Sprint(n)}, {"next", "1795220000001"}, {"status", "4.0.0"}, {"remote", fmt.Sprintf("dns;mx%d", i%2)}}}
			file = AppendEvent(file, &e)
		}
	}
	after := parsed(t, Summarise(file, summarisedAt))
	for i, off := range all {
		last := ""
		for k := range after.History {
			if e := &after.History[k]; e.Event == EventDeferred && slices.Contains(aboutOf(after, e), off) {
				last = e.Get("remote")
			}
		}
		assert.Equal(t, last, fmt.Sprintf("dns;mx%d", i%2), "server that answered for recipient %d", i)
	}
}

// What cannot be sure to be whole is left alone.
func TestOnlyWholeFilesAreSummarised(t *testing.T) {
	file := attempts(t, many(t, 6, 1), 1, 9, false, func(int, int) string { return "451 later" })
	s := assert.Get(Parse(file))(t)
	if Summarise(file[:s.ZOffset], summarisedAt) != nil || Summarise(bytes.Replace(file, []byte("\nz "), []byte("\nz 1"), 1), summarisedAt) != nil {
		t.Error("a file without its end was summarised")
	}
	if Summarise([]byte("nonsense\n"), summarisedAt) != nil {
		t.Error("nonsense was summarised")
	}
}

// FuzzSummarise: whatever was appended, a summary does not panic and is no other message.
func FuzzSummarise(f *testing.F) {
	for _, s := range []string{"h 1 39 deferred attempt=1 next=2 status=4.0.0 x\n", "h 1 0 deferred attempt=1 rcpts=39-99 x\nh 1 0 sent owner=7\n",
		"h 1 0 deferred x\nh 2 39 unlocked owner=\nh 2 39 deferred\n", "h 5 0 summarised lines=-3 kept=-1\nh 5 0 superseded\n\x00\n", "z 1\n@ 7\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		file := append(many(t, 4, 1), lines...)
		out := Summarise(file, summarisedAt)
		if out == nil {
			return
		}
		before, err := Parse(file)
		if err != nil {
			t.Fatal("what cannot be read was summarised")
		}
		after, err := Parse(out)
		if err != nil || !after.Complete || len(after.Diagnostics) != len(before.Diagnostics) {
			t.Errorf("%v: %q became %q", err, file, out)
		}
		if again := Summarise(out, summarisedAt); again == nil {
			t.Errorf("a summary cannot be summarised again: %q", out)
		}
	})
}

// A summarised copy is not taken for the file or copy whose inode number it was given.
func TestIndexKnowsASummarisedCopy(t *testing.T) {
	same := func(int, int) string { return "451 later" }
	file := attempts(t, many(t, 40, 20), 1, 5, true, same)
	first := Summarise(file, summarisedAt)
	second := Summarise(attempts(t, first, 6, 6, true, same), summarisedAt.Add(time.Millisecond))
	for name, files := range map[string][2][]byte{"the file": {file, first}, "a copy": {first, second}} {
		s := assert.Get(Parse(files[0]))(t)
		o := NewIndex(files[0], s)
		for range 2 {
			e := o.pick("h3")
			if e == nil {
				t.Fatal("the index has no such host")
			}
			_, err := e.Fill(nil, func(b []byte, off int64) error {
				if copy(b, files[1][min(off, int64(len(files[1]))):]) < len(b) {
					return fmt.Errorf("no %d bytes at %d", len(b), off)
				}
				return nil
			})
			if _, ok := e.Parse(); err == nil && ok {
				t.Errorf("the index of %s is used for its summarised copy", name)
			}
			files[1] = append(slices.Clone(files[1]), bytes.Repeat([]byte("h 1 0 policy x\n"), 2000)...)
		}
		if NewIndex(first, parsed(t, first)).pick("h3") == nil {
			t.Error("a summarised copy has no index")
		}
	}
}

func parsed(tb testing.TB, file []byte) *Spec {
	tb.Helper()
	s := assert.Get(Parse(file))(tb)
	return s
}
