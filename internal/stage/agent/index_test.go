package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// many queues a message to u@hN of so many hosts, of which each tenth has two recipients.
func (s *spool) many(hosts int) string {
	s.Helper()
	var rcpts []rcpt
	for i := range hosts {
		host := fmt.Sprintf("h%d", i)
		rcpts = append(rcpts, rcpt{"smtp", host, "u@" + host, "NOTIFY=FAILURE,DELAY ORCPT=rfc822;somebody@else.example"})
		if i%10 == 0 {
			rcpts = append(rcpts, rcpt{"smtp", host, "v@" + host, ""})
		}
	}
	return s.queue(rcpts...)
}

// reads counts the readings of a specification from its start that have begun.
func (s *spool) reads(name string) (whole int) {
	for _, op := range s.fs.taken() {
		if op == "read transport/"+name {
			whole++
		}
	}
	return whole
}

// A message to many hosts is read once, and then what concerns each host.
func TestSpecificationIsReadOnceForAllHosts(t *testing.T) {
	s := newSpool(t)
	name := s.many(200)
	s.fs.taken()
	results := []Result{ok, noUser, later}
	for i := range 200 {
		host := fmt.Sprintf("H%d", i)
		s.do(name, host, deliverFunc(func(_ context.Context, d *Delivery) {
			assert.NoError(t, d.Sent())
			assert.Equal(t, string(d.Header(d.Recipients[0].Group)), "Received: here\nSubject: x\n", "%s: header", host)
			for _, r := range d.Recipients {
				d.Done(r, results[i%3])
			}
		}))
	}
	assert.Equal(t, s.reads(name), 1, "readings of the whole file")
	spec := s.Spec(name)
	for i, r := range spec.Groups[0].Recipients {
		n, _ := strconv.Atoi(strings.TrimPrefix(r.Host, "h"))
		want := []workspec.Tag{workspec.TagOK, workspec.TagFailed, workspec.TagToDo}[n%3]
		if r.Tag != want || r.Owner != 0 {
			t.Errorf("recipient %d, %s: got tag %q of %d, want %q", i, r.Address, byte(r.Tag), r.Owner, byte(want))
		}
	}
	// Those that wait are tried again, with what was written about them since.
	for i := 2; i < 200; i += 3 {
		s.do(name, fmt.Sprintf("h%d", i), deliverFunc(func(_ context.Context, d *Delivery) {
			for _, r := range d.Recipients {
				if r.Sent == nil || r.Sent.Get("owner") != strconv.Itoa(s.agent.Owner.Number()) {
					t.Errorf("%s: got %v as the last event, want its sent", r.Address, r.Sent)
				}
				d.Done(r, ok)
			}
		}))
	}
	if got := s.reads(name); got != 0 || strings.Contains(s.Tags(name), " ") {
		t.Errorf("got %d more readings of the whole file and tags %q, want none and all done", got, s.Tags(name))
	}
}

// What happens to the file between two jobs is seen as if it was read anew.
func TestChangesBetweenJobsAreSeen(t *testing.T) { // M18, K10
	const dead = 999998
	rewrite := func(s *spool, name string, edit func(string) string) {
		if err := os.WriteFile(s.Path(name), []byte(edit(s.Text(name))), 0o600); err != nil { // the same inode
			s.Fatal(err)
		}
	}
	third := func(s *spool, name string) workspec.Recipient { return s.Spec(name).Groups[0].Recipients[3] } // u@h2
	ends := 0                                                                                               // where lines end that are known
	tests := map[string]struct {
		change func(s *spool, name string)
		want   string // whom it is delivered to
		whole  int    // readings of the whole file
	}{
		"nothing": {func(*spool, string) {}, "u@h2", 0},
		"locked by a process that lives": {func(s *spool, name string) {
			s.Mark(name, 3, workspec.LockBytes(s.owner().Number()))
		}, "", 0},
		"delivered": {func(s *spool, name string) { s.Mark(name, 3, workspec.TagBytes(workspec.FormatOurs, workspec.TagOK)) }, "", 1},
		"held": {func(s *spool, name string) {
			s.Event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{7, third(s, name).Offset}, "me"))
		}, "", 1},
		"held behind many lines": {func(s *spool, name string) {
			for range 200 {
				s.Event(name, workspec.Event{Time: testTime, Event: workspec.EventPolicy, Text: "x"})
			}
			s.Event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{third(s, name).Offset}, "me"))
		}, "", 1},
		"many lines": {func(s *spool, name string) {
			for range 200 {
				s.Event(name, workspec.Event{Time: testTime, Event: workspec.EventPolicy, Text: "x"})
			}
		}, "u@h2", 0},
		"cut off, and another one held": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return text[:strings.Index(text, "\nh ")+1] })
			for range 3 {
				s.Event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{third(s, name).Offset}, "me"))
			}
			rewrite(s, name, func(text string) string { // whole lines where those were that are known
				i := strings.Index(text, "\nh ") + 1
				return text[:i] + "h 1795220010123 0 " + strings.Repeat("x", ends-i-19) + "\n" + text[i:]
			})
		}, "", 1},
		"another one held": {func(s *spool, name string) {
			s.Event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{s.Spec(name).Groups[0].Recipients[4].Offset}, "me"))
		}, "u@h2", 0},
		"its agent died after sent": {func(s *spool, name string) {
			s.Mark(name, 3, workspec.LockBytes(dead))
			s.Event(name, workspec.Event{Time: testTime, Recipient: third(s, name).Offset, Event: workspec.EventSent,
				Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}})
		}, "u@h2 in doubt", 0},
		"an agent died after sent to all": {func(s *spool, name string) {
			s.Mark(name, 3, workspec.LockBytes(dead))
			s.Event(name, workspec.Event{Time: testTime, Event: workspec.EventSent, Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}})
		}, "u@h2 in doubt", 0},
		"an edited copy in its place": {func(s *spool, name string) {
			s.replace(name, func(text string) string { return strings.Replace(text, "u@h2 ", "x@h2 ", 1) })
		}, "x@h2", 1},
		"edited in place": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return strings.Replace(text, "u@h2 ", "x@h2 ", 1) })
		}, "x@h2", 0},
		"to another host in place": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return strings.Replace(text, "smtp h2 ", "smtp h3 ", 1) })
		}, "", 1},
		"a line less in place": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string {
				i := strings.Index(text, "\nr")
				return text[:i] + text[i+1+strings.Index(text[i+1:], "\n"):]
			})
		}, "", 1},
		"cut off": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return text[:len(text)/2] })
		}, "", 1},
		"lines behind cut off": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return text[:strings.Index(text, "\nh ")+1] })
		}, "u@h2", 1},
		"other lines behind": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string {
				return text[:strings.Index(text, "\nh ")+1] + "h 1795220010123 0 " + strings.Repeat("x", 200) + "\n"
			})
		}, "u@h2", 1},
		"empty": {func(s *spool, name string) { rewrite(s, name, func(string) string { return "" }) }, "", 1},
		"gone": {func(s *spool, name string) {
			assert.Must(s, os.Remove(s.Path(name)))
		}, "", 0},
		"another message's with its inode number": {func(s *spool, name string) {
			other := s.many(150)
			text := strings.ReplaceAll(s.Text(other), "u@", "x@")
			rewrite(s, name, func(string) string { return text })
		}, "x@h2", 1},
		"a torn line behind": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return text + "h 17952200101" })
		}, "u@h2", 0},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.many(150)
			for _, host := range []string{"h1", "h4"} {
				s.do(file, host, deliverFunc(func(_ context.Context, d *Delivery) {
					assert.NoError(t, d.Sent())
					d.Done(d.Recipients[0], ok)
				}))
			}
			ends = len(s.Text(file))
			c.change(s, file)
			s.fs.taken()
			var got []string
			s.do(file, "h2", deliverFunc(func(_ context.Context, d *Delivery) {
				assert.NoError(t, d.Sent())
				for _, r := range d.Recipients {
					got = append(got, r.Address)
					d.Done(r, ok)
				}
			}))
			if strings.Contains(s.log.String(), "msg=in-doubt") {
				got = append(got, "in doubt")
			}
			assert.Equal(t, strings.Join(got, " "), c.want, "delivered to")
			assert.Equal(t, s.reads(file), c.whole, "readings of the whole file")
			if name == "a torn line behind" && !strings.Contains(s.Text(file), "\nh 17952200101\x18\nh ") {
				t.Error("the torn line was not ended")
			}
		})
	}
}

// Slots of one process that work on one message's hosts at once.
func TestManyHostsInManySlots(t *testing.T) {
	s := newSpool(t)
	const hosts, slots = 300, 8
	name := s.many(hosts)
	delivered := make(chan string, 2*hosts)
	var workers sync.WaitGroup
	for slot := range slots {
		workers.Go(func() {
			for i := slot; i < hosts; i += slots {
				s.do(name, fmt.Sprintf("h%d", i), deliverFunc(func(_ context.Context, d *Delivery) {
					assert.NoError(t, d.Sent())
					for _, r := range d.Recipients {
						delivered <- r.Address
						d.Done(r, ok)
					}
				}))
			}
		})
	}
	workers.Wait()
	close(delivered)
	var got []string
	for address := range delivered {
		got = append(got, address)
	}
	slices.Sort(got)
	if n := len(slices.Compact(slices.Clone(got))); n != 330 || len(got) != 330 {
		t.Errorf("got %d deliveries to %d recipients, want 330", len(got), n)
	}
	if tags := s.Tags(name); strings.Trim(tags, "+") != "" {
		t.Errorf("got tags %q", tags)
	}
	if got := s.reads(name); got > slots {
		t.Errorf("got %d readings of the whole file, want one of each slot at most", got)
	}
}

// What is remembered has an end: of files, and of their recipients.
func TestFewIndexsAreKept(t *testing.T) {
	s := newSpool(t)
	var names []string
	for range mostIndexes + 2 {
		names = append(names, s.many(150))
		s.do(names[len(names)-1], "h1", give(ok))
		s.do(names[0], "h2", give(later)) // it is the one that is used
	}
	open := func(name string) *postoffice.Spec {
		f, err := s.PostOffice.Queue.Open(name)
		assert.Must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	l := &s.agent.indexes
	if len(l.list) != mostIndexes || l.of(open(names[0])) == nil || l.of(open(names[1])) != nil {
		t.Errorf("got %d indexes, the first of them %v", len(l.list), l.list[0])
	}
	other := open(names[0])
	other.Info.Dev++
	if l.of(other) != nil {
		t.Error("a file of another disk has the index of one with its number")
	}
	l.list[1].places.Store(workspec.MaxPlaces)
	if l.of(open(names[0])); len(l.list) != mostIndexes-2 {
		t.Errorf("got %d indexes beside a large one that was used long ago, want %d", len(l.list), mostIndexes-2)
	}
	assert.Must(t, os.Remove(filepath.Join(s.Dir, "transport", names[0])))
	if got := s.agent.Do(t.Context(), taproto.Job{Name: names[0], Host: "h3"}, give(ok)); len(got) != 1 || got[0].Kind != taproto.LineResync {
		t.Errorf("got %v of a file that is gone, want a resync", got)
	}
}

// A host that is corrected in place, to one of the same length.
func TestHostCorrectedInPlaceIsFound(t *testing.T) {
	s := newSpool(t)
	file := s.many(150)
	s.do(file, "h1", give(ok))
	s.do(file, "h3", give(ok))
	text := strings.Replace(s.Text(file), "smtp h2 ", "smtp h3 ", 1)
	assert.Must(t, os.WriteFile(s.Path(file), []byte(text), 0o600))
	s.do(file, "h3", give(ok))
	assert.Equal(t, s.Spec(file).Groups[0].Recipients[3].Tag, workspec.TagOK, "tag of u@h2, whose host is h3 now")
}

// A hold's line is deleted in place, and another recipient held by one of the same length.
func TestTailOfTheSameLengthIsSeen(t *testing.T) {
	s := newSpool(t)
	file := s.many(150)
	rs := s.Spec(file).Groups[0].Recipients
	before := s.Text(file)
	s.Event(file, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{rs[20].Offset}, "me"))
	s.do(file, "h150", give(ok))
	assert.Must(t, os.WriteFile(s.Path(file), []byte(before), 0o600))
	s.Event(file, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{rs[25].Offset}, "me"))
	s.do(file, rs[25].Host, give(ok))
	assert.Equal(t, s.Spec(file).Groups[0].Recipients[25].Tag, workspec.TagToDo, "tag of a recipient that is held")
}

// An agent that says "sent" after the file was read, and is dead when it is asked for.
func TestDeathBehindTheReadingIsSeen(t *testing.T) { // M18
	const dead = 999998
	for _, before := range []string{"", "h1"} { // the file is read whole, or by its index
		s := newSpool(t)
		file := s.many(150)
		r := s.Spec(file).Groups[0].Recipients[3]
		if before != "" {
			s.do(file, before, give(ok))
		}
		s.Mark(file, 3, workspec.LockBytes(dead))
		said := false
		s.fs.failing(func(op, name string) error {
			if !said && strings.Contains(name, strconv.Itoa(dead)) {
				said = true
				s.Event(file, workspec.Event{Time: testTime, Recipient: r.Offset, Event: workspec.EventSent,
					Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}})
			}
			return nil
		})
		s.do(file, r.Host, give(ok))
		if !said || !strings.Contains(s.log.String(), "msg=in-doubt") {
			t.Errorf("after %q: said sent: %v; the doubt was not seen: %s", before, said, s.log)
		}
	}
}

// Who gives a lock back in doubt, between the reading of the lines and that of the tags.
func TestLineBeforeTheTagIsSeen(t *testing.T) {
	s := newSpool(t)
	file := s.many(150)
	r := s.Spec(file).Groups[0].Recipients[3]
	event := func(word string) {
		s.Event(file, workspec.Event{Time: testTime, Recipient: r.Offset, Event: word, Attrs: []workspec.Attr{{Key: "owner", Value: "999998"}}})
	}
	event(workspec.EventSent)
	s.do(file, "h1", give(ok))
	reads := 0
	s.fs.failing(func(op, name string) error {
		if op == "readat" && name == "transport/"+file {
			if reads++; reads == 3 { // the lines, their end, and now the parts
				event(workspec.EventUnlocked)
			}
		}
		return nil
	})
	s.do(file, r.Host, give(ok))
	if reads < 3 || !strings.Contains(s.log.String(), "msg=in-doubt") {
		t.Errorf("the doubt was not seen in %d readings: %s", reads, s.log)
	}
}

// A file that cannot have an index is asked once, not by each job; one whose host is
// read whole keeps the one that it has.
func TestIndexIsTriedOnce(t *testing.T) {
	s := newSpool(t)
	file := s.many(150)
	text := s.Text(file)
	z := strings.LastIndex(text[:len(text)-1], "\nz ") + 1
	line := text[z:]
	assert.Must(t, os.WriteFile(s.Path(file), []byte(text[:z]+line[:strings.LastIndexByte(line, ' ')]+"\n"), 0o600))
	l := &s.agent.indexes
	s.do(file, "h1", give(ok))
	first := l.list[0]
	s.do(file, "h2", give(ok))
	if first.index != nil || l.list[0] != first {
		t.Errorf("got %+v, then %+v of a file without checksum", first, l.list[0])
	}
	assert.Must(t, os.WriteFile(s.Path(file), []byte(text), 0o600))
	s.do(file, "h3", give(ok))
	if l.list[0].index == nil {
		t.Error("another file in its place has no index")
	}
	few, body := s.message("Subject: x\n\n", "body\n")
	s.specify(few, body, "Subject: "+strings.Repeat("x", 10<<10)+"\n", rcpt{"smtp", "h1", "a@h1", ""}, rcpt{"smtp", "h2", "a@h2", ""})
	s.do(few, "h1", give(ok))
	first = l.list[len(l.list)-1]
	s.do(few, "h2", give(ok))
	if first.index == nil || l.list[len(l.list)-1] != first {
		t.Errorf("got %+v, then %+v of a file that is read whole", first, l.list[len(l.list)-1])
	}
}

// Recipients of a host that stand apart are marked each on its own, and the headers of
// groups that stand apart are there.
func TestPartsApartStayApart(t *testing.T) {
	s := newSpool(t)
	name, body := s.message("Subject: x\n\n", "body\n")
	var b strings.Builder
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: body})
	for i, fill := range []int{maxUnused, 3 * maxUnused, maxUnused} {
		var list []workspec.Recipient
		for j := range 150 {
			host := fmt.Sprintf("h%d", j)
			if i != 1 && j%30 == 0 {
				host = "many"
			}
			list = append(list, workspec.Recipient{Channel: "smtp", Host: host, Address: fmt.Sprintf("u%d@%s", i, host), Privilege: "65534"})
		}
		w.Group(workspec.Sender{Channel: "local", Host: "sender", Address: fmt.Sprintf("s%d@example.org", i), Privilege: "1"}, list,
			[]byte(fmt.Sprintf("Subject: %d\n", i)+strings.Repeat("X: "+strings.Repeat("x", 60)+"\n", fill/64)))
	}
	assert.Must(t, w.Close())
	assert.Must(t, os.WriteFile(s.Path(name), []byte(b.String()), 0o600))
	s.do(name, "h1", give(ok))
	s.fs.taken()
	s.do(name, "many", deliverFunc(func(_ context.Context, d *Delivery) {
		marks := 0
		for _, op := range s.fs.taken() {
			if op == "writeat transport/"+name {
				marks++
			}
		}
		if marks != 10 || len(d.Recipients) != 10 || !d.some {
			t.Errorf("got %d locks of %d recipients, want 10 each on its own", marks, len(d.Recipients))
		}
		for _, r := range d.Recipients {
			if h := string(d.Header(r.Group)); !strings.HasPrefix(h, "Subject: "+r.Address[1:2]+"\n") {
				t.Errorf("%s: got header %.20q", r.Address, h)
			}
			d.Done(r, ok)
		}
	}))
}
