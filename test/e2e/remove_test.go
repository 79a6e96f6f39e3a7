package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// idOf is the spool ID of a message file.
func idOf(t *testing.T, s *suite.Suite, name string) string {
	t.Helper()
	po, err := postoffice.OpenDir(s.PostOffice(), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	info, err := po.FS().Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return postoffice.IDOf(info).String()
}

// refusing is a sink that puts one recipient off until it is told otherwise, and takes
// the others.
type refusing struct {
	*peer.Sink
	open chan struct{} // closed: everything is taken
}

func newRefusing(t *testing.T) *refusing {
	t.Helper()
	r := &refusing{open: make(chan struct{})}
	r.Sink = newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if strings.HasPrefix(address, "ok") {
			return ""
		}
		select {
		case <-r.open:
			return ""
		default:
			return "451 4.2.1 later"
		}
	}})
	return r
}

// count counts the messages that reached an address.
func (r *refusing) count(address string) int {
	n := 0
	for _, m := range r.Messages() {
		for _, to := range m.Recipients {
			if to == address {
				n++
			}
		}
	}
	return n
}

// slow has deferred mail wait for an hour, so that nothing happens by itself.
func slow(s *suite.Suite) {
	s.Files["scheduler.conf"] = strings.ReplaceAll(schedulerConf, "interval=1s", "interval=1h")
}

// shelved waits until a message whose last recipients were removed is in removed/.
func shelved(t *testing.T, s *suite.Suite, id string) {
	t.Helper()
	_, err := s.Wait(patience, "removed "+id, func(e suite.Event) bool { return e.Is("removed", "id", id) && e.Get("rcpts") != "" })
	if err != nil {
		t.Fatal(err)
	}
}

// waits submits a message to one recipient who takes it and two who do not yet, and
// waits until they are deferred.
func waits(t *testing.T, s *suite.Suite) (id, name string) {
	t.Helper()
	s.Forget()
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "ok@sink.example", "one@sink.example", "two@sink.example")
	event(t, s, "deferred", "rcpt", "one@sink.example")
	event(t, s, "deferred", "rcpt", "two@sink.example")
	e := event(t, s, "delivered", "rcpt", "ok@sink.example")
	return e.Get("id"), e.Get("name")
}

// A15: a queued message is removed and put back; who had it does not get it again, the
// others get it once.
func TestRemovedMessageComesBackWithItsOpenRecipients(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	said := zmctl(t, s, "remove", id)
	wantIn(t, said, "removed: <one@sink.example>, <two@sink.example>", "zmctl undo "+id)
	event(t, s, "removed", "id", id, "rcpts", "2")
	if got := names(t, s, "removed"); strings.Join(got, " ") != id+".queue "+id+".spec" {
		t.Errorf("removed/ holds %q", got)
	}
	for _, dir := range []string{"queue", "transport", "router"} {
		if got := names(t, s, dir); len(got) != 0 {
			t.Errorf("%s/ holds %q", dir, got)
		}
	}
	if said, code := call(t, s, "zmctl", "check", "--ledger"); code != 0 {
		t.Errorf("the ledger does not balance: exit code %d, %s", code, said)
	}
	wantIn(t, zmctl(t, s, "removed"), id, "<bob@mta.example>", "<one@sink.example>, <two@sink.example>", "dropped in", "1 message")
	wantIn(t, zmctl(t, s, "show", id), "removed: queue", "one@sink.example  removed", "zmctl undo "+id, "removed/"+id+".spec")
	for what, args := range map[string][]string{"is in removed/ already": {"remove", id}, "nowhere else": {"undo", "S1A1"}} {
		if said, code := call(t, s, "zmctl", args...); code != 1 || !strings.Contains(said, what) {
			t.Errorf("zmctl %q: exit code %d, %s", args, code, said)
		}
	}
	close(sink.open)
	wantIn(t, zmctl(t, s, "undo", id), "is queued again for <one@sink.example>, <two@sink.example>")
	// It goes on where it was: the next attempt is not before its time.
	if said, code := call(t, s, "zmctl", "undo", id); code != 1 || !strings.Contains(said, id) {
		t.Errorf("a second undo: exit code %d, %s", code, said)
	}
	stop(t, s)
	due(t, s, only(t, s, "transport"))
	restart(t, s)
	awaitEmpty(t, s)
	for _, to := range []string{"ok@sink.example", "one@sink.example", "two@sink.example"} {
		if n := sink.count(to); n != 1 {
			t.Errorf("%s got it %d times, want once", to, n)
		}
	}
	if said, code := call(t, s, "zmctl", "check", "--ledger"); code != 0 {
		t.Errorf("the ledger does not balance: exit code %d, %s", code, said)
	}
	if mail, err := suite.Mail(s.Maildir("bob")); err != nil || len(mail) != 0 {
		t.Errorf("bob has %d reports, want none; %v", len(mail), err)
	}
}

// A15: without a scheduler the removal is decided, and undone in place; with one it is
// put away at the next start; what is removed stays removed.
func TestRemoveAndUndoWithoutScheduler(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	first, firstName := waits(t, s)
	second, _ := waits(t, s)
	stop(t, s)
	wantIn(t, zmctl(t, s, "remove", first, second), first, second)
	wantIn(t, zmctl(t, s, "removed"), first, second)
	wantIn(t, zmctl(t, s, "undo", first), first)
	s.Forget()
	restart(t, s)
	shelved(t, s, second)
	// Notes that it has been told go a moment later.
	got := slices.DeleteFunc(names(t, s, "transport"), func(name string) bool { return strings.HasPrefix(name, "look.") })
	if strings.Join(got, " ") != firstName {
		t.Errorf("transport/ holds %q, want the one that was put back", got)
	}
	stop(t, s)
	wantIn(t, zmctl(t, s, "undo", second), "is queued again")
	close(sink.open)
	for _, name := range names(t, s, "transport") {
		due(t, s, name)
	}
	restart(t, s)
	awaitEmpty(t, s)
	for _, to := range []string{"ok@sink.example", "one@sink.example", "two@sink.example"} {
		if n := sink.count(to); n != 2 {
			t.Errorf("%s got %d messages, want 2", to, n)
		}
	}
}

// A15: a message that is not routed is removed from where it is and put back there.
func TestRemoveFromEveryDirectory(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	for dir, suffix := range map[string]string{"router": "", "deferred": ".users", "freezer": ".policy", "postman": ""} {
		name := place(t, s, dir, "from <bob@mta.example>\nto <alice@mta.example>\nenv-end\nSubject: x\n\nbody\n")
		if suffix != "" {
			if err := os.Rename(path(s, dir+"/"+name), path(s, dir+"/"+name+suffix)); err != nil {
				t.Fatal(err)
			}
			name += suffix
		}
		id := idOf(t, s, dir+"/"+name)
		wantIn(t, zmctl(t, s, "remove", id), "removed from "+dir+"/")
		if got := names(t, s, dir); len(got) != 0 {
			t.Errorf("%s/ holds %q", dir, got)
		}
		want := id + "." + dir + suffix
		if got := only(t, s, "removed"); got != want {
			t.Errorf("removed/ holds %q, want %q", got, want)
		}
		wantIn(t, zmctl(t, s, "removed"), id, "<alice@mta.example>")
		wantIn(t, zmctl(t, s, "undo", id), "is "+dir+"/"+name+" again")
		if got := only(t, s, dir); got != name {
			t.Errorf("%s/ holds %q, want %q", dir, got, name)
		}
		if err := os.Remove(path(s, dir+"/"+name)); err != nil {
			t.Fatal(err)
		}
	}
}

// A15: what an agent delivers at this moment is not removed, and that is said; the rest
// is.
func TestRemoveTellsWhatIsBeingDelivered(t *testing.T) {
	t.Parallel()
	s, sink, g := stalled(t, peer.AtData)
	id := idOf(t, s, "queue/"+only(t, s, "queue"))
	said, code := call(t, s, "zmctl", "remove", id)
	if code != 75 || !strings.Contains(said, "<far@sink.example>") {
		t.Errorf("exit code %d, %s", code, said)
	}
	g.release()
	awaitEmpty(t, s)
	if got := len(sink.Messages()); got != 1 {
		t.Errorf("%d messages arrived, want 1", got)
	}
}

// A15: --report has the sender told, once.
func TestRemoveWithReport(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	zmctl(t, s, "remove", "--report", id)
	mail := awaitMail(t, s, "bob", 1)
	wantIn(t, string(mail[0]), "removed by the postmaster", "Status: 5.7.0", "one@sink.example", "two@sink.example")
	shelved(t, s, id)
	if strings.Contains(string(mail[0]), "Final-Recipient: rfc822;ok@") || strings.Contains(string(mail[0]), "Final-Recipient: rfc822; ok@") {
		t.Error("the report tells of who has the message")
	}
}

// A15: what was removed is kept for REMOVEDKEEP and dropped then.
func TestRemovedMessageIsDroppedAfterItsTime(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, func(s *suite.Suite) {
		slow(s)
		s.Settings = map[string]string{"REMOVEDKEEP": "1s"}
	})
	id, _ := waits(t, s)
	zmctl(t, s, "remove", id)
	shelved(t, s, id)
	stop(t, s)
	time.Sleep(1100 * time.Millisecond) // the age of a file has no event
	restart(t, s)
	event(t, s, "dropped", "id", id)
	if got := names(t, s, "removed"); len(got) != 0 {
		t.Errorf("removed/ holds %q", got)
	}
	if said, code := call(t, s, "zmctl", "undo", id); code != 1 || !strings.Contains(said, "where messages stay for") {
		t.Errorf("undo: exit code %d, %s", code, said)
	}
}

// A15, and the trap "inode reused": a link or a copy of the message elsewhere does not
// lead to another one: the spool ID is looked at again.
func TestRemoveChecksTheSpoolID(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, name := waits(t, s)
	now := time.Now()
	if err := os.Chtimes(filepath.Join(s.PostOffice(), "queue", name), now, now); err != nil {
		t.Fatal(err)
	}
	said, code := call(t, s, "zmctl", "remove", id)
	if code != 1 || !strings.Contains(said, "belongs to another message now") {
		t.Errorf("exit code %d, %s", code, said)
	}
	if got := only(t, s, "transport"); got != name {
		t.Errorf("transport/ holds %q", got)
	}
}
