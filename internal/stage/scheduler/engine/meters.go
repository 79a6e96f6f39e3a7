package engine

import (
	"time"

	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/thread"
)

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
