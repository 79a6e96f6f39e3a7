package check

import (
	"fmt"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
)

// aged warns of mail that its clause should have expired by now, or that is older than the
// limit of the caller.
func (x *queue) aged() {
	seen := map[view.Thread]bool{}
	var pairs []view.Thread
	for _, m := range x.open {
		for i := range m.Recipients {
			t := view.Thread{Channel: m.Recipients[i].Channel, Host: m.Recipients[i].Host}
			if m.Recipients[i].Open() && !seen[t] {
				seen[t] = true
				pairs = append(pairs, t)
			}
		}
	}
	var expiry map[view.Thread]time.Duration
	if x.Older <= 0 && len(pairs) > 0 && x.Settings != nil {
		expiry = view.Expiry(x.Settings, pairs)
	}
	findings := map[string]*Finding{}
	for i := range x.findings {
		findings[x.findings[i].key] = &x.findings[i]
	}
	for _, m := range x.open {
		if f := findings[m.Name]; f != nil {
			x.agedMessage(f, m, expiry)
		}
	}
}

// agedMessage adds to a finding the recipients that are too old.
func (x *queue) agedMessage(f *Finding, m *view.Message, expiry map[view.Thread]time.Duration) {
	age := x.Now.Sub(m.Since)
	removal := m.Spec.Removal()
	if removal != nil {
		age -= removal.Away
	}
	for i := range m.Recipients {
		p := &m.Recipients[i]
		if !p.Open() || p.State == view.Frozen {
			continue
		}
		age := age - m.Spec.Orders().Of(p.Offset).Away(m.Since, x.Now, removal)
		limit, of := x.Older, "as asked"
		if limit <= 0 {
			after, known := expiry[view.Thread{Channel: p.Channel, Host: p.Host}]
			// The scheduler is about to expire recipients that are due now.
			switch limit, of = after+x.Stuck, "the expiry of its clause in scheduler.conf"; {
			case !known:
				limit, of = defaultOld+x.Stuck, "the default expiry"
			case after == 0:
				continue // never
			}
		}
		if age <= limit {
			continue
		}
		r := report{Finding: *f}
		r.wrong(TooOld, "")
		*f = r.Finding
		f.Text += fmt.Sprintf(" <%s> is open after %s; %s is %s.", p.Address, human.Span(age), of, human.Span(limit))
		return
	}
}
