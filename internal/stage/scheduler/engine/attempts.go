package engine

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// attempts is the engine as the owner of the agents: what their answers mean for messages.
type attempts struct {
	*base
	changes   *changes
	ends      *ends
	placement *placement
	scanner   *scanner
	meters    meters
}

// Given implements agents.Owner.
func (e *attempts) Given(_ *agents.Agent, v *thread.Vertex) {
	e.counts.Attempts++
	e.meters.attempts.With(v.Thread.Channel(), clauseOf(v.Thread)).Add(1)
}

func clauseOf(t *thread.Thread) string {
	if g := agents.GroupOf(t.Ring); g != nil {
		return g.Settings().Clause
	}
	return ""
}

// Answered implements agents.Owner.
func (e *attempts) Answered(v *thread.Vertex, r *thread.Recipient, ans *taproto.Answer) {
	e.counts.Final(r.Result)
	e.logFinal(v, r, ans)
}

// Stray implements agents.Owner.
func (e *attempts) Stray(number uint64) {
	if m := e.messages.get(number); m != nil && e.changes.busy[m] == nil {
		e.placement.reload(m, nil)
	}
}

// Unlocked implements agents.Owner.
func (e *attempts) Unlocked() {
	e.placement.lockedWait = e.conf.tuning.locked
	e.placement.reloadLocked()
}

// Lost implements agents.Owner.
func (e *attempts) Lost(j *agents.Job) {
	v, m := j.Vertex, j.Vertex.Message
	e.core.Stop(v, e.now)
	if e.messages.get(m.Number) != m {
		e.core.Forget(v)
		return
	}
	// What was answered counts; the rest is looked up in its tags.
	if len(j.Outcomes) > 0 {
		list := slices.DeleteFunc(slices.Clone(j.Outcomes), func(o thread.Outcome) bool { return !o.Result.Final() })
		if len(list) < len(j.Outcomes) {
			v.Lost++ // a deferral is among them: no second try at once
		}
		if len(list) > 0 {
			e.changes.do(m, op{run: e.writes(m, list)})
		}
	}
	e.placement.reload(m, v)
}

// Done implements agents.Owner.
func (e *attempts) Done(j *agents.Job) {
	v, m := j.Vertex, j.Vertex.Message
	t := v.Thread
	spent := e.stages(v)
	round := e.core.End(v, j.Wait, e.now)
	if f := e.conf.Filter; f.is(t) {
		f.heard(e.pool.do, round.Host, t.Trouble)
	}
	if e.messages.get(m.Number) != m {
		if round.Left > 0 {
			e.core.Forget(v)
		}
		return
	}
	moved := false
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Result.Final() {
			continue
		}
		o.Attempt, o.Next = round.Attempt, round.Next
		if round.Host {
			o.HostTries = t.Tries()
		}
		if strings.HasSuffix(o.Text, workspec.OtherSource) {
			m.Moved(o.Offset)
			moved = true
		}
	}
	if moved {
		e.core.Ask(m, e.now)
	}
	if round.Left > 0 {
		e.counts.Deferrals += uint64(round.Left)
		e.logDeferred(v, j.Outcomes, round, spent)
	}
	if j.Report {
		e.ends.remindReport(m)
	}
	if len(j.Outcomes) > 0 {
		e.record(m, v, j.Outcomes, round)
		return
	}
	e.ends.check(m)
}

// Late implements agents.Owner: what the agent leaves to us is written down, then the
// file is read again.
func (e *attempts) Late(d *agents.Doubt, o *thread.Outcome, word taproto.Word, known bool) {
	m := d.Message
	if e.messages.get(m.Number) != m {
		return
	}
	if !o.Result.Final() {
		// The agent has given its lock back. The thread may have gone on since, so the
		// recipient waits for itself alone.
		e.counts.Deferrals++
		o.Attempt, o.Next = d.Attempt, e.now
		if s := e.conf.Conf.Current().Match(d.Channel, d.Host); s != nil {
			o.Next = e.now.Add(s.Interval)
		}
		list := []thread.Outcome{*o}
		// Crash: without the line the recipient is tried at once.
		e.changes.do(m, op{run: e.writes(m, list)})
		e.logLate(events.Deferred, d, o, slog.String("next", o.Next.Format(time.RFC3339)))
		e.placement.reload(m, nil)
		return
	}
	// Another agent that has been given the recipient finds it done. That is no news then.
	m.Vertices(func(v *thread.Vertex) {
		if r := v.Find(o.Offset); r != nil && v.Running() && r.Result == thread.None {
			r.Result = o.Result
		}
	})
	if word != taproto.OK3 {
		m.Owes = true
	}
	if !known {
		e.counts.Final(o.Result)
		e.logLate(endOf(o.Result), d, o)
	}
	if agents.LeftToUs(word) {
		list := []thread.Outcome{*o}
		// Crash before it is written: the recipient is locked by an agent that ends, and
		// is in doubt; after: its tag is final.
		e.changes.do(m, op{run: e.writes(m, list)})
	}
	e.placement.reload(m, nil)
}

// logLate writes the line of a recipient whose answer came after its job was taken back.
func (e *attempts) logLate(k events.Kind, d *agents.Doubt, o *thread.Outcome, more ...slog.Attr) {
	id := idOf(d.Message)
	code, reply := o.Notary.Status, thread.LastLine(o.Text)
	if code == "" {
		code = replyCode(reply, o.Result)
	}
	list := append([]slog.Attr{slog.Any("id", id), slog.String("name", d.Message.Name()), slog.String("rcpt", o.Address),
		slog.String("channel", d.Channel), slog.String("host", d.Host), slog.String("status", code), slog.String("reply", store.Cut(reply)),
		slog.Int("attempt", d.Attempt), slog.Duration("took", e.now.Sub(id.Time()))}, more...)
	list = wayAttrs(list, &o.Notary)
	e.emitter().EmitAttrs(k, list...)
}

// record writes outcomes down and only then acts on them (A5).
func (e *attempts) record(m *thread.Message, v *thread.Vertex, list []thread.Outcome, round thread.Round) {
	var rec store.Recorded
	e.changes.do(m, op{
		run: func() (err error) {
			rec, err = e.spool.Record(m.Name(), list)
			return err
		},
		then: func() {
			e.ends.touched(m, rec.ID)
			e.log.Debug("recorded", "id", idOf(m), "name", m.Name(), "outcomes", len(list))
			left := round.Left > 0
			if left && len(rec.Taken) > 0 {
				left = e.ends.takeBack(m, v, &rec)
			}
			switch {
			case left && round.Expired:
				e.ends.expire(v)
			case left && rec.Long && e.ends.summarise(m, v):
			case left:
				e.core.Wait(v, e.now)
			}
			e.ends.check(m)
		},
	})
}

// feed gives what is ready in a ring to its agents.
func (e *attempts) feed(r *thread.Ring) {
	g := agents.GroupOf(r)
	switch {
	case g == nil || e.stopping || e.scanner.startsNothing():
	case e.conf.Lease.Check(lease.Step) != nil:
		e.agents.LookAgain(g, e.now.Add(lease.Step)) // it is renewed meanwhile, or this program ends
	case !g.Retired():
		e.agents.Feed(g)
	case e.agents.Withdraw(g):
		// Messages came to a ring that is no more, as when an attempt ended that was begun before.
		r.Threads(func(t *thread.Thread) { e.placement.reloadThread(t) })
	}
}

// writes returns what records outcomes that nothing follows from.
func (e *attempts) writes(m *thread.Message, list []thread.Outcome) func() error {
	return func() error {
		_, err := e.spool.Record(m.Name(), list)
		return err
	}
}

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
	n := workspec.ParseNotary(ans.Notary)
	if n.Status == "" {
		n.Status = replyCode(thread.LastLine(ans.Text), r.Result)
	}
	e.logOutcome(endOf(r.Result), v, r, e.stages(v), &n, thread.LastLine(ans.Text))
}

// endOf returns the event of a final result.
func endOf(r thread.Result) events.Kind {
	if r == thread.Delivered {
		return events.Delivered
	}
	return events.Failed
}

// logOutcome writes a line of a recipient's attempt.
func (e *attempts) logOutcome(k events.Kind, v *thread.Vertex, r *thread.Recipient, s stages, n *workspec.Notary, reply string, more ...slog.Attr) {
	m := v.Message
	id := idOf(m)
	e.meters.outcome(k.String(), v, &s, store.Since(id.Time(), e.now))
	var room [20]slog.Attr
	list := append(room[:0], slog.Any("id", id), slog.String("name", m.Name()), slog.String("rcpt", r.Address),
		slog.String("channel", v.Thread.Channel()), slog.String("host", v.Thread.Host),
		slog.String("status", n.Status), slog.String("reply", store.Cut(reply)))
	list = append(s.attrs(list), slog.Duration("took", store.Since(id.Time(), e.now)))
	list = wayAttrs(list, n)
	e.emitter().EmitAttrs(k, append(list, more...)...)
}

// replyCode returns the enhanced code of an SMTP reply, or that of a bare success or
// failure.
func replyCode(reply string, res thread.Result) string {
	if len(reply) > 4 && reply[0] >= '2' && reply[0] <= '5' && (reply[3] == ' ' || reply[3] == '-') {
		return status.OfReply(int(reply[0]-'0')*100, reply[4:]).String()
	}
	o := store.Outcome{Result: res}
	return o.Code().String()
}

// resultOf returns the result of a recipient with a final tag.
func resultOf(delivered bool) thread.Result {
	if delivered {
		return thread.Delivered
	}
	return thread.Failed
}

// logTagged writes the line of a recipient whose outcome is known by its tag alone.
func (e *attempts) logTagged(v *thread.Vertex, r *thread.Recipient, delivered bool) {
	o := store.Outcome{Result: resultOf(delivered)}
	e.counts.Final(o.Result)
	e.logOutcome(endOf(o.Result), v, r, e.stages(v), &workspec.Notary{Status: o.Code().String()}, "known by its tag; the agent did not answer")
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
		n := workspec.Notary{Status: o.Code().String(), Remote: o.Notary.Remote, Way: o.Notary.Way}
		e.logOutcome(events.Deferred, v, r, s, &n, thread.LastLine(o.Text), slog.String("next", round.Next.Format(time.RFC3339)))
	}
}

// meters are what the scheduler counts of its agents' work (Z26); without METRICS they
// count nothing. They may be used by many goroutines.
type meters struct {
	recipients *metrics.Counters   // channel, clause, result
	attempts   *metrics.Counters   // channel, clause
	reports    *metrics.Counters   // kind
	routing    *metrics.Histogram  // of the first attempts
	queue      *metrics.Histograms // channel, clause
	delivery   *metrics.Histograms // channel, clause
	life       *metrics.Histograms // channel, result
}

func newMeters(s *metrics.Set) meters {
	return meters{
		recipients: s.Counter("zmailer_scheduler_recipients_total",
			"Recipients that an attempt has ended for, by its result: delivered, deferred or failed; expired without one.", "channel", "clause", "result"),
		attempts: s.Counter("zmailer_scheduler_attempts_total",
			"Deliveries given to transport agents, each of some recipients of one message.", "channel", "clause"),
		reports: s.Counter("zmailer_scheduler_reports_total",
			"Reports sent, by kind: failed, delayed or delivered.", "kind"),
		routing: s.Histogram("zmailer_scheduler_routing_seconds",
			"From the acceptance of a message until the scheduler might have begun with a recipient.", metrics.Short()).With(),
		queue: s.Histogram("zmailer_scheduler_queue_seconds",
			"From then, or from the time of the next attempt, until an agent was given the recipient.", metrics.Long(), "channel", "clause"),
		delivery: s.Histogram("zmailer_scheduler_delivery_seconds",
			"From then until the agent's answer.", metrics.Short(), "channel", "clause"),
		life: s.Histogram("zmailer_scheduler_life_seconds",
			"From the acceptance of a message until a recipient was done with.", metrics.Long(), "channel", "result"),
	}
}

// outcome counts what an attempt for a recipient came to: a word of the log.
func (m *meters) outcome(word string, v *thread.Vertex, s *stages, took time.Duration) {
	if m.recipients == nil {
		return
	}
	channel, clause := v.Thread.Channel(), clauseOf(v.Thread)
	m.recipients.With(channel, clause, word).Add(1)
	m.routing.Observe(s.routing)
	m.queue.With(channel, clause).Observe(s.queue)
	m.delivery.With(channel, clause).Observe(s.delivery)
	if word != "deferred" {
		m.life.With(channel, word).Observe(max(took, 0))
	}
}
