package view

import (
	"context"
	"maps"
	"slices"

	"zmailer/internal/admin/selector"
)

// RecipientCount are those in one state.
type RecipientCount struct {
	State         string `json:"state"`
	Recipients    int    `json:"recipients"`
	OldestSeconds int64  `json:"oldest_seconds"` // age of the oldest message that has such a one
}

// readLimit is how many specifications are read to count recipients: status is asked
// for every minute.
const readLimit = 20000

// countRecipients counts those of queued mail. Those that cannot be read are reported by queue
// and check.
func (v *Survey) countRecipients(ctx context.Context) []RecipientCount {
	of := map[string]*RecipientCount{}
	_, _ = v.spool.Each(ctx, selector.Selector{}, func(m *Message) error {
		if m.State != StateQueued {
			return nil
		}
		for i := range m.Recipients {
			r := of[m.Recipients[i].State]
			if r == nil {
				r = &RecipientCount{State: m.Recipients[i].State}
				of[r.State] = r
			}
			r.Recipients++
			r.OldestSeconds = max(r.OldestSeconds, m.AgeSeconds)
		}
		return nil
	})
	list := make([]RecipientCount, 0, len(of))
	for _, state := range slices.Sorted(maps.Keys(of)) {
		list = append(list, *of[state])
	}
	return list
}
