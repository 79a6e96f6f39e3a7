package router

import (
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/metrics"
)

// What becomes of a message, as the metrics name it.
const (
	resultRouted   = "routed"
	resultDeferred = "deferred"  // to deferred/
	resultFrozen   = "frozen"    // to freezer/
	resultAside    = "set-aside" // to postman/
	resultBack     = "given-back"
)

// meters are what the router counts (Z26); without METRICS they count nothing.
type meters struct {
	messages *metrics.Counters
	waited   *metrics.Histogram
	routing  *metrics.Histogram
}

func newMeters(s *metrics.Set) meters {
	m := meters{
		messages: s.Counter("zmailer_router_messages_total",
			"Messages that a router has claimed, by what became of them.", "result"),
		waited: s.Histogram("zmailer_router_wait_seconds",
			"From the acceptance of a message until a router began with it.", metrics.Short()).With(),
		routing: s.Histogram("zmailer_router_routing_seconds",
			"From then until it was handed over to the scheduler.", metrics.Short()).With(),
	}
	for _, result := range []string{resultRouted, resultDeferred, resultFrozen, resultAside, resultBack} {
		m.messages.With(result) // is there with 0: the first one is a rise, too
	}
	return m
}

func (m *meters) routed(c *postoffice.Claim, start time.Time, now func() time.Time) {
	if m.messages == nil {
		return
	}
	m.messages.With(resultRouted).Add(1)
	m.waited.Observe(max(start.Sub(c.ID.Time()), 0))
	m.routing.Observe(max(now().Sub(start), 0))
}
