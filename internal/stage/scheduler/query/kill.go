package query

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
func (s *session) etrn(r mailq.Request) error {
	n, kicked := 0, make(chan int, 1)
	host := r.Host
	if err := s.q.ask(func(View) { s.q.engine.Kick(host, func(threads int) { kicked <- threads }) }); err != nil {
		return s.stopped()
	}
	select {
	case n = <-kicked:
	case <-s.q.ended:
		return s.stopped()
	}
	s.q.emit(events.Kicked, "host", store.Cut(host), "threads", n, "client", s.who)
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
func (s *session) kill(m *threadMessage, silent bool, k *killed, match func(*workspec.Group, *workspec.Recipient) bool) {
	q := operations.Request{PostOffice: s.q.PostOffice, ID: m.id, Now: s.q.Now(), Who: "mailq, " + s.who,
		Reason: "killed by the postmaster", Report: !silent, Match: match}
	res, err := operations.Expire(q, m.name)
	k.busy += len(res.Busy)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		// Done with meanwhile, or an agent holds all of them.
	case err != nil:
		k.failed++
		s.q.Log.Error("kill-failed", "id", m.id, "name", m.name, "reason", err)
	default:
		k.messages++
		k.recipients += len(res.Changed)
	}
}

// killMessage answers KILL MSG.
func (s *session) killMessage(r mailq.Request) error {
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

// killThread answers KILL THREAD. The engine lists what is to be given up first,
// because the thread shrinks while it is done.
func (s *session) killThread(r mailq.Request) error {
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

func (s *session) tellKilled(r mailq.Request, k *killed) error {
	s.q.Log.Info("killed", "client", s.who, "command", r.Kind.String(), "channel", store.Cut(r.Channel), "host", store.Cut(r.Host), "of", store.Cut(r.ID),
		"recipients", k.recipients, "messages", k.messages, "busy", k.busy, "silent", r.Silent)
	return s.yes(k.String())
}

// Kicks reports whether a host is one that an ETRN names.
func Kicks(host, name string) bool {
	domain, below := strings.CutPrefix(name, "@")
	if strings.EqualFold(host, domain) {
		return true
	}
	n := len(host) - len(domain)
	return below && domain != "" && n > 1 && host[n-1] == '.' && strings.EqualFold(host[n:], domain)
}
