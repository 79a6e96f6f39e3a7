package engine

import (
	"log/slog"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// stages is where the time of an attempt went (M43). All of it is known without a system
// call: times of the engine's turns, and the message's own.
type stages struct {
	attempt  int           // number of this one
	routing  time.Duration // of the first one: from acceptance until it might have begun
	queue    time.Duration // from then until an agent began; below 0: not known
	delivery time.Duration // from then until now; below 0: not known
}

func (e *attempts) stages(v *thread.Vertex) stages {
	s := stages{attempt: int(v.Attempts) + 1, routing: -1, queue: -1, delivery: -1}
	began, due := v.Started(), v.Due()
	if !began.IsZero() {
		s.delivery = store.Since(began, e.now)
	}
	if due.IsZero() || began.IsZero() {
		return s
	}
	s.queue = store.Since(due, began)
	if s.attempt == 1 {
		s.routing = store.Since(idOf(v.Message).Time(), due)
	}
	return s
}

// attrs appends what is known.
func (s *stages) attrs(list []slog.Attr) []slog.Attr {
	list = append(list, slog.Int("attempt", s.attempt))
	for _, one := range []struct {
		key  string
		took time.Duration
	}{{"routing", s.routing}, {"queue", s.queue}, {"delivery", s.delivery}} {
		if one.took >= 0 {
			list = append(list, slog.Duration(one.key, one.took))
		}
	}
	return list
}

// logFinal writes the line of a recipient that is done with.
func (e *attempts) logFinal(v *thread.Vertex, r *thread.Recipient, ans *taproto.Answer) {
	code := workspec.ParseNotary(ans.Notary).Status
	if code == "" {
		code = replyCode(thread.LastLine(ans.Text), r.Result)
	}
	e.logOutcome(endOf(r.Result), v, r, e.stages(v), code, thread.LastLine(ans.Text))
}

// endOf is the event of a final result.
func endOf(r thread.Result) events.Kind {
	if r == thread.Delivered {
		return events.Delivered
	}
	return events.Failed
}

// logOutcome writes a line of a recipient's attempt.
func (e *attempts) logOutcome(k events.Kind, v *thread.Vertex, r *thread.Recipient, s stages, code, reply string, more ...slog.Attr) {
	m := v.Message
	id := idOf(m)
	e.meters.outcome(k.String(), v, &s, store.Since(id.Time(), e.now))
	var room [16]slog.Attr
	list := append(room[:0], slog.Any("id", id), slog.String("name", m.Name()), slog.String("rcpt", r.Address),
		slog.String("channel", v.Thread.Channel()), slog.String("host", v.Thread.Host),
		slog.String("status", code), slog.String("reply", store.Cut(reply)))
	list = append(s.attrs(list), slog.Duration("took", store.Since(id.Time(), e.now)))
	e.emitter().EmitAttrs(k, append(list, more...)...)
}

// replyCode is the enhanced code of an SMTP reply, or that of a bare success or
// failure.
func replyCode(reply string, res thread.Result) string {
	if len(reply) > 4 && reply[0] >= '2' && reply[0] <= '5' && (reply[3] == ' ' || reply[3] == '-') {
		return status.OfReply(int(reply[0]-'0')*100, reply[4:]).String()
	}
	o := store.Outcome{Result: res}
	return o.Code().String()
}

// resultOf is the result of a recipient with a final tag.
func resultOf(delivered bool) thread.Result {
	if delivered {
		return thread.Delivered
	}
	return thread.Failed
}

// logTagged writes the line of a recipient whose outcome only its tag tells.
func (e *attempts) logTagged(v *thread.Vertex, r *thread.Recipient, delivered bool) {
	o := store.Outcome{Result: resultOf(delivered)}
	e.counts.Final(o.Result)
	e.logOutcome(endOf(o.Result), v, r, e.stages(v), o.Code().String(), "told by its tag; the agent did not answer")
}

// logDeferred writes a line for each recipient that is tried again. s is of the attempt.
func (e *attempts) logDeferred(v *thread.Vertex, list []store.Outcome, round thread.Round, s stages) {
	s.attempt = round.Attempt
	for i := range list {
		o := &list[i]
		r := v.Find(o.Offset)
		if r == nil || o.Result.Final() {
			continue
		}
		e.logOutcome(events.Deferred, v, r, s, o.Code().String(), thread.LastLine(o.Text), slog.String("next", round.Next.Format(time.RFC3339)))
	}
}
