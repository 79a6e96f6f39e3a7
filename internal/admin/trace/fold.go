package trace

import (
	"cmp"
	"strings"
	"time"
)

// fold applies a step to the recipients that it names.
func fold(steps []Step, now time.Time) []Recipient {
	list := []Recipient{}
	at := map[string]int{}
	for i := range steps {
		s := &steps[i]
		for _, address := range s.Recipients {
			k, known := at[strings.ToLower(address)]
			if !known {
				k = len(list)
				at[strings.ToLower(address)] = k
				list = append(list, Recipient{Address: address, State: Waiting})
			}
			list[k].take(s)
		}
	}
	for i := range list {
		list[i].obey(now)
	}
	return list
}

// take changes a recipient as a step did.
func (r *Recipient) take(s *Step) {
	if s.Channel != "" {
		r.Channel, r.Host = s.Channel, s.Host
	}
	r.Routing, r.Queue, r.Delivery = r.Routing+s.Routing, r.Queue+s.Queue, r.Delivery+s.Delivery
	r.timed = r.timed || s.timed
	switch s.Event {
	case "deferred":
		r.answer(s)
		r.Attempts, r.Next = s.Attempt, s.Next
	case "delivered", "failed":
		r.answer(s)
		r.Attempts = max(r.Attempts, s.Attempt)
		r.end(s, s.Event)
	case "expired":
		r.answer(s)
		r.end(s, Failed)
	case "removed":
		r.end(s, Removed)
	case "rerouted":
		r.end(s, Rerouted)
	case "restored":
		r.State, r.Ended = Waiting, time.Time{}
	case "unknown-channel":
		r.State = Unserved
	case "served":
		r.State = Waiting
	case "held":
		r.held, r.until = true, s.Until
	case "released":
		r.held = false
	case "frozen":
		r.frozen = true
	case "thawed", "retry":
		r.again(s)
	}
}

func (r *Recipient) answer(s *Step) {
	if s.Told[0] == Log {
		r.Relay, r.TLS, r.Cipher, r.Verified, r.Original = s.Relay, s.TLS, s.Cipher, s.Verified, cmp.Or(s.Original, r.Original)
	}
	r.Status, r.Last = cmp.Or(s.Status, r.Status), cmp.Or(s.Reply, r.Last)
}

func (r *Recipient) end(s *Step, state string) { r.State, r.Ended, r.Next = state, s.Time, time.Time{} }

// again has it tried now; of one that was thawed or had failed, as if for the first time.
func (r *Recipient) again(s *Step) {
	r.Next = time.Time{}
	if s.Fresh {
		r.State, r.Ended, r.Attempts, r.frozen = Waiting, time.Time{}, 0, false
	}
}

// obey applies the order of an operator or a rule to a waiting recipient.
func (r *Recipient) obey(now time.Time) {
	switch {
	case r.State != Waiting && r.State != Unserved:
	case r.frozen:
		r.State, r.Next = Frozen, time.Time{}
	case r.held && (r.until.IsZero() || r.until.After(now)):
		r.State = Held
	}
}

// Timed reports whether it is known how the time of a recipient was spent.
func (r *Recipient) Timed() bool { return r.timed }
