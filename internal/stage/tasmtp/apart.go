package tasmtp

import (
	"strings"

	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/smtpclient"
	"zmailer/internal/workspec"
)

// maxSplits is how often one transaction is divided because a recipient drew 421, which
// ended the connection for all. Each division costs the server another connection.
const maxSplits = 2

// triedApart ends the reply of a recipient that drew 421. The scheduler writes it into the
// history, where the next attempt finds it.
const triedApart = "; the next attempt has a transaction for this recipient alone"

// drew reports whether the server said 421 to a recipient and to none of the others: in
// answer to RCPT, or with LMTP to the final dot.
func drew(res *smtpclient.Result, lmtp bool) bool {
	return res.Reply.Code == 421 && !res.Another && (res.Phase == smtpclient.PhaseRcpt || lmtp && res.Phase == smtpclient.PhaseDot)
}

// apart returns the offsets of the recipients whose last attempt ended by a 421 of their
// own; nil if there are none, which costs next to nothing to find out.
func apart(d *agent.Delivery) map[int64]bool {
	var found map[int64]bool
	for i := range d.Spec.History {
		h := &d.Spec.History[i]
		if h.Event != workspec.EventDeferred {
			continue
		}
		own := strings.Contains(h.Text, triedApart)
		if own && found == nil {
			found = map[int64]bool{}
		}
		if own || found != nil {
			for r := range d.Spec.About(h) {
				found[r.Offset] = own
			}
		}
	}
	return found
}

// others returns the recipients of a transaction that another one's 421 has ended, for
// transactions of their own at once: those that were accepted, and those that had no answer
// yet.
func others(rcpts []*agent.Recipient, results []smtpclient.Result) [][]*agent.Recipient {
	var accepted, unanswered []*agent.Recipient
	for i := range results {
		switch {
		case !results[i].Another:
		case results[i].Accepted:
			accepted = append(accepted, rcpts[i])
		default:
			unanswered = append(unanswered, rcpts[i])
		}
	}
	var groups [][]*agent.Recipient
	for _, g := range [][]*agent.Recipient{accepted, unanswered} {
		if len(g) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}
