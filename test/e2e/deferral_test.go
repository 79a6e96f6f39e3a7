package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// A5: a restart goes on with a deferral where it was: the attempts are counted on and
// the next one comes at its time, not at the start, as the h lines record.
func TestDeferralSurvivesRestart(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, s *suite.Suite){
		"stopped": stop,
		"killed":  func(_ *testing.T, s *suite.Suite) { s.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int32
			sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
				if address != "first@sink.example" {
					return ""
				}
				if n := tries.Add(1); n < 3 {
					return fmt.Sprintf("451 4.2.1 later, %d", n)
				}
				return ""
			}})
			s := start(t, sink, func(s *suite.Suite) {
				s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "interval=1s", "interval=1h", 1)
			})
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "first@sink.example")
			id := event(t, s, "deferred", "attempt", "1").Get("id")
			file := only(t, s, "transport")
			// The log is a moment ahead of the file.
			var before int64
			await(t, s, "deferral in the history", func() (bool, error) {
				before = lastDeferral(t, s, file)
				return before > 0, nil
			})
			if wait := time.UnixMilli(before); wait.Before(time.Now().Add(50*time.Minute)) || wait.After(time.Now().Add(90*time.Minute)) {
				t.Errorf("next attempt at %v, want in about an hour", wait)
			}
			end(t, s)
			restart(t, s)
			// Another message to the host goes out; the first is not tried with it.
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "second@sink.example")
			assert.Must(t, sink.Wait(1, patience))
			assert.Equal(t, tries.Load(), 1)
			assert.Equal(t, lastDeferral(t, s, file), before)
			wantIn(t, zmctl(t, s, "queue"), id, "first@sink.example  waiting, 1 attempt, next in ", "451 4.2.1 later, 1")

			// When its time has come it is tried, and counted on.
			end(t, s)
			due(t, s, file)
			s.Forget()
			restart(t, s)
			event(t, s, "deferred", "id", id, "attempt", "2", "reply", "later, 2")
			await(t, s, "another deferral in the history", func() (bool, error) {
				return lastDeferral(t, s, file) > time.Now().Add(time.Minute).UnixMilli(), nil
			})
			end(t, s)
			due(t, s, file)
			restart(t, s)
			awaitEmpty(t, s)
			assert.Equal(t, tries.Load(), 3)
		})
	}
}

// lastDeferral is when a specification's only recipient is tried next, in milliseconds.
func lastDeferral(t *testing.T, s *suite.Suite, file string) (next int64) {
	t.Helper()
	for _, e := range spec(t, s, file).History {
		if e.Event == workspec.EventDeferred {
			if _, err := fmt.Sscan(e.Get("next"), &next); err != nil {
				t.Fatal(err)
			}
		}
	}
	return next
}

// due sets the time of the next attempt in the file to now.
func due(t *testing.T, s *suite.Suite, file string) {
	t.Helper()
	text := read(t, path(s, "transport/"+file))
	was, now := fmt.Sprintf("next=%d", lastDeferral(t, s, file)), fmt.Sprintf("next=%d", time.Now().UnixMilli())
	assert.Must(t, os.WriteFile(path(s, "transport/"+file), []byte(strings.ReplaceAll(text, was, now)), 0o644))
}

// M27: a message that is older than its expiry when the scheduler first sees it, as
// after days without one, is tried once all the same, and only then given up, with the
// last answer.
func TestOldMessageIsTriedOnceBeforeItExpires(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if address == "full@sink.example" {
			return "452 4.2.2 full to the brim"
		}
		return ""
	}})
	s := prepare(t, sink, nil) // expiry=1h
	for _, to := range []string{"ok@sink.example", "full@sink.example"} {
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", to)
	}
	old := time.Now().Add(-10 * 24 * time.Hour)
	for _, name := range names(t, s, "router") {
		assert.Must(t, os.Chtimes(path(s, "router/"+name), old, old))
	}
	begin(t, s)
	event(t, s, "expired", "rcpt", "full@sink.example", "status", "4.4.7", "reply", "full to the brim")
	awaitEmpty(t, s)
	assert.Equal(t, rcptsOf(sink), "ok@sink.example")
	assert.Equal(t, s.Count("deferred", "rcpt", "full@sink.example"), 1)
	mail := awaitMail(t, s, "bob", 1)
	wantIn(t, string(mail[0]), "Final-Recipient: rfc822; full@sink.example\n", "Action: failed\n", "Status: 4.2.2\n", "Diagnostic-Code: smtp; 452 4.2.2 full to the brim")
}

// Dur5: while a lookup fails the mail waits and the router tries it again; when the lookup works
// the mail is delivered, once, without an operator.
func TestDur5MailIsDeliveredAfterALookupOutage(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERPOLL": "1s", "RESUBMIT": "1s,2s"}
	})
	list := s.Dir + "/team"
	configure(t, s, "aliases", "team: :include:"+list+"\n")
	begin(t, s)
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "team@mta.example")
	id := event(t, s, "deferred", "program", "router").Get("id")
	for range 3 {
		s.Forget()
		event(t, s, "resubmitted", "program", "router", "id", id, "why", "include")
		if e := event(t, s, "deferred", "program", "router", "id", id); e.Get("next") == "" {
			t.Errorf("got %v, want when it is tried next", e)
		}
	}
	balance(t, s)
	write(t, list, "alice\n")
	if mail := awaitMail(t, s, "alice", 1); len(mail) != 1 || !strings.HasSuffix(string(mail[0]), "Subject: x\n\nbody\n") {
		t.Errorf("alice has %q", mail)
	}
	awaitEmpty(t, s)
	balance(t, s)
}

// Dur5: after RESUBMITEXPIRY the sender gets a report with 5.4.7, unless NOTIFY=NEVER was
// requested, and no file is left.
func TestDur5MailIsGivenUpAfterALongOutage(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERPOLL": "1s", "RESUBMIT": "1s,1s", "RESUBMITEXPIRY": "3s"}
	})
	configure(t, s, "aliases", "team: :include:"+s.Dir+"/team\n")
	begin(t, s)
	submit(t, s, "Subject: told\n\nbody\n", "-f", "bob@mta.example", "team@mta.example", "alice@mta.example")
	submit(t, s, "Subject: not told\n\nbody\n", "-f", "alice@mta.example", "-N", "never", "team@mta.example")
	mail := awaitMail(t, s, "bob", 1)
	report := string(mail[0])
	wantIn(t, report, "multipart/report", "Action: failed", "Status: 5.4.7", "team@mta.example", "alice@mta.example", "Subject: told")
	awaitEmpty(t, s)
	logtest.Eventually(t, "both are given up", func() bool { return s.Count("given-up", "program", "router") == 2 })
	for user, want := range map[string]int{"bob": 1, "alice": 0} {
		if mail, err := suite.Mail(s.Maildir(user)); len(mail) != want && !(want == 0 && err != nil) {
			t.Errorf("%s has %d messages (%v), want %d", user, len(mail), err, want)
		}
	}
	balance(t, s)
}

// accept puts a message of an age into a router directory and returns its spool ID.
func accept(t *testing.T, s *suite.Suite, dir string, age time.Duration) string {
	t.Helper()
	po, err := postoffice.OpenDir(s.PostOffice(), 0, false)
	assert.Must(t, err)
	d, err := po.Submissions.NewDraft("test")
	assert.Must(t, err)
	d.Into(dir)
	_, err = d.Write([]byte("from <bob@mta.example>\nto <a@far.example>\nenv-end\nSubject: x\n\nx\n"))
	assert.Must(t, err)
	a, err := d.Commit()
	assert.Must(t, err)
	if !strings.HasPrefix(a.Name, dir+"/") {
		t.Fatalf("accepted as %s, want it in %s/", a.Name, dir)
	}
	at := time.Now().Add(-age)
	assert.Must(t, os.Chtimes(path(s, a.Name), at, at))
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
		assert.Equal(t, len(names(t, s, dir)), n, dir)
	}
	// zmctl reads all of them.
	assert.Equal(t, strings.Count(zmctl(t, s, "queue", "--json"), `"accepted"`), 63)
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
	router := oneOf(t, s, "router")
	assert.Must(t, syscall.Kill(router.Pid, syscall.SIGSTOP))
	defer syscall.Kill(router.Pid, syscall.SIGCONT)
	awaitState(t, "the router stands still", router.Stopped)
	sendSMTP(t, s, "bob@mta.example", "a@far.example", "Subject: x\n\nx\n")
	assert.Equal(t, len(names(t, s, "router3")), 1)
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
	assert.Equal(t, s.Count("obsoleted"), 1)
	wantIn(t, read(t, path(s, "removed/"+gone.Get("id")+".spec")), "<w1@mta.example>", gone.Get("by"))
	zmctl(t, s, "undo", gone.Get("id"))
	await(t, s, "three messages in queue/", func() (bool, error) { return len(names(t, s, "queue")) == 3, nil })
	wantNone(t, s, "report")
}
