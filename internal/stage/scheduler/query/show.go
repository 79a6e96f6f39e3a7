package query

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
)

// Counts are what happened since the start.
type Counts struct {
	MessagesIn, MessagesOut     uint64
	RecipientsIn, RecipientsOut uint64 // out: with a final outcome
	Deliveries, Failures        uint64 // recipients
	Deferrals                   uint64 // recipients, each time
	Attempts                    uint64 // given to agents
}

// Final counts a recipient that is done with.
func (c *Counts) Final(r thread.Result) {
	c.RecipientsOut++
	if r == thread.Delivered {
		c.Deliveries++
	} else {
		c.Failures++
	}
}

// ringShot is a ring as it was at a moment.
type ringShot struct {
	key, clause                    string
	channel, host                  string // for the classic listing
	running, procs, idle           int
	maxRing, maxChannel, maxThread int
	overfeed                       int
	threads                        []*thread.Thread
	seenThreads, messages, rcpts   int
}

// threadShot is a thread as it was at a moment.
type threadShot struct {
	ring          *ringShot
	channel, host string
	stats         thread.Stats
	pid           int
	now           time.Time
}

// rings takes all rings and what threads they have, in order.
func (q *snapshots) rings() (list []*ringShot, s mailq.Sums, c Counts, err error) {
	list, s, c, err = q.unsorted(func(View) {})
	slices.SortFunc(list, func(a, b *ringShot) int { return strings.Compare(a.key, b.key) })
	for _, r := range list {
		// Neither of them changes as long as the thread lives.
		slices.SortFunc(r.threads, func(a, b *thread.Thread) int {
			return cmp.Or(strings.Compare(a.Channel(), b.Channel()), strings.Compare(a.Host, b.Host))
		})
	}
	return list, s, c, err
}

// unsorted is rings without an order; the engine calls also in the turn of the first part.
func (q *snapshots) unsorted(also func(View)) (list []*ringShot, s mailq.Sums, c Counts, err error) {
	shots := map[*thread.Ring]*ringShot{}
	shot := func(r *thread.Ring) *ringShot {
		if shots[r] == nil {
			shots[r] = shotOf(r)
			list = append(list, shots[r])
		}
		return shots[r]
	}
	err = q.threads(func(v View) {
		also(v)
		st := v.Status()
		s, c = st.sums(), st.Counts
		v.Core().Rings(func(r *thread.Ring) { shot(r) })
	}, func(_ View, t *thread.Thread) {
		r := shot(t.Ring)
		r.threads = append(r.threads, t)
		s.Threads++
	})
	return list, s, c, err
}

func shotOf(r *thread.Ring) *ringShot {
	shot := &ringShot{key: r.Key, running: r.Running(), maxRing: r.Policy.MaxRing, maxChannel: r.Policy.MaxChannel, maxThread: r.Policy.MaxThread}
	if g := agents.GroupOf(r); g != nil {
		shot.clause, shot.overfeed = g.Settings().Clause, g.Settings().Overfeed
		shot.channel, shot.host = g.Channel, g.Host
		shot.procs, shot.idle = g.Len()
	}
	return shot
}

// sums returns the status for the classic listings.
func (s *Status) sums() mailq.Sums {
	return mailq.Sums{Messages: s.Messages, Uptime: s.Uptime, Agents: s.Agents, Idle: s.Idle,
		MessagesIn: s.MessagesIn, MessagesOut: s.MessagesOut, RecipientsIn: s.RecipientsIn, RecipientsOut: s.RecipientsOut}
}

// each gives the threads of a ring, a part at a time. Those that have ended since are
// left out.
func (q *snapshots) each(r *ringShot, fn func(*threadShot) error) error {
	at := tour{ring: r, shots: make([]threadShot, 0, askedAtOnce/10)}
	for at.thread < len(r.threads) {
		at.shots = at.shots[:0]
		if err := q.ask(func(v View) { q.walk(v, &at) }); err != nil {
			return err
		}
		for i := range at.shots {
			s := &at.shots[i]
			r.seenThreads++
			r.messages += s.stats.Vertices
			r.rcpts += s.stats.Recipients
			if err := fn(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// tour is how far a walk through the threads of a ring has come.
type tour struct {
	ring   *ringShot
	thread int // its number
	vertex int // of those of that thread
	shots  []threadShot
	part   threadShot // of the thread that is not ended
}

// walk goes on with a tour until it has looked at askedAtOnce vertices or made as many
// shots as there is room for; the engine calls it.
func (q *snapshots) walk(v View, at *tour) {
	for at.thread < len(at.ring.threads) && len(at.shots) < cap(at.shots) && q.visited < askedAtOnce {
		t := at.ring.threads[at.thread]
		if at.vertex == 0 {
			at.part = q.shot(v, at.ring, t)
		}
		if !q.sum(t, at) {
			return
		}
		if at.part.stats.Vertices > 0 {
			at.shots = append(at.shots, at.part)
		}
		at.thread, at.vertex = at.thread+1, 0
	}
}

// shot returns what the core knows of a thread without a look at its vertices.
func (q *snapshots) shot(v View, r *ringShot, t *thread.Thread) threadShot {
	s := threadShot{ring: r, channel: t.Channel(), host: t.Host, stats: t.Brief(v.Now()), now: v.Now()}
	if a := agents.AgentOf(t); a != nil && s.stats.Running > 0 {
		s.pid = a.Pid()
	}
	q.visited++
	return s
}

// sum looks at the vertices of a thread for what the core keeps no count of; false: it
// goes on in the next turn.
func (q *snapshots) sum(t *thread.Thread, at *tour) bool {
	s := &at.part.stats
	if at.vertex == 0 && !s.Oldest.IsZero() && s.State != thread.Waiting {
		return true
	}
	done := true
	t.Vertices(at.vertex, func(v *thread.Vertex) bool {
		if q.visited >= askedAtOnce {
			done = false
			return false
		}
		q.visited++
		at.vertex++
		if id := idOf(v.Message); s.Oldest.IsZero() || id.Time().Before(s.Oldest) {
			s.Oldest = id.Time()
		}
		if next := v.Next(); s.State == thread.Waiting && !next.IsZero() && (s.Until.IsZero() || next.Before(s.Until)) {
			s.Until = next
		}
		return true
	})
	return done
}

// show answers what a request wants to see.
func (s *session) show(r mailq.Request) error {
	switch r.Kind {
	case mailq.Thread:
		return s.showThread(r)
	case mailq.JSONThread:
		return s.jsonThread(r)
	case mailq.JSONMessage:
		return s.jsonMessage(r)
	case mailq.JSONStatus:
		return s.jsonStatus()
	}
	rings, sums, counts, err := s.q.rings()
	if err != nil {
		return s.stopped()
	}
	threads := r.Kind == mailq.Threads || r.Kind == mailq.Threads2
	if threads {
		s.asides = asides{}
		if err := s.asides.find(s.q); err != nil {
			return s.stopped()
		}
	}
	if err := s.say(mailq.Follows); err != nil {
		return err
	}
	now := s.q.Now()
	for _, ring := range rings {
		if err := s.showRing(r.Kind, ring, now); err != nil {
			return err
		}
		sums.Recipients += ring.rcpts
	}
	if threads {
		n, err := s.showAside(r.Kind, now)
		if err != nil {
			return err
		}
		sums.Recipients += n
	}
	switch r.Kind {
	case mailq.Short, mailq.Threads, mailq.SNMP:
		err = s.write(mailq.AppendSums(nil, &sums, r.Kind == mailq.SNMP))
	case mailq.Counters:
		err = s.write(counters(&sums, len(rings), &counts, now))
	}
	if err != nil {
		return err
	}
	return s.say(mailq.End)
}

// showRing writes what a listing has of one ring.
func (s *session) showRing(k mailq.Kind, r *ringShot, now time.Time) error {
	classic := k == mailq.Short || k == mailq.Threads
	if classic {
		if err := s.write(mailq.AppendLine(nil, cmp.Or(r.clause, "?/?")+"/0")); err != nil {
			return err
		}
	}
	err := s.q.each(r, func(t *threadShot) error {
		switch k {
		case mailq.Threads:
			s.asides.threaded(t.channel, t.host)
			line := t.line(now)
			return s.write(mailq.AppendThreads(nil, &line))
		case mailq.Threads2:
			s.asides.threaded(t.channel, t.host)
			line := t.line(now)
			return s.write(mailq.AppendThreads2(nil, &line))
		case mailq.JSONThreads:
			return s.json(t.json(now))
		}
		return nil
	})
	if err != nil || !classic {
		return err
	}
	return s.write(mailq.AppendRing(nil, &mailq.RingLine{Pattern: r.clause, Threads: r.seenThreads, Recipients: r.rcpts,
		Procs: r.procs, Idle: r.idle, Limit: r.maxRing, Overfeed: r.overfeed}))
}

// stopped ends an answer that the engine does not give any more.
func (s *session) stopped() error {
	_ = s.no("the scheduler stops")
	return errStopped
}

// line returns the thread for the classic listings.
func (t *threadShot) line(now time.Time) mailq.ThreadLine {
	l := mailq.ThreadLine{Channel: t.channel, Host: t.host, Messages: t.stats.Vertices, Recipients: t.stats.Recipients,
		Attempts: int(t.stats.Attempts), PID: t.pid, Age: store.Since(t.stats.Oldest, now)}
	if t.stats.Oldest.IsZero() {
		l.Age = 0
	}
	if t.stats.Until.After(now) {
		l.Wait = t.stats.Until.Sub(now)
	}
	if t.stats.Ready > 0 && l.Wait == 0 {
		switch {
		case t.stats.Limit > 0 && t.stats.Running >= t.stats.Limit:
			l.Pending = "threadwait"
		case t.stats.Running == 0:
			l.Pending = "channelwait"
		}
	}
	return l
}

// counters is SHOW COUNTERS: ZMailer's names where it counts the same.
func counters(s *mailq.Sums, rings int, c *Counts, now time.Time) []byte {
	b := mailq.AppendCounter(nil, "Time_now", uint64(now.Unix()))
	for _, line := range []struct {
		name string
		n    uint64
	}{
		{"SYS.SchedulerMasterPID", uint64(os.Getpid())},
		{"SC.ReceivedMessages", c.MessagesIn}, {"SC.ReceivedRecipients", c.RecipientsIn},
		{"SC.TransmittedMessages", c.MessagesOut}, {"SC.TransmittedRecipients", c.RecipientsOut},
		{"SC.StoredMessages-G", uint64(s.Messages)}, {"SC.StoredRecipients-G", uint64(s.Recipients)},
		{"SC.StoredThreads-G", uint64(s.Threads)}, {"SC.Rings-G", uint64(rings)},
		{"SC.TransportAgentsActive-G", uint64(s.Agents - s.Idle)}, {"SC.TransportAgentsIdle-G", uint64(s.Idle)},
		{"SC.Attempts", c.Attempts}, {"SC.Deliveries", c.Deliveries}, {"SC.Deferrals", c.Deferrals}, {"SC.Failures", c.Failures},
	} {
		b = mailq.AppendCounter(b, line.name, line.n)
	}
	return b
}
