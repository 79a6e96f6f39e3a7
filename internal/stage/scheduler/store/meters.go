package store

import (
	"time"

	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/conf"
)

// Meters are what the store counts; the zero value counts nothing.
type Meters struct {
	Recipients *metrics.Counters   // channel, clause, result
	Reports    *metrics.Counters   // kind
	Life       *metrics.Histograms // channel, result
}

// expired counts a recipient that was given up.
func (m *Meters) expired(c *conf.File, channel, host string, took time.Duration) {
	if m.Recipients == nil {
		return
	}
	clause := ""
	if s := c.Current().Match(channel, host); s != nil {
		clause = s.Clause
	}
	m.Recipients.With(channel, clause, "expired").Add(1)
	m.Life.With(channel, "expired").Observe(max(took, 0))
}
