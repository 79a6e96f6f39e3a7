package scheduler

import (
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// etrn has the threads of a host tried now (M14): that host, whatever its case, or, for
// "@domain", that and all below it (RFC 1985 §5.3).
func (s *querySession) etrn(r mailq.Request) error {
	host, n := r.Host, 0
	told := make(chan int, 1)
	if err := s.q.ask(func() { s.q.e.kick(host, func(threads int) { told <- threads }) }); err != nil {
		return s.stopped()
	}
	select {
	case n = <-told:
	case <-s.q.ended:
		return s.stopped()
	}
	s.q.e.emit(events.Kicked, "host", store.Cut(host), "threads", n, "client", s.who)
	if n == 0 {
		return s.yes("OK; an ETRN didn't start anything.")
	}
	return s.yes("OK; an ETRN started something.")
}

// killed counts what a kill came to.
type killed struct{ messages, recipients, busy, failed int }

func (k killed) String() string {
	text := fmt.Sprintf("OK; %d recipients of %d messages expired", k.recipients, k.messages)
	if k.busy > 0 {
		text += fmt.Sprintf("; %d are being delivered, and given up if that fails", k.busy)
	}
	if k.failed > 0 {
		text += fmt.Sprintf("; %d messages could not be changed, see the log", k.failed)
	}
	return text
}

// kill gives up the recipients of a message that match (M41).
func (s *querySession) kill(m *threadMessage, silent bool, k *killed, match func(*workspec.Group, *workspec.Recipient) bool) {
	q := operations.Request{PostOffice: s.q.e.po, ID: m.id, Now: s.q.e.conf.clocks.now(), Who: "mailq, " + s.who,
		Reason: "killed by the postmaster", Report: !silent, Match: match}
	res, err := operations.Expire(q, m.name)
	k.busy += len(res.Busy)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		// Done with meanwhile, or an agent holds all of them.
	case err != nil:
		k.failed++
		s.q.e.log.Error("kill-failed", "id", m.id, "name", m.name, "reason", err)
	default:
		k.messages++
		k.recipients += len(res.Changed)
	}
}

// killMessage answers KILL MSG.
func (s *querySession) killMessage(r mailq.Request) error {
	m, err := s.q.message(r.ID)
	switch {
	case errors.Is(err, errStopped):
		return s.stopped()
	case err != nil:
		return s.no(err.Error())
	}
	var k killed
	s.kill(m, r.Silent, &k, nil)
	return s.tellKilled(r, &k)
}

// killThread answers KILL THREAD. What is to be given up is told by the engine first,
// because the thread shrinks while it is done.
func (s *querySession) killThread(r mailq.Request) error {
	t, _, err := s.q.find(r.Channel, r.Host)
	var list []threadMessage
	if err == nil && t != nil {
		err = s.q.messages(t, func(m *threadMessage) error {
			list = append(list, *m)
			return nil
		})
	}
	switch {
	case err != nil:
		return s.stopped()
	case t == nil:
		return s.no("no such thread")
	}
	var k killed
	for i := range list {
		if s.q.ctx.Err() != nil {
			return s.stopped()
		}
		s.kill(&list[i], r.Silent, &k, func(_ *workspec.Group, x *workspec.Recipient) bool {
			return x.Channel == r.Channel && strings.EqualFold(x.Host, r.Host)
		})
	}
	return s.tellKilled(r, &k)
}

func (s *querySession) tellKilled(r mailq.Request, k *killed) error {
	s.q.e.log.Info("killed", "client", s.who, "command", r.Kind.String(), "channel", store.Cut(r.Channel), "host", store.Cut(r.Host), "of", store.Cut(r.ID),
		"recipients", k.recipients, "messages", k.messages, "busy", k.busy, "silent", r.Silent)
	return s.yes(k.String())
}

// kicks tells whether a host is one that an ETRN names.
func kicks(host, name string) bool {
	domain, below := strings.CutPrefix(name, "@")
	if strings.EqualFold(host, domain) {
		return true
	}
	n := len(host) - len(domain)
	return below && domain != "" && n > 1 && host[n-1] == '.' && strings.EqualFold(host[n:], domain)
}
