// Package crash stops the pipeline after each operation that it does on the disk, in
// every stage, and looks what the next start makes of what is left: accepted mail is
// delivered, exactly once when only the process died. The disk is cutfs, which loses
// what was not synced by the rules of several kinds of file system; the stages are
// the real ones, called one after the other in one goroutine.
package crash

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
)

// world is what lies outside the disk: who was told that a message is accepted, and
// what mailboxes hold. A cut does not change it.
type world struct {
	accepted map[string]bool // subject -> its submitter was told yes
	tries    map[string]int  // subject/recipient -> attempts
	got      map[string]int  // subject/recipient -> deliveries
	// doubt is what was being delivered when the process died: given away, and not
	// marked yet. Only that may be delivered twice by a kill.
	doubt map[string]bool
	// marked is at which operation the delivery had been marked.
	marked map[string]int
	// waiting is the attempt after which a recipient was left to wait, once that is
	// written down; it goes when the next attempt begins.
	waiting map[string]int
	// beside are the deliveries of attempts that deferred another recipient of the
	// same specification.
	beside map[deferral][]string
}

// deferral is a recipient that an attempt, counted from 1, left to wait.
type deferral struct {
	key     string // subject/recipient
	attempt int
}

func newWorld() *world {
	return &world{map[string]bool{}, map[string]int{}, map[string]int{}, map[string]bool{}, map[string]int{}, map[string]int{}, map[deferral][]string{}}
}

func (w *world) clone() *world {
	return &world{maps.Clone(w.accepted), maps.Clone(w.tries), maps.Clone(w.got), maps.Clone(w.doubt),
		maps.Clone(w.marked), maps.Clone(w.waiting), maps.Clone(w.beside)}
}

// mailbox delivers into the world: fail@ fails, defer@ is deferred at its first
// attempt, defer2@ at its first two, all else is taken.
type mailbox struct {
	world   *world
	disk    *cutfs.FS
	subject string // of the message it was asked to deliver last
}

func (m *mailbox) Deliver(_ context.Context, d *agent.Delivery) {
	subject := subjectOf(d)
	m.subject = subject
	if body := bodyOf(d); !strings.HasPrefix(subject, "report on ") && body != "\nbody of "+subject+"\n" {
		// What was never whole must not be delivered as if it were.
		m.world.got[fmt.Sprintf("%s with body %q", subject, body)] += 2
	}
	var take []*agent.Recipient
	var late []deferral
	for _, r := range d.Recipients {
		key := subject + "/" + r.Address
		m.world.tries[key]++
		delete(m.world.waiting, key)
		switch local, _, _ := strings.Cut(r.Address, "@"); {
		case local == "fail":
			d.Done(r, agent.Result{Outcome: status.Failed, Code: status.BadMailbox, Reply: "550 5.1.1 no such user"})
		case local == "defer" && m.world.tries[key] == 1, local == "defer2" && m.world.tries[key] <= 2:
			d.Done(r, agent.Result{Outcome: status.Deferred, Code: status.MailboxFull, Reply: "452 4.2.2 full"})
			late = append(late, deferral{key, m.world.tries[key]})
		default:
			take = append(take, r)
		}
	}
	if len(take) == 0 || d.SentTo(take) != nil || m.disk.Dead() {
		return
	}
	for _, r := range take {
		key := subject + "/" + r.Address
		m.world.got[key]++
		m.world.doubt[key] = true
		for _, other := range late {
			m.world.beside[other] = append(m.world.beside[other], key)
		}
	}
	for _, r := range take {
		d.Done(r, agent.Result{Outcome: status.Delivered, Code: status.OK, Reply: "250 2.0.0 Ok"})
		if key := subject + "/" + r.Address; !m.disk.Dead() {
			delete(m.world.doubt, key)
			m.world.marked[key] = m.disk.Ops()
		}
	}
}

// subjectOf names a message, a report by what it reports.
func subjectOf(d *agent.Delivery) string {
	header := string(d.Header(d.Recipients[0].Group))
	if strings.Contains(header, "Auto-Submitted: auto-replied") {
		return "report on " + reportedSubject(d)
	}
	return lastSubject(header)
}

func lastSubject(text string) string {
	subject := "?"
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(line, "Subject: "); ok {
			subject = strings.TrimSpace(s)
		}
	}
	return subject
}

// reportedSubject finds in a report's body the subject that it returns.
func reportedSubject(d *agent.Delivery) string { return lastSubject(bodyOf(d)) }

func bodyOf(d *agent.Delivery) string {
	b, err := io.ReadAll(d.Body())
	if err != nil {
		return err.Error()
	}
	return string(b)
}
