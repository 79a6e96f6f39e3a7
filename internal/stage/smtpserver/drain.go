package smtpserver

import (
	"context"
	"sync/atomic"
	"time"

	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/stage/smtpserver/session"
)

// drain is whether new mail is refused (zmctl stop --accepting). While it is not, that costs a
// look at a pointer.
type drain struct {
	now atomic.Pointer[suspension.Suspension] // nil: mail is accepted
}

// draining reports whether new mail is refused at this moment.
func (d *drain) draining() bool {
	s := d.now.Load()
	return s != nil && !s.Over(time.Now())
}

// followDrain reads what is in force, and follows it until stop is called.
func (s *server) followDrain(ctx context.Context) (stop func()) {
	if s.PostOffice == "" {
		return func() {}
	}
	if l, err := suspension.Read(s.po); err == nil {
		s.drainBy(l)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		suspension.Follow(ctx, suspension.Following{PostOffice: s.po, Dir: s.PostOffice, Every: drainLook, Now: time.Now, Log: s.Log,
			Changed: func(l *suspension.List, err error) {
				if err != nil {
					s.Log.Error("suspensions-unread", "reason", err, "advice", "what was read before stays in force")
					return
				}
				s.drainBy(l)
			}})
	}()
	return func() {
		cancel()
		<-done
	}
}

// drainLook is the time between two looks at the file of suspensions.
const drainLook = 15 * time.Second

// drainBy accepts or refuses mail as a list says.
func (s *server) drainBy(l *suspension.List) {
	next := l.Accepting(time.Now())
	last := s.drain.now.Swap(next)
	switch {
	case next != nil && (last == nil || last.Order != next.Order):
		until := ""
		if !next.Until.IsZero() {
			until = next.Until.UTC().Format(time.RFC3339)
		}
		s.Log.Info("accepting-stopped", "order", string(next.Order), "by", next.Who, "reason", next.Reason, "until", until)
	case next == nil && last != nil:
		s.Log.Info("accepting-resumed", "order", string(last.Order))
	}
}

// notAccepting is the text of the replies.
const notAccepting = "Service not available: this host accepts no mail at the moment"

// refuseDrained refuses a connection of another host while new mail is refused. Users are
// greeted, and told in the reply to MAIL.
func (s *server) refuseDrained(c *connection) bool {
	if role := c.Client().Role; isSubmission(role) || role == session.RoleReinject || !s.drain.draining() {
		return false
	}
	s.flood.Warn("refused", "client", c.Client().String(), "stage", stageConnect, "code", 421, "status", "4.3.2", "reply", "accepting is stopped")
	s.turnAway(c, "4.3.2", notAccepting)
	return true
}

// checkDrain refuses a message while new mail is refused.
func (h *handler) checkDrain() *session.Reply {
	if !h.drain.draining() || h.client.Role == session.RoleReinject { // what is in the queue is delivered, through the filter, too
		return nil
	}
	code := 421
	if isSubmission(h.client.Role) {
		code = 450
	}
	h.Log.Warn("refused", "client", h.client.String(), "user", h.client.User, "stage", stageMail, "code", code, "status", "4.3.2", "reply", "accepting is stopped")
	return session.NewReply(code, "4.3.2", notAccepting)
}
