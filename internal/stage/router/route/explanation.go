package route

import "zmailer/internal/stage/router/rules"

// Verdicts on a message or one of its recipients (docs/route.md).
const (
	VerdictRouted     = "routed"     // some target is no error
	VerdictRejected   = "rejected"   // every target is on channel error
	VerdictDeferred   = "deferred"   // the answer is unknown now
	VerdictFrozen     = "frozen"     // an operator is to look
	VerdictSetAside   = "set-aside"  // its envelope cannot be read
	VerdictGone       = "gone"       // the file has moved on
	VerdictUnreadable = "unreadable" // the file cannot be read: nothing is known
)

// Explanation is what the router would do with a message.
type Explanation struct {
	File       string                `json:"file"`
	ID         string                `json:"id,omitempty"`
	UID        uint32                `json:"uid"`
	Login      string                `json:"login,omitempty"`
	Trusted    bool                  `json:"trusted,omitempty"`
	External   bool                  `json:"external,omitempty"`
	Report     bool                  `json:"report,omitempty"`
	Sender     string                `json:"sender"`
	Claimed    string                `json:"claimed,omitempty"`
	Verdict    string                `json:"verdict"`
	Reason     string                `json:"reason,omitempty"`
	Why        string                `json:"why,omitempty"`
	Steps      []Step                `json:"steps,omitempty"`
	Recipients []*ExplainedRecipient `json:"recipients,omitempty"`
}

// ExplainedRecipient is what becomes of one recipient of the envelope.
type ExplainedRecipient struct {
	Address string            `json:"address"`
	Class   string            `json:"class,omitempty"`   // of its domain: local, virtual-alias, virtual-mailbox, relay, default
	Verdict string            `json:"verdict,omitempty"` // "": not looked at, another one ended it
	Reason  string            `json:"reason,omitempty"`
	Code    string            `json:"code,omitempty"` // RFC 3463
	Steps   []Step            `json:"steps,omitempty"`
	Targets []ExplainedTarget `json:"targets,omitempty"`
	More    int               `json:"more,omitempty"` // targets that are not in Targets

	MoreSteps int `json:"-"` // steps that are not in Steps
	errors    int // targets on channel error
}

// Step is one thing that was asked on the way.
type Step = rules.Step

// ExplainedTarget is one place where mail would go.
type ExplainedTarget struct {
	Channel   string   `json:"channel"`
	Host      string   `json:"host"`
	User      string   `json:"user"`
	Privilege uint32   `json:"privilege"`
	Via       []string `json:"via,omitempty"`
	Sender    string   `json:"sender,omitempty"`
	VERP      bool     `json:"verp,omitempty"`
	After     int      `json:"after,omitempty"` // of the steps
	Service   *Service `json:"service,omitempty"`
}

// Service is who serves a channel and host, by scheduler.conf.
type Service struct {
	Served bool   `json:"served"`
	Clause string `json:"clause,omitempty"`
	Where  string `json:"where,omitempty"`
	Code   string `json:"code,omitempty"`
	Text   string `json:"text,omitempty"`
	// Suspended describes the suspension by an operator for which the mail would wait.
	Suspended string `json:"suspended,omitempty"`
}

// Serve asks who serves each target.
func (e *Explanation) Serve(ask func(channel, host string) *Service) {
	for _, r := range e.Recipients {
		for i := range r.Targets {
			t := &r.Targets[i]
			t.Service = ask(t.Channel, t.Host)
			if r.Verdict == VerdictRejected && t.Service != nil && r.Code == "" {
				r.Code, r.Reason = t.Service.Code, t.Service.Text
			}
		}
	}
}

// Whole reports whether the mail is delivered to every recipient, as far as that is known.
func (e *Explanation) Whole() bool {
	for _, r := range e.Recipients {
		if r.errors > 0 {
			return false
		}
		for i := range r.Targets {
			if s := r.Targets[i].Service; s != nil && !s.Served {
				return false
			}
		}
	}
	return e.Verdict == VerdictRouted
}

// setVerdicts derives the verdicts of recipients and message from the targets.
func (e *Explanation) setVerdicts() {
	good, bad := 0, 0
	for _, r := range e.Recipients {
		switch n := len(r.Targets) + r.More; {
		case r.Verdict != "":
		case n > 0 && r.errors == n:
			r.Verdict = VerdictRejected
			bad++
		case n > 0:
			r.Verdict = VerdictRouted
			good++
		}
	}
	switch {
	case e.Verdict != "":
	case good == 0 && bad > 0:
		e.Verdict = VerdictRejected
	default:
		e.Verdict = VerdictRouted
	}
}
