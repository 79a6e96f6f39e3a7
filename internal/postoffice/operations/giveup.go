package operations

import (
	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// Remove takes the open recipients of transport/name out; they can be put back.
func Remove(q Request, name string) (Result, error) {
	return q.apply(name, "remove", func(*chosen) bool { return true }, func(spec *workspec.Spec, list []chosen) decision {
		d := decision{event: q.removed(workspec.EventRemoved, list), tag: workspec.TagFailed}
		if q.Report {
			d.diagnostic = q.removal
		}
		return d
	})
}

// Expire gives the open recipients of transport/name up, held and frozen ones, too, as
// if their time were over.
func Expire(q Request, name string) (Result, error) {
	return q.apply(name, "expire", func(*chosen) bool { return true }, func(spec *workspec.Spec, list []chosen) decision {
		last := map[int64]string{}
		for i := range spec.History {
			if e := &spec.History[i]; e.Event == workspec.EventDeferred {
				for r := range spec.About(e) {
					last[r.Offset] = e.Text
				}
			}
		}
		code := status.Expired
		return decision{event: q.event(workspec.EventExpired, list, workspec.Attr{Key: "status", Value: code.String()}), tag: workspec.TagFailed,
			diagnostic: func(c *chosen) *workspec.Diagnostic {
				text := "given up by the postmaster"
				if answer := last[c.rcpt.Offset]; answer != "" {
					text += "; last answer: " + answer
				}
				d := q.diagnostic(c, code, text)
				// Marked as reported: no one is to hear of it.
				d.Reported = !q.Report
				return d
			}}
	})
}

// removed returns the line of a removal or of its undo.
func (q *Request) removed(word string, list []chosen) workspec.Event {
	text := q.Who
	if q.Reason != "" {
		text += ": " + q.Reason
	}
	return workspec.OrderEvent(q.Now, word, q.ID.String(), offsets(list), "", q.Order, text)
}

// removal returns the diagnostic of a removed recipient in the report. RFC 3463 §3.8: 5.7.0,
// another policy.
func (q *Request) removal(c *chosen) *workspec.Diagnostic {
	return q.diagnostic(c, status.Code{Class: 5, Subject: 7}, "removed by the postmaster")
}

// Agent is who a diagnostic is from that an order has written.
const Agent = "zmctl"

func (q *Request) diagnostic(c *chosen, code status.Code, text string) *workspec.Diagnostic {
	return &workspec.Diagnostic{Recipient: c.rcpt.Offset, HeaderOffset: c.group.HeaderOffset, NotaryOffset: c.rcpt.NotaryOffset,
		Time: q.Now, Text: text, Notary: workspec.Notary{Address: c.rcpt.Address, Action: "failed",
			Status: code.String(), Diagnostic: "x-local; " + text, Agent: Agent}}
}
