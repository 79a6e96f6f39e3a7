// Package crash stops the pipeline after each operation that it does on the disk, in
// every stage, and looks what the next start makes of what is left: accepted mail is
// delivered, exactly once when only the process died. The disk is cutfs; the stages
// are the real ones, called one after the other in one goroutine.
package crash

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"zmailer/internal/agent"
	"zmailer/internal/durable/cutfs"
	"zmailer/internal/status"
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
}

func newWorld() *world {
	return &world{accepted: map[string]bool{}, tries: map[string]int{}, got: map[string]int{}, doubt: map[string]bool{}}
}

func (w *world) clone() *world {
	return &world{maps.Clone(w.accepted), maps.Clone(w.tries), maps.Clone(w.got), maps.Clone(w.doubt)}
}

// mailbox delivers into the world: fail@ fails, defer@ is deferred at its first
// attempt, all else is taken.
type mailbox struct {
	world *world
	disk  *cutfs.FS
}

func (m *mailbox) Deliver(_ context.Context, d *agent.Delivery) {
	header := string(d.Header(d.Recipients[0].Group))
	subject := "?"
	for line := range strings.Lines(header) {
		if s, ok := strings.CutPrefix(line, "Subject: "); ok {
			subject = strings.TrimSpace(s)
		}
	}
	if strings.Contains(header, "Auto-Submitted: auto-replied") {
		subject = "report on " + reportedSubject(d)
	}
	var take []*agent.Recipient
	for _, r := range d.Recipients {
		key := subject + "/" + r.Address
		m.world.tries[key]++
		switch local, _, _ := strings.Cut(r.Address, "@"); {
		case local == "fail":
			d.Done(r, agent.Result{Outcome: status.Failed, Code: status.BadMailbox, Reply: "550 5.1.1 no such user"})
		case local == "defer" && m.world.tries[key] == 1:
			d.Done(r, agent.Result{Outcome: status.Deferred, Code: status.MailboxFull, Reply: "452 4.2.2 full"})
		default:
			take = append(take, r)
		}
	}
	if len(take) == 0 || d.SentTo(take) != nil || m.disk.Dead() {
		return
	}
	for _, r := range take {
		m.world.got[subject+"/"+r.Address]++
		m.world.doubt[subject+"/"+r.Address] = true
	}
	for _, r := range take {
		d.Done(r, agent.Result{Outcome: status.Delivered, Code: status.OK, Reply: "250 2.0.0 Ok"})
		if !m.disk.Dead() {
			delete(m.world.doubt, subject+"/"+r.Address)
		}
	}
}

// reportedSubject finds in a report's body the subject that it returns.
func reportedSubject(d *agent.Delivery) string {
	b := make([]byte, d.BodySize())
	if _, err := d.Body().Read(b); err != nil {
		return fmt.Sprint(err)
	}
	subject := "?"
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "Subject: "); ok {
			subject = strings.TrimSpace(s)
		}
	}
	return subject
}
