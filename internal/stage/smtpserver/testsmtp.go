package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// Trial is mail whose way through the policy is to be shown.
type Trial struct {
	Client   netip.Addr // invalid: a Unix socket
	Helo     string
	Role     session.Role
	User     string // "": not authenticated
	TLS      bool
	From, To address.Mailbox
	Message  []byte // with LF line ends; nil: the reply to RCPT is the last that is shown
	// Rates asks a running smtpserver how much of the rates is used; nil: none is asked.
	Rates func(context.Context, RatesQuestion) ([]limits.Usage, error)
}

// TrialStep is one test with its result.
type TrialStep struct {
	Stage  string `json:"stage"` // mail, rcpt, data, content
	Test   string `json:"test"`  // a rule with its line, or a setting
	Result string `json:"result"`
}

// TrialReport is what would become of the mail.
type TrialReport struct {
	Client  string      `json:"client"`
	To      string      `json:"to"`
	Steps   []TrialStep `json:"steps"`
	Verdict string      `json:"verdict"` // accept, freeze, discard, or the reply
	By      string      `json:"by"`
	Refused bool        `json:"refused"`
}

// trial is a Trial under way.
type trial struct {
	Trial
	c      Config
	p      *policy.Policy
	f      access.Facts
	stage  string
	report TrialReport
}

// Try shows the way of mail through all that decides about it before the 250, except milters.
// Nothing is stored or sent; tables, the router, the DNS and policy services are asked.
func Try(ctx context.Context, c Config, t Trial) (TrialReport, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	l, err := c.load()
	if err != nil {
		return TrialReport{}, err
	}
	defer l.close()
	r := &trial{Trial: t, c: c, p: l.rules}
	if g := &c.Access.Greylist; g.On {
		// Read only: the server has its files.
		if disk, err := durable.NewOS(c.PostOffice); err == nil {
			defer disk.Close()
			g.FS = disk
		}
		g.Config.Log = c.Log
		l.rules.SetGreylist(greylist.Open(g.Config))
		if g.ExemptSPF {
			l.rules.Greylist.SPF = spfPasses(checks.Config{SPF: true, Host: c.Hostname, Server: c.Resolver, Timeout: c.Filters.Checks.Timeout})
		}
	}
	if err := r.run(ctx, l.content); err != nil {
		return TrialReport{}, err
	}
	return r.report, nil
}

func (r *trial) step(test, result string) {
	r.report.Steps = append(r.report.Steps, TrialStep{r.stage, test, result})
}

// decide ends the trial with a verdict.
func (r *trial) decide(v access.Verdict) {
	r.report.By = v.By
	r.report.Verdict = describe(v)
	r.report.Refused = v.Action == access.Reject || v.Action == access.Defer
}

func (r *trial) run(ctx context.Context, rules *contentrules.Set) error {
	client := session.Client{Role: r.Role, Helo: r.Helo, User: r.User}
	if r.Client.IsValid() {
		client.Addr = netip.AddrPortFrom(r.Client, 0)
	}
	r.f = r.p.Facts(client, r.From)
	r.f.TLS, r.f.Protocol, r.f.Peer, r.f.Score = r.TLS, "ESMTP", &client, r.p.Score(client)
	r.f.To = r.To
	class, err := r.p.ClassOf(ctx, r.To)
	if err != nil {
		return err
	}
	r.f.Local = class != ""
	r.report.Client, r.report.To = r.Client.String(), "<"+r.To.String()+">, "+policy.ClassName(class)
	if !r.Client.IsValid() {
		r.report.Client = "a Unix socket"
	}
	switch {
	case r.User != "":
		r.report.Client += ", authenticated as " + r.User
	case r.f.Network:
		r.report.Client += ", in RELAYNETS"
	default:
		r.report.Client += ", not in RELAYNETS"
	}
	r.stage = "mail"
	if done, err := r.rates(ctx, client); done || err != nil {
		return err
	}
	if r.User != "" && len(r.c.Access.SenderLogin) > 0 {
		v := r.p.CheckSender(ctx, &r.f, client)
		r.step("SENDERLOGIN", resultOf(v))
		if v.Action != access.None {
			r.decide(v)
			return nil
		}
	}
	d, done := r.rcpt(ctx)
	if done || r.Message == nil {
		return nil
	}
	r.stage = "data"
	if r.message(ctx, access.StateDATA) {
		return nil
	}
	return r.content(ctx, rules, d)
}

// rates shows what is left of the rates that hold; true: nothing is left of one.
func (r *trial) rates(ctx context.Context, client session.Client) (done bool, err error) {
	if !r.c.counts() {
		return false, nil
	}
	var used []limits.Usage
	err, note := ErrNoRates, ""
	if r.Rates != nil {
		used, err = r.Rates(ctx, RatesQuestion{Client: r.Client, User: r.User, From: r.From.String()})
	}
	if err != nil {
		note = "; nothing is counted now: " + err.Error()
		w := limits.Who{Addr: client.Addr.Addr(), User: r.User, Sender: policy.SenderKey(r.From)}
		if r.p.HasRates() {
			if w.UserRates, w.SenderRates, err = r.p.Rates(ctx, r.User, r.From); err != nil {
				r.step("RATELIMITS", err.Error())
				r.decide(r.p.LookupFailed(err, client))
				return true, nil
			}
		}
		used = limits.New(r.c.Limits.Config).Of(&w)
	}
	for i := range used {
		u := &used[i]
		r.step("rate "+u.Limit, fmt.Sprintf("%s: %d of %d in %s are left%s", u.Who, u.Left(), u.Count, human.Span(u.Per), note))
		if u.Left() < 1 && !done {
			done = true
			r.decide(access.Verdict{Action: access.Defer, Code: 450, Status: status.Code{Class: 4, Subject: 7, Detail: 1}, Text: "Error: rate limit exceeded", By: "rate " + u.Limit})
		}
	}
	return done, nil
}

// resultOf returns a verdict as a step's result.
func resultOf(v access.Verdict) string {
	if v.Action == access.None {
		return "ok"
	}
	return describe(v)
}

// rcpt decides as for RCPT; true: that is the end.
func (r *trial) rcpt(ctx context.Context) (d access.Decision, done bool) {
	r.stage = "rcpt"
	r.f.Trace = func(s access.Step) { r.step(fmt.Sprintf("access:%d: %s", s.Line, s.Rule), s.Result) }
	x, err := r.p.Explain(ctx, &r.f)
	if err != nil {
		r.step("access", err.Error())
		r.decide(x.Verdict)
		return d, true
	}
	d = x.Decision
	if d.By == access.ByDefault {
		r.step("default", describe(d.Verdict))
	}
	r.decide(d.Verdict)
	if r.report.Refused {
		return d, true
	}
	for _, e := range d.Effects {
		r.report.Verdict += ", " + e.String()
	}
	steps, v := r.p.ExplainLists(ctx, &r.f, d.By != access.ByDefault)
	for _, s := range steps {
		r.step(s.Rule, s.Result)
	}
	if v.Action != access.None {
		r.decide(v)
		return d, true
	}
	if x.Asked {
		switch {
		case x.RouterErr != nil:
			r.step("RCPTCHECK", "the router cannot be asked: "+x.RouterErr.Error())
		case x.Router.Known:
			r.step("RCPTCHECK", "known to the router")
		default:
			unknown := access.Verdict{Action: access.Reject, Code: 550, Status: x.Router.Code, By: "rcpt-check",
				Text: fmt.Sprintf("<%s>: Recipient address rejected: %s", r.To, x.Router.Text)}
			if unknown.Status.Class == 4 {
				unknown.Action, unknown.Code = access.Defer, 450
			}
			r.step("RCPTCHECK", describe(unknown))
			r.decide(unknown)
			return d, true
		}
	}
	steps, v = r.p.ExplainGreylist(ctx, &r.f, d.By != access.ByDefault)
	for _, s := range steps {
		r.step(s.Rule, s.Result)
	}
	if v.Action != access.None {
		r.decide(v)
		return d, true
	}
	if d.Pending != "" {
		waits := strings.Split(d.Pending, ",")
		r.report.Verdict += " so far; lines of access that wait for the content: " + strings.Join(waits[:len(waits)-1], ", ")
	}
	return d, false
}

// message asks the rules about the message as a whole; true: they refuse it.
func (r *trial) message(ctx context.Context, state string) bool {
	v, err := r.p.ExplainMessage(ctx, &r.f, state)
	if err != nil {
		r.step("access", err.Error())
		return true
	}
	if v.Action == access.Reject || v.Action == access.Defer {
		r.decide(v)
		return true
	}
	return false
}

// content decides as for the content.
func (r *trial) content(ctx context.Context, rules *contentrules.Set, d access.Decision) error {
	r.stage = "content"
	r.f.Whole, r.f.Size, r.f.Rcpts = true, int64(len(r.Message)+strings.Count(string(r.Message), "\n")), 1
	if most := r.c.Limits.MaxSize; most > 0 && r.f.Size > most {
		v := access.Verdict{Action: access.Reject, Code: 552, Text: "Message size exceeds fixed limit", By: "MAXSIZE"}
		r.step("MAXSIZE", describe(v))
		r.decide(v)
		return nil
	}
	o, head := r.contentRules(rules)
	if o.Action == contentrules.Reject {
		v := access.Verdict{Action: access.Reject, Status: o.Final.Code, Text: o.Final.Text, By: o.Final.Rule}
		if o.Final.Code.Class == 4 {
			v.Action = access.Defer
		}
		r.step(o.Final.Rule, describe(v))
		r.decide(v)
		return nil
	}
	if r.User != "" && r.p.ChecksFrom() {
		v := r.p.CheckFrom(ctx, &r.f, envelope.Fields(head), *r.f.Peer)
		r.step("HEADERFROM", resultOf(v))
		if v.Action != access.None {
			r.decide(v)
			return nil
		}
	}
	if o.Action == contentrules.Discard {
		r.step(o.Final.Rule, "discard")
		r.report.By, r.report.Verdict = o.Final.Rule, "discard"
		return nil
	}
	if err := r.checks(ctx); err != nil {
		return err
	}
	if d.Pending != "" {
		again, err := r.p.Explain(ctx, &r.f)
		if err != nil {
			r.step("access", err.Error())
			r.decide(again.Verdict)
			return nil
		}
		if r.decide(again.Verdict); r.report.Refused {
			return nil
		}
	}
	r.message(ctx, access.StateEnd)
	for _, m := range r.c.Filters.Milters {
		r.step("milter "+m.Name(), "not asked in a test")
	}
	return nil
}

// contentRules looks at header and body, and returns the header as well.
func (r *trial) contentRules(rules *contentrules.Set) (o *contentrules.Outcome, head []byte) {
	from := contentrules.External
	if r.User != "" || r.f.Network {
		from = contentrules.Submitted
	}
	current := rules.Current()
	s := current.Scan(from, r.c.BodyRulesSize)
	_, _ = s.Write(r.Message) // it never fails
	o = s.End()
	for _, n := range o.Notes {
		r.step(n.Rule, "warning: "+n.Text)
	}
	if o.Hold != nil {
		r.step(o.Hold.Rule, "hold "+o.Hold.Text)
		r.report.Verdict = "freeze"
	}
	if o.Redirect != nil {
		r.step(o.Redirect.Rule, "redirect to "+o.Redirect.Text)
	}
	if o.Filter != nil {
		r.step(o.Filter.Rule, "filter "+o.Filter.Text)
	}
	if o.Edits > 0 {
		r.step(strings.Join(o.EditedBy, ", "), fmt.Sprintf("change %d lines or fields below the header", o.Edits))
	}
	return o, s.Header()
}

var errLarge = errors.New("a test message is at most 256 KB")

// checks makes the checks of SPF, DKIM and DMARC, as CHECKS has them.
func (r *trial) checks(ctx context.Context) error {
	cfg := r.c.Filters.Checks
	cfg.Host = r.c.Hostname
	k := checks.New(cfg)
	if k == nil || r.f.Trusted || r.Role != session.RoleMX {
		return nil
	}
	s := content.NewSpool(func() (content.File, error) { return nil, errLarge })
	defer s.Close()
	if _, err := s.Write(r.Message); err != nil {
		return err
	}
	m, err := content.NewMessage(s)
	if err != nil {
		return err
	}
	defer m.Release(func(s *content.Spool) { _ = s.Close() }) // it has no file
	ctx, cancel := k.Limit(ctx)
	defer cancel()
	fields, whole := m.Original()
	dkim, err := k.DKIM(ctx, fields, whole)
	if err != nil {
		return err
	}
	x := &checks.Results{SPF: k.SPF(ctx, r.f.Client, r.f.Helo, r.f.From), DKIM: dkim}
	x.DMARC = k.DMARC(ctx, m.Fields(), x)
	r.f.SPF, r.f.DKIM, r.f.DMARC, r.f.Policy = string(x.SPF.Value), string(x.DKIMValue()), string(x.DMARC.Value), x.DMARC.Policy
	r.step("CHECKS", strings.TrimSpace(fmt.Sprintf("spf=%s dkim=%s dmarc=%s %s", r.f.SPF, r.f.DKIM, r.f.DMARC, r.f.Policy)))
	return nil
}

// ReadTrialMessage reads a message for a Trial; lines may end in CRLF.
func ReadTrialMessage(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return []byte(strings.ReplaceAll(string(b), "\r\n", "\n")), nil
}
