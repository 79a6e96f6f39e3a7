package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// shelved waits until a message whose last recipients were removed is in removed/.
func shelved(t *testing.T, s *suite.Suite, id string) {
	t.Helper()
	_, err := s.Wait(patience, "removed "+id, func(e suite.Event) bool { return e.Is("removed", "id", id) && e.Get("rcpts") != "" })
	assert.Must(t, err)
}

// M41, A13: held mail is not tried, however often an operator asks for it; released it goes
// once. Frozen mail stays so over a restart, and goes when it is thawed.
func TestHeldAndFrozenMailGoesWhenItIsReleased(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	yes(t, s, "hold", "--to", "one@*", "--reason", "a test")
	event(t, s, "held", "id", id, "rcpt", "one@sink.example")
	yes(t, s, "freeze", "--to", "two@*")
	close(sink.open)
	stop(t, s)
	restart(t, s)
	yes(t, s, "flush", "*")
	yes(t, s, "retry", "--all")
	s.Forget()
	yes(t, s, "thaw", "--to", "two@*")
	event(t, s, "delivered", "rcpt", "two@sink.example")
	wantEach(t, sink.Sink, 0, "one@sink.example")
	yes(t, s, "release", "--from", "bob@mta.example")
	yes(t, s, "retry", "--all")
	awaitEmpty(t, s)
	wantEach(t, sink.Sink, 1, "ok@sink.example", "one@sink.example", "two@sink.example")
	balance(t, s)
}

// M41: of recipients that an operator expires the sender gets one report, or silently none.
func TestExpiredRecipientsAreReportedOnceOrSilently(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	waits(t, s)
	yes(t, s, "expire", "--silent", "--to", "two@*")
	yes(t, s, "expire", "--host", "*", "--state", "waiting")
	mail := awaitMail(t, s, "bob", 1)
	wantIn(t, string(mail[0]), "one@sink.example", "Status: 4.4.7")
	if strings.Contains(string(mail[0]), "two@sink.example") {
		t.Errorf("the report contains a recipient that was expired silently:\n%s", mail[0])
	}
	awaitEmpty(t, s)
	balance(t, s)
	exits(t, s, 1, "zmctl", "undo") // the message is gone
}

// M41: after a change of routes, mail that waits goes the new way, each recipient once.
func TestReroutedMailGoesTheNewWay(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	waits(t, s)
	other := newSink(t, &peer.Sink{})
	stop(t, s)
	configure(t, s, "routes", ". smtp!"+other.RouteHost()+"\n")
	restart(t, s)
	yes(t, s, "reroute", "--to", "one@*,two@*")
	awaitEmpty(t, s)
	wantEach(t, other, 1, "one@sink.example", "two@sink.example")
	wantEach(t, other, 0, "ok@sink.example")
	wantEach(t, sink.Sink, 0, "one@sink.example", "two@sink.example")
	balance(t, s)
}

// A15, M41: removed messages come back by undo with their open recipients: each of them gets
// the message once, and no recipient that has it gets it again. Undo without arguments takes
// back the last operation, here on two messages.
func TestRemovedMessageComesBackWithItsOpenRecipients(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	first, _ := waits(t, s)
	zmctl(t, s, "remove", first)
	event(t, s, "removed", "id", first, "rcpts", "2")
	assert.Equal(t, strings.Join(names(t, s, "removed"), " "), first+".queue "+first+".spec")
	for _, dir := range []string{"queue", "transport", "router"} {
		assert.Equal(t, len(names(t, s, dir)), 0, dir)
	}
	balance(t, s)
	exits(t, s, 1, "zmctl", "remove", first)
	exits(t, s, 1, "zmctl", "undo", "S1A1")
	zmctl(t, s, "undo", first)
	exits(t, s, 1, "zmctl", "undo", first)
	second, _ := waits(t, s)
	s.Forget()
	yes(t, s, "remove", "--from", "bob@*")
	shelved(t, s, first)
	shelved(t, s, second)
	zmctl(t, s, "undo")
	exits(t, s, 1, "zmctl", "undo")
	close(sink.open)
	yes(t, s, "flush", "smtp/*")
	awaitEmpty(t, s)
	wantEach(t, sink.Sink, 2, "ok@sink.example", "one@sink.example", "two@sink.example")
	balance(t, s)
	if mail, err := suite.Mail(s.Maildir("bob")); err != nil || len(mail) != 0 {
		t.Errorf("bob has %d reports, want none; %v", len(mail), err)
	}
}

// A15: what was removed is kept for REMOVEDKEEP and dropped then. With --report the sender is
// notified, of the open recipients alone.
func TestRemovedMessageIsDroppedAfterItsTime(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, func(s *suite.Suite) {
		slow(s)
		s.Settings = map[string]string{"REMOVEDKEEP": "1s"}
	})
	id, _ := waits(t, s)
	zmctl(t, s, "remove", "--report", id)
	report := string(awaitMail(t, s, "bob", 1)[0])
	wantIn(t, report, "Status: 5.7.0", "Final-Recipient: rfc822; one@sink.example", "Final-Recipient: rfc822; two@sink.example")
	if strings.Contains(report, "Final-Recipient: rfc822; ok@") {
		t.Errorf("the report contains a recipient that has the message:\n%s", report)
	}
	shelved(t, s, id)
	stop(t, s)
	time.Sleep(1100 * time.Millisecond) // the age of a file has no event
	restart(t, s)
	event(t, s, "dropped", "id", id)
	assert.Equal(t, len(names(t, s, "removed")), 0)
	exits(t, s, 1, "zmctl", "undo", id)
}

// A15, and the trap "inode reused": the spool ID is compared before a message is removed.
func TestRemoveChecksTheSpoolID(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, name := waits(t, s)
	now := time.Now()
	assert.Must(t, os.Chtimes(path(s, "queue/"+name), now, now))
	exits(t, s, 1, "zmctl", "remove", id)
	assert.Equal(t, only(t, s, "transport"), name)
}
