package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// A5: a restart goes on with a deferral where it was: the attempts are counted on and
// the next one comes at its time, not at the start. What says so are the h lines.
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
			must(t, sink.Wait(1, patience))
			if got := tries.Load(); got != 1 {
				t.Errorf("%d tries after the restart, want 1", got)
			}
			if got := lastDeferral(t, s, file); got != before {
				t.Errorf("next attempt at %d, want %d as before", got, before)
			}
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
			if got := tries.Load(); got != 3 {
				t.Errorf("%d tries, want 3", got)
			}
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

// due makes the time of the next attempt, as it stands in the file, now.
func due(t *testing.T, s *suite.Suite, file string) {
	t.Helper()
	text := read(t, path(s, "transport/"+file))
	was, now := fmt.Sprintf("next=%d", lastDeferral(t, s, file)), fmt.Sprintf("next=%d", time.Now().UnixMilli())
	must(t, os.WriteFile(path(s, "transport/"+file), []byte(strings.ReplaceAll(text, was, now)), 0o644))
}

// S8: outcomes are per recipient: in each round only those that are left are tried,
// and each gets the message once.
func TestPartialRoundsDeliverEachRecipientOnce(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		if n := int(address[0] - '0'); attempt <= n {
			return fmt.Sprintf("451 4.2.1 attempt %d of %d", attempt, n)
		}
		return ""
	}})
	s := start(t, sink, nil)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "0@sink.example", "1@sink.example", "2@sink.example", "0too@sink.example")
	awaitEmpty(t, s)
	var got []string
	for _, m := range sink.Messages() {
		got = append(got, strings.Join(m.Recipients, "+"))
	}
	if want := "0@sink.example+0too@sink.example 1@sink.example 2@sink.example"; strings.Join(got, " ") != want {
		t.Errorf("rounds: %q, want %q", got, want)
	}
	for rcpt, want := range map[string]int{"0@sink.example": 0, "1@sink.example": 1, "2@sink.example": 2} {
		if got := s.Count("deferred", "rcpt", rcpt); got != want {
			t.Errorf("%s was deferred %d times, want %d", rcpt, got, want)
		}
	}
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
		must(t, os.Chtimes(path(s, "router/"+name), old, old))
	}
	begin(t, s)
	event(t, s, "expired", "rcpt", "full@sink.example", "status", "4.4.7", "reply", "full to the brim")
	awaitEmpty(t, s)
	if got := rcptsOf(sink); got != "ok@sink.example" {
		t.Errorf("arrived: %q, want ok@sink.example", got)
	}
	if got := s.Count("deferred", "rcpt", "full@sink.example"); got != 1 {
		t.Errorf("%d attempts failed before it expired, want 1", got)
	}
	mail := awaitMail(t, s, "bob", 1)
	wantIn(t, string(mail[0]), "Final-Recipient: rfc822; full@sink.example\n", "Action: failed\n", "Status: 4.2.2\n", "Diagnostic-Code: smtp; 452 4.2.2 full to the brim")
}
