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
	"zmailer/internal/taproto"
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
			if err := d.Sent(); err != nil {
				t.Error(err)
			}
			if got := string(d.Header(d.Recipients[0].Group)); got != "Received: here\nSubject: x\n" {
				t.Errorf("%s: got header %q", host, got)
			}
			for _, r := range d.Recipients {
				d.Done(r, results[i%3])
			}
		}))
	}
	if got := s.reads(name); got != 1 {
		t.Errorf("got %d readings of the whole file, want 1", got)
	}
	spec := s.spec(name)
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
	if got := s.reads(name); got != 0 || strings.Contains(s.tags(name), " ") {
		t.Errorf("got %d more readings of the whole file and tags %q, want none and all done", got, s.tags(name))
	}
}

// What happens to the file between two jobs is seen as if it was read anew.
func TestChangesBetweenJobsAreSeen(t *testing.T) { // M18, K10
	const dead = 999998
	rewrite := func(s *spool, name string, edit func(string) string) {
		if err := os.WriteFile(s.path(name), []byte(edit(s.text(name))), 0o600); err != nil { // the same inode
			s.Fatal(err)
		}
	}
	third := func(s *spool, name string) workspec.Recipient { return s.spec(name).Groups[0].Recipients[3] } // u@h2
	tests := map[string]struct {
		change func(s *spool, name string)
		want   string // whom it is delivered to
		whole  int    // readings of the whole file
	}{
		"nothing": {func(*spool, string) {}, "u@h2", 0},
		"locked by a process that lives": {func(s *spool, name string) {
			s.mark(name, 3, workspec.LockBytes(s.owner().Number()))
		}, "", 0},
		"delivered": {func(s *spool, name string) { s.mark(name, 3, workspec.TagBytes(workspec.FormatOurs, workspec.TagOK)) }, "", 0},
		"held": {func(s *spool, name string) {
			s.event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{7, third(s, name).Offset}, "me"))
		}, "", 0},
		"another one held": {func(s *spool, name string) {
			s.event(name, workspec.RemovedEvent(testTime, workspec.EventHold, "x", []int64{s.spec(name).Groups[0].Recipients[4].Offset}, "me"))
		}, "u@h2", 0},
		"its agent died after sent": {func(s *spool, name string) {
			s.mark(name, 3, workspec.LockBytes(dead))
			s.event(name, workspec.Event{Time: testTime, Recipient: third(s, name).Offset, Event: workspec.EventSent,
				Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}})
		}, "u@h2 in doubt", 0},
		"an agent died after sent to all": {func(s *spool, name string) {
			s.mark(name, 3, workspec.LockBytes(dead))
			s.event(name, workspec.Event{Time: testTime, Event: workspec.EventSent, Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(dead)}}})
		}, "u@h2 in doubt", 0},
		"an edited copy in its place": {func(s *spool, name string) {
			s.replace(name, func(text string) string { return strings.Replace(text, "u@h2 ", "x@h2 ", 1) })
		}, "x@h2", 1},
		"edited in place": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return strings.Replace(text, "u@h2 ", "x@h2 ", 1) })
		}, "x@h2", 0},
		"to another host in place": {func(s *spool, name string) {
			rewrite(s, name, func(text string) string { return strings.Replace(text, "smtp h2 ", "smtp h3 ", 1) })
		}, "", 0},
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
			if err := os.Remove(s.path(name)); err != nil {
				s.Fatal(err)
			}
		}, "", 0},
		"another message's with its inode number": {func(s *spool, name string) {
			other := s.many(150)
			text := strings.ReplaceAll(s.text(other), "u@", "x@")
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
					if err := d.Sent(); err != nil {
						t.Error(err)
					}
					d.Done(d.Recipients[0], ok)
				}))
			}
			c.change(s, file)
			s.fs.taken()
			var got []string
			s.do(file, "h2", deliverFunc(func(_ context.Context, d *Delivery) {
				if err := d.Sent(); err != nil {
					t.Error(err)
				}
				for _, r := range d.Recipients {
					got = append(got, r.Address)
					d.Done(r, ok)
				}
			}))
			if strings.Contains(s.log.String(), "msg=in-doubt") {
				got = append(got, "in doubt")
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("got it delivered to %q, want %q", got, c.want)
			}
			if got := s.reads(file); got != c.whole {
				t.Errorf("got %d readings of the whole file, want %d", got, c.whole)
			}
			if name == "a torn line behind" && !strings.Contains(s.text(file), "\nh 17952200101\x18\nh ") {
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
					if err := d.Sent(); err != nil {
						t.Error(err)
					}
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
	if tags := s.tags(name); strings.Trim(tags, "+") != "" {
		t.Errorf("got tags %q", tags)
	}
	if got := s.reads(name); got > slots {
		t.Errorf("got %d readings of the whole file, want one of each slot at most", got)
	}
}

// What is remembered has an end: of files, and of their recipients.
func TestFewOutlinesAreKept(t *testing.T) {
	s := newSpool(t)
	var names []string
	for range mostOutlines + 2 {
		names = append(names, s.many(150))
		s.do(names[len(names)-1], "h1", give(ok))
		s.do(names[0], "h2", give(later)) // it is the one that is used
	}
	open := func(name string) *postoffice.Spec {
		f, err := s.po.OpenSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	l := &s.agent.outlines
	if len(l.list) != mostOutlines || l.of(open(names[0])) == nil || l.of(open(names[1])) != nil {
		t.Errorf("got %d outlines, the first of them %v", len(l.list), l.list[0])
	}
	l.list[1].places.Store(workspec.MaxPlaces)
	if l.of(open(names[0])); len(l.list) != mostOutlines-2 {
		t.Errorf("got %d outlines beside a large one that was used long ago, want %d", len(l.list), mostOutlines-2)
	}
	if err := os.Remove(filepath.Join(s.dir, "transport", names[0])); err != nil {
		t.Fatal(err)
	}
	if got := s.agent.Do(t.Context(), taproto.Job{Name: names[0], Host: "h3"}, give(ok)); len(got) != 1 || got[0].Kind != taproto.LineResync {
		t.Errorf("got %v of a file that is gone, want a resync", got)
	}
}
