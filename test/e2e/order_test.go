package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// lot plants messages as a submitter leaves them.
type lot struct {
	t  *testing.T
	s  *suite.Suite
	po *postoffice.PostOffice
}

func newLot(t *testing.T, s *suite.Suite) *lot {
	t.Helper()
	po, err := postoffice.OpenDir(s.PostOffice(), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	return &lot{t, s, po}
}

// put accepts a message in a router directory and gives its spool ID.
func (l *lot) put(dir string) (postoffice.Accepted, error) {
	d, err := l.po.Submissions.NewDraft("test")
	if err != nil {
		return postoffice.Accepted{}, err
	}
	d.Into(dir)
	if _, err := d.Write([]byte("from <bob@mta.example>\nto <a@far.example>\nenv-end\nSubject: x\n\nx\n")); err != nil {
		return postoffice.Accepted{}, err
	}
	return d.Commit()
}

// old is put for a message that has waited so long.
func (l *lot) old(dir string, age time.Duration) string {
	l.t.Helper()
	a, err := l.put(dir)
	if err != nil {
		l.t.Fatal(err)
	}
	if !strings.HasPrefix(a.Name, dir+"/") {
		l.t.Fatalf("accepted as %s, want it in %s/", a.Name, dir)
	}
	if age == 0 {
		return a.ID.String() // a router that runs may have it already
	}
	at := time.Now().Add(-age)
	name := filepath.Join(l.s.PostOffice(), a.Name)
	if err := os.Chtimes(name, at, at); err != nil {
		l.t.Fatal(err)
	}
	return postoffice.SpoolID{Ino: a.ID.Ino, MTime: at.UnixNano()}.String()
}

// keepBusy has one more message come for each that is routed, so that as many wait
// always; order gives those that were routed so far.
func (l *lot) keepBusy() (order func() []string) {
	var mu sync.Mutex
	var routed []string
	l.s.OnEvent = func(e suite.Event) {
		if e.Word != "routed" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		routed = append(routed, e.Get("id"))
		if _, err := l.put("router"); err != nil && len(routed) < 2 {
			l.t.Errorf("submit: %v", err)
		}
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(routed)
	}
}

// busyPostoffice is a postoffice with two more router directories, and one worker.
func busyPostoffice(t *testing.T) (*suite.Suite, *lot) {
	t.Helper()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Files["routes"] = ". bitbucket!\n"
		s.Settings = map[string]string{"ROUTERDIRS": `"router2 router3"`, "ROUTERAGING": "1h", "ROUTERWORKERS": "1"}
	})
	return s, newLot(t, s)
}

// No starvation of old mail under constant new load (M3, M4), and what waits in lower
// directories is served in turn: docs/order.md.
func TestOldMailIsRoutedUnderConstantLoad(t *testing.T) {
	t.Parallel()
	const backlog = 150
	s, l := busyPostoffice(t)
	second, third := l.old("router2", 2*time.Hour), l.old("router3", 90*time.Minute)
	for range backlog {
		l.old("router", time.Minute)
	}
	oldest := l.old("router", time.Hour)
	order := l.keepBusy()
	begin(t, s)
	// One that comes last of all, in router/: those before it do not grow.
	last := l.old("router", 0)
	for name, c := range map[string]struct {
		id    string
		limit int
	}{
		"two hours, in router2/":      {second, 4},
		"an hour and a half, router3": {third, 8},
		"the oldest, in router/":      {oldest, 2},
		"the last of those":           {last, backlog + backlog/2},
	} {
		if _, err := s.Wait(patience, "message "+name, func(e suite.Event) bool { return e.Is("routed", "id", c.id) }); err != nil {
			t.Fatal(err)
		}
		at := slices.Index(order(), c.id) + 1
		t.Logf("%s: routed as number %d", name, at)
		if c.id == last {
			c.limit += at / 2 // the system was under way when it came
		}
		if at < 1 || at > c.limit {
			t.Errorf("%s: routed as number %d, want %d at most", name, at, c.limit)
		}
	}
	// The load has not ended.
	have := len(order())
	await(t, s, "more mail that is routed", func() (bool, error) { return len(order()) > have+10, nil })
	stop(t, s)
}

// M3 M4 with the real programs: submit -P, SMTPPRIORITY and ROUTERDIRS; 100 in router2/,
// one into router/ is routed before them, and each directory's oldest first.
func TestDirectoriesAreRoutedInOrder(t *testing.T) {
	t.Parallel()
	s, l := busyPostoffice(t)
	write(t, s.Config(), read(t, s.Config())+"SMTPPRIORITY=2\n")
	var want []string
	for _, dir := range []string{"router", "router2", "router3"} {
		ids := make([]string, 20)
		for _, n := range []int{7, 2, 19, 0, 11, 5, 14, 3, 9, 17, 1, 13, 6, 18, 4, 10, 16, 8, 15, 12} {
			ids[n] = l.old(dir, time.Duration(50-n)*time.Minute)
		}
		want = append(want, ids...)
	}
	submit(t, s, "Subject: may wait\n\n", "-P", "1", "-f", "bob@mta.example", "a@far.example")
	submit(t, s, "Subject: may wait long\n\n", "-P9", "-f", "bob@mta.example", "a@far.example")
	submit(t, s, "Subject: may not\n\n", "-P0", "-f", "bob@mta.example", "a@far.example")
	for dir, n := range map[string]int{"router": 21, "router2": 21, "router3": 21} {
		if got := names(t, s, dir); len(got) != n {
			t.Errorf("%s/ has %d messages, want %d", dir, len(got), n)
		}
	}
	// zmctl looks into all of them.
	if out, err := s.Command("zmctl", "check", "--problems", "--json").Output(); err == nil || strings.Contains(string(out), "router2") {
		t.Errorf("check: %v\n%s", err, out)
	}
	out, err := s.Command("zmctl", "queue", "--json").Output()
	if err != nil || strings.Count(string(out), `"accepted"`) != 63 {
		t.Errorf("queue: %v, lists %d messages, want 63", err, strings.Count(string(out), `"accepted"`))
	}
	begin(t, s)
	var got []string
	await(t, s, "63 routed messages", func() (bool, error) {
		got = got[:0]
		for _, e := range s.Events() {
			if e.Word == "routed" {
				got = append(got, e.Get("id"))
			}
		}
		return len(got) == 63, nil
	})
	got = slices.DeleteFunc(got, func(id string) bool { return !slices.Contains(want, id) })
	if !slices.Equal(got, want) {
		t.Errorf("routed in the order\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// By SMTP into the last directory, while the router is stopped.
	for _, p := range processes(t, s) {
		if p.Name != "router" {
			continue
		}
		if err := syscall.Kill(p.Pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(p.Pid, syscall.SIGCONT)
	}
	src := peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
		To: func(int) string { return "a@far.example" }, Body: func(int) []byte { return stuffed("Subject: x\n\nx\n") }}
	if err := src.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s, "router3"); len(got) != 1 {
		t.Errorf("router3/ has %q, want the one that came by SMTP", got)
	}
}

// M45 with the real programs: a user's later message takes the place of the earlier one,
// nobody hears of it, and zmctl undo brings it back.
func TestLaterMessageTakesThePlaceOfTheEarlier(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Files["routes"] = "far.example smtp![127.0.0.1]:1\n" })
	send := func(from, id, more string) {
		submit(t, s, fmt.Sprintf("From: <%s>\nMessage-ID: <%s@mta.example>\n%sSubject: x\n\nx\n", from, id, more), "-f", from, "a@far.example")
	}
	send("bob@mta.example", "w1", "")
	send("alice@mta.example", "w2", "")
	event(t, s, "deferred", "rcpt", "a@far.example")
	send("bob@mta.example", "w3", "Supersedes: <w1@mta.example> <w2@mta.example>\n")
	gone := event(t, s, "obsoleted", "rcpt", "a@far.example")
	shelved(t, s, gone.Get("id"))
	await(t, s, "removed/"+gone.Get("id")+".queue", func() (bool, error) {
		_, err := os.Stat(path(s, "removed/"+gone.Get("id")+".queue"))
		return err == nil, ignoreMissing(err)
	})
	if n := s.Count("obsoleted"); n != 1 {
		t.Errorf("%d recipients were taken out, want one: alice's message is not bob's", n)
	}
	wantIn(t, read(t, path(s, "removed/"+gone.Get("id")+".spec")), "<w1@mta.example>", "obsoleted by "+gone.Get("by"))
	if out, err := s.Command("zmctl", "undo", gone.Get("id")).CombinedOutput(); err != nil {
		t.Fatalf("undo: %v\n%s", err, out)
	}
	await(t, s, "three messages in queue/", func() (bool, error) { return len(names(t, s, "queue")) == 3, nil })
	if n := s.Count("report"); n != 0 {
		t.Errorf("%d reports were written", n)
	}
}
