package policy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/session"
)

// DNSBL defines which DNS lists are asked about clients (docs/dns-lists.md).
type DNSBL struct {
	Sites     []dnslist.Site // none: no list is asked
	Threshold int            // the sum of weights from which a client is refused
	Enforce   bool           // it is; else only rules with dnsbl> ask
	Timeout   time.Duration  // of a list
}

// Greylist defines which mail is deferred first (docs/greylisting.md).
type Greylist struct {
	greylist.Config
	On        bool // there is a greylist
	RulesOnly bool // it is asked only where a rule says greylist
	// ExemptSPF: mail that passes SPF is not tested; ExemptDNSWL: nor are clients with a
	// score below 0 in DNSBL_SITES.
	ExemptSPF, ExemptDNSWL bool
	// SPF reports whether a sender passes SPF; it may be nil.
	SPF func(ctx context.Context, client netip.Addr, helo string, from address.Mailbox) bool
}

// reputation is what the policy knows of clients beside the rules.
type reputation struct {
	dns   *dnsq.Client
	lists *dnslist.Lists // nil: none
	grey  *greylist.List // nil: there is none
}

// openReputation prepares lists and the greylist.
func (p *Policy) openReputation() {
	p.dns = dnsq.New(dnsq.Config{Server: p.Resolver, Timeout: p.DNSBL.Timeout})
	if len(p.DNSBL.Sites) > 0 {
		p.lists = dnslist.New(p.dns, p.DNSBL.Sites, p.DNSBL.Timeout, p.Log).Alarms(p.Keeper)
	}
}

// SetGreylist has mail deferred by a greylist. Without one nothing is deferred, as in a check of
// the configuration: one writer has its files.
func (p *Policy) SetGreylist(l *greylist.List) { p.grey = l }

// Score begins to ask the DNS lists about a client, while it goes on; nil: they are not asked
// about it.
func (p *Policy) Score(c session.Client) *access.Score {
	addr := c.IP()
	if p.lists == nil || c.Role != session.RoleMX || !addr.IsValid() || addr.IsUnspecified() || p.IsRelayNet(addr) {
		return nil
	}
	s := &access.Score{Lists: p.lists, Addr: addr}
	go s.Get(context.Background()) // it ends within DNSBL_TIMEOUT
	return s
}

// instances numbers the messages for policy services.
var instances atomic.Uint64

func newInstance() string {
	return strconv.FormatInt(int64(os.Getpid()), 16) + "." + strconv.FormatInt(time.Now().UnixNano(), 16) + "." + strconv.FormatUint(instances.Add(1), 16)
}

// isStranger reports whether the client in f is tested by DNS lists and the greylist, where no
// rule has accepted its mail: another host on the port for such.
func isStranger(f *access.Facts) bool {
	return !f.Trusted && f.Role == string(session.RoleMX) && f.Client.IsValid() && !f.Client.IsUnspecified()
}

// checkLists refuses a client that the DNS lists refuse. None: they do not.
func (p *Policy) checkLists(ctx context.Context, f *access.Facts) access.Verdict {
	if f.Score == nil || !p.DNSBL.Enforce || !isStranger(f) {
		return access.Verdict{}
	}
	r := f.Score.Get(ctx)
	worst := r.Worst()
	if r.Score < p.DNSBL.Threshold || worst == nil {
		return access.Verdict{}
	}
	text := fmt.Sprintf("Service unavailable; client [%s] blocked using %s", f.Client, worst.Site.Domain)
	if why := p.lists.Reason(ctx, dnsq.Reverse(f.Client, worst.Site.Domain)); why != "" {
		text += "; " + why
	}
	return access.Verdict{Action: access.Reject, Code: 550, Status: status.Code{Class: 5, Subject: 7, Detail: 1}, Text: text, By: "dnsbl"}
}

// checkGreylist defers mail that has not come before. None: it has, or is not tested.
func (p *Policy) checkGreylist(ctx context.Context, f *access.Facts, look bool) access.Verdict {
	if p.grey == nil || !isStranger(f) {
		return access.Verdict{}
	}
	if p.Greylist.ExemptDNSWL && f.Score != nil && f.Score.Get(ctx).Score < 0 {
		return access.Verdict{}
	}
	r := p.grey.Check(f.Client, f.From, f.To, true)
	if !r.Pass && p.Greylist.ExemptSPF && p.Greylist.SPF != nil && p.Greylist.SPF(ctx, f.Client, f.Helo, f.From) {
		return access.Verdict{}
	}
	if !look {
		r = p.grey.Check(f.Client, f.From, f.To, false)
	}
	if r.Pass {
		return access.Verdict{}
	}
	seconds := int((r.Wait + time.Second - 1) / time.Second)
	return access.Verdict{Action: access.Defer, Code: 450, Status: status.Code{Class: 4, Subject: 2},
		Text: fmt.Sprintf("<%s>: Recipient address rejected: Greylisted, try again in %d seconds", f.To, seconds), By: "greylist"}
}

// greylistRule decides for the action greylist of a rule.
func (p *Policy) greylistRule(ctx context.Context, f *access.Facts) (access.Verdict, error) {
	return p.checkGreylist(ctx, f, f.Trace != nil), nil
}

// Limits of what rules may do to one message.
const (
	maxEffects    = 100
	maxEffectText = 64 << 10
)

// apply takes what rules do to the message beside accepting it, and logs their warnings.
func (t *Transaction) apply(d *access.Decision) {
	for _, w := range d.Warnings {
		t.policy.Log.Info("access-warning", "from", t.From.String(), "rcpt", t.To.String(), "client", t.client.String(), "text", w.Text, "by", w.By)
	}
	for _, e := range d.Effects {
		switch {
		case e.Kind == access.Hold:
			t.Freeze(access.Verdict{Action: access.Freeze, Cause: "hold", Text: e.Text, By: e.By})
		case e.Kind == access.Discard:
			if t.Discarded == "" {
				t.Discarded = e.By
			}
		case len(t.Effects) >= maxEffects || t.effectText+len(e.Text) > maxEffectText:
			t.policy.Log.Warn("access-warning", "from", t.From.String(), "client", t.client.String(),
				"text", "too many changes of one message; this one is left out: "+e.String(), "by", e.By)
		default:
			t.Effects = append(t.Effects, e)
			t.effectText += len(e.Text)
		}
	}
}

// Data decides at DATA. None: the content may come.
func (t *Transaction) Data(ctx context.Context) access.Verdict {
	if t.decided() || !t.policy.rules.Asks(access.StateDATA) {
		return access.Verdict{}
	}
	if t.dataRcpts != t.Taken { // else it is the next chunk of a message that was refused
		t.data, t.dataRcpts = t.message(ctx, access.StateDATA, 0), t.Taken
	}
	return t.data
}

// ChangesAtEnd reports whether rules may change the message when its content was read.
func (t *Transaction) ChangesAtEnd() bool {
	return !t.decided() && t.policy.rules.Asks(access.StateEnd) || t.pending != "" && t.policy.rules.HasTests()
}

// message asks the rules of a protocol state.
func (t *Transaction) message(ctx context.Context, state string, size int64) access.Verdict {
	f := &t.Facts
	f.Size, f.Rcpts = size, t.Taken
	f.SetAnswers(nil)
	f.To = address.Mailbox{}
	if t.Taken == 1 {
		f.To = t.only
	}
	d, err := t.policy.rules.Message(ctx, f, state)
	if err != nil {
		return t.policy.lookupFailed(err, *t.client)
	}
	t.apply(&d)
	return d.Verdict
}

// ExplainLists returns what the DNS lists say about a recipient; v refuses only one that no
// rule has accepted.
func (p *Policy) ExplainLists(ctx context.Context, f *access.Facts, accepted bool) (steps []access.Step, v access.Verdict) {
	if f.Score != nil {
		r := f.Score.Get(ctx)
		text := fmt.Sprintf("sum %d of %d", r.Score, p.DNSBL.Threshold)
		for _, l := range r.Listings {
			text += fmt.Sprintf("; %s answers %s", l.Site, l.Addr)
		}
		for _, zone := range r.Failed {
			text += "; " + zone + " does not answer"
		}
		steps = append(steps, access.Step{Rule: "DNSBL_SITES", Result: text})
	}
	if !accepted {
		v = p.checkLists(ctx, f)
	}
	return steps, v
}

// ExplainGreylist returns what the greylist says about a recipient that the router knows, and
// changes nothing.
func (p *Policy) ExplainGreylist(ctx context.Context, f *access.Facts, accepted bool) (steps []access.Step, v access.Verdict) {
	if p.grey == nil || accepted || p.Greylist.RulesOnly || !isStranger(f) {
		return nil, access.Verdict{}
	}
	v = p.checkGreylist(ctx, f, true)
	text := "not deferred"
	if v.Action != access.None {
		text = "deferred if it came now"
	}
	return []access.Step{{Rule: "GREYLIST", Result: text}}, v
}

// ExplainMessage decides about a message as a whole, as Data and Content do.
func (p *Policy) ExplainMessage(ctx context.Context, f *access.Facts, state string) (access.Verdict, error) {
	d, err := p.rules.Message(ctx, f, state)
	return d.Verdict, err
}
