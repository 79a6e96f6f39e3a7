package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/test/suite"
)

// accept puts a message, as old as told, into a router directory and returns its spool ID.
func accept(t *testing.T, s *suite.Suite, dir string, age time.Duration) string {
	t.Helper()
	po, err := postoffice.OpenDir(s.PostOffice(), 0, false)
	must(t, err)
	d, err := po.Submissions.NewDraft("test")
	must(t, err)
	d.Into(dir)
	_, err = d.Write([]byte("from <bob@mta.example>\nto <a@far.example>\nenv-end\nSubject: x\n\nx\n"))
	must(t, err)
	a, err := d.Commit()
	must(t, err)
	if !strings.HasPrefix(a.Name, dir+"/") {
		t.Fatalf("accepted as %s, want it in %s/", a.Name, dir)
	}
	at := time.Now().Add(-age)
	must(t, os.Chtimes(path(s, a.Name), at, at))
	return postoffice.SpoolID{Ino: a.ID.Ino, MTime: at.UnixNano()}.String()
}

// M3, M4: submit -P, SMTPPRIORITY and ROUTERDIRS: messages in router/ are routed before those in
// router2/, and the oldest of each directory first.
func TestDirectoriesAreRoutedInOrder(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Files["routes"] = ". bitbucket!\n"
		s.Settings = map[string]string{"ROUTERDIRS": `"router2 router3"`, "ROUTERAGING": "1h", "ROUTERWORKERS": "1", "SMTPPRIORITY": "2"}
	})
	var want []string
	for _, dir := range []string{"router", "router2", "router3"} {
		ids := make([]string, 20)
		for _, n := range []int{7, 2, 19, 0, 11, 5, 14, 3, 9, 17, 1, 13, 6, 18, 4, 10, 16, 8, 15, 12} {
			ids[n] = accept(t, s, dir, time.Duration(50-n)*time.Minute)
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
	// zmctl reads all of them.
	if n := strings.Count(zmctl(t, s, "queue", "--json"), `"accepted"`); n != 63 {
		t.Errorf("queue lists %d messages, want 63", n)
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
	router := oneOf(t, s, "router").Pid
	must(t, syscall.Kill(router, syscall.SIGSTOP))
	defer syscall.Kill(router, syscall.SIGCONT)
	sendSMTP(t, s, "bob@mta.example", "a@far.example", "Subject: x\n\nx\n")
	if got := names(t, s, "router3"); len(got) != 1 {
		t.Errorf("router3/ has %q, want the one that came by SMTP", got)
	}
}

// M45: a user's later message supersedes the earlier one without a report, and zmctl undo brings
// that back.
func TestLaterMessageSupersedesTheEarlier(t *testing.T) {
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
	wantIn(t, read(t, path(s, "removed/"+gone.Get("id")+".spec")), "<w1@mta.example>", gone.Get("by"))
	zmctl(t, s, "undo", gone.Get("id"))
	await(t, s, "three messages in queue/", func() (bool, error) { return len(names(t, s, "queue")) == 3, nil })
	wantNone(t, s, "report")
}
