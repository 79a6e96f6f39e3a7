package e2e

import (
	"strings"
	"testing"

	"zmailer/test/suite"
)

// Dur5: while a lookup fails the mail waits, zmctl says until when, and the router tries
// again by itself; when the lookup works the mail is delivered, once, without an operator.
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

// Dur5: past RESUBMITEXPIRY the sender is told that the mail was given up, with 5.4.7, and
// nobody is where NOTIFY=NEVER was asked for. Nothing is left.
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
	if n := s.Count("given-up", "program", "router"); n != 2 {
		t.Errorf("got %d lines given-up, want 2", n)
	}
	for user, want := range map[string]int{"bob": 1, "alice": 0} {
		if mail, err := suite.Mail(s.Maildir(user)); len(mail) != want && !(want == 0 && err != nil) {
			t.Errorf("%s has %d messages (%v), want %d", user, len(mail), err, want)
		}
	}
	balance(t, s)
}
