// Package policy decides which clients may send what to whom: by the rules in the file
// access, RELAYNETS and the local domains, SENDERLOGIN, and the router's knowledge of
// recipients. It decides without side effects; the caller replies, and logs refusals.
//
// It owns nothing on disk. Files are read again when they change; a version with an error is
// reported once and the one before stays in use.
//
// Diagnostics: Open's errors are *config.Error or of a table. A table that cannot be asked
// is a verdict of 451 4.3.0, logged once as access-trouble.
package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/table"
)

// Config defines where the rules are (docs/access.md).
type Config struct {
	Dir            string            // of zmailer.conf and the file access; "": there are no rules
	Directory      *config.Directory // the same, for all that look for files there; may be nil
	Hostname       string            // is a local domain without being listed
	RelayNets      []netip.Prefix    // whose clients may send anywhere
	LocalNames     []string          // sources of LOCALNAMES; none: LocalNamesFile
	LocalNamesFile string            // "": the built-in list
	Domains        []Domains         // virtual and relay domains
	SenderLogin    []string          // sources of SENDERLOGIN; none: users may send as any address
	HeaderFrom     string            // which From fields users may write; "": any
	RateLimits     []string          // sources of RATELIMITS; none: the same rates for all
	Subaddress     string            // characters of which one parts user and tag; "": there are no tags
	Source         table.Options     // what tables have in common
	ETRNNets       []netip.Prefix    // whose clients may start any queue
	RcptCheck      *RcptCheck        // nil: recipients are not verified
	// Probe is how next hops are asked for those recipients whose domain wants it (ADDRESSVERIFY);
	// nil: none is.
	Probe    *rcptcheck.ProbeOptions
	Keeper   config.Keeper // of text files; may be nil
	Resolver string        // host:port of the name server; "": those of /etc/resolv.conf
	DNSBL    DNSBL
	Greylist Greylist
	Log      *slog.Logger
}

// RcptCheck defines how recipients are verified.
type RcptCheck struct {
	rcptcheck.Options
	All       bool // also those of other domains
	Untrusted bool // only those of clients that are not trusted
	Defer     bool // while the router cannot be asked, recipients are deferred; else they are accepted
}

// Policy is the rules as they are now. It may be used by many goroutines.
type Policy struct {
	Config
	source  table.Options
	host    string // Hostname as ASCIIDomain gives it
	rules   *access.Rules
	names   sources
	classes []class
	senders sources
	rates   sources
	program *config.File[bool] // router.star: whether it is there; nil: the router is not asked
	rcpts   *rcptcheck.Checker
	prober  *rcptcheck.Prober // nil: next hops are not asked
	reputation

	tableTrouble, rcptTrouble logging.Trouble
}

// Open reads the rules and opens the tables. Its error joins all that cannot be used.
func Open(c Config) (*Policy, error) {
	p := &Policy{Config: c, source: c.Source}
	p.source.Dir, p.source.Log = c.Dir, c.Log
	if ascii, err := (address.Mailbox{Local: "x", Domain: c.Hostname}).ASCIIDomain(); err == nil {
		p.host = ascii
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	p.openReputation()
	o := access.Options{Dir: c.Dir, Directory: c.Directory, Source: c.Source, Keeper: c.Keeper, Log: c.Log,
		DNS: p.dns, IsLocal: p.IsLocal, Lists: p.lists != nil, ListTime: c.DNSBL.Timeout, Subaddress: c.Subaddress}
	if c.RcptCheck != nil {
		o.Address = p.deliverability
	}
	if p.Greylist.On {
		o.Greylist = p.greylistRule
	}
	if o.Dir != "" {
		o.Path = filepath.Join(o.Dir, "access")
	}
	var err, nerr, derr, serr, lerr, rerr error
	p.rules, err = access.Open(o)
	nerr = p.openNames()
	derr = p.openDomains()
	named := p.source
	named.Name = "senderlogin"
	p.senders, serr = openSources(c.SenderLogin, named, parseSenders, true)
	named.Name = "ratelimits"
	p.rates, lerr = openSources(c.RateLimits, named, parseRateFile, true)
	if c.RcptCheck != nil {
		check := c.RcptCheck.Options
		check.Log, check.Keeper = c.Log, c.Keeper
		p.rcpts, rerr = rcptcheck.New(check)
		if c.Probe != nil && c.Probe.Command != nil {
			p.prober = rcptcheck.NewProber(*c.Probe)
		}
		// The router reads the program itself; here it matters that there is one.
		present := func(_ string, text []byte) (bool, error) { return len(text) > 0, nil }
		if rerr == nil && c.Dir != "" {
			p.program, rerr = config.OpenFile(filepath.Join(c.Dir, "router.star"), present, config.FileOptions{Directory: c.Directory})
		}
	}
	if err = errors.Join(err, nerr, derr, serr, lerr, rerr); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the tables and ends the process that verifies recipients.
func (p *Policy) Close() {
	if p.rcpts != nil {
		p.rcpts.Close()
	}
	if p.prober != nil {
		p.prober.Close()
	}
	var all sources
	for _, c := range p.classes {
		all = append(all, c.sources...)
	}
	var err error
	if p.rules != nil {
		err = p.rules.Close()
	}
	if err = errors.Join(err, all.close(), p.names.close(), p.senders.close(), p.rates.close()); err != nil && p.Log != nil {
		p.Log.Warn("access-trouble", "reason", err)
	}
}

// Unchecked returns warnings of rules with results of checks that are not made.
func Unchecked(p *Policy, made map[string]bool) error { return p.rules.Unchecked(made) }

// IsRelayNet reports whether a client's address is in RELAYNETS.
func (p *Policy) IsRelayNet(client netip.Addr) bool { return session.Contains(p.RelayNets, client) }

// Facts collects what the rules may ask about a client and a sender.
func (p *Policy) Facts(c session.Client, from address.Mailbox) access.Facts {
	f := access.Facts{
		Client: c.IP(), Name: c.Name, Role: string(c.Role), Helo: c.Helo,
		TLS: c.TLS != nil, User: c.User, Network: p.IsRelayNet(c.Addr.Addr()), From: from,
	}
	f.Trusted = f.Network || c.User != "" || c.Role == session.RoleReinject
	if c.TLS != nil && len(c.TLS.PeerCertificates) > 0 {
		sum := sha256.Sum256(c.TLS.PeerCertificates[0].Raw)
		f.Cert = hex.EncodeToString(sum[:])
	}
	return f
}

// lookupTrouble returns the verdict while a table that a rule needs cannot be asked.
func lookupTrouble(by string) access.Verdict {
	return access.Verdict{Action: access.Defer, Code: 451, Status: status.SystemTrouble, Text: "Temporary lookup failure", By: by}
}

// lookupFailed logs the trouble and returns its verdict.
func (p *Policy) lookupFailed(err error, client session.Client) access.Verdict {
	p.tableTrouble.Begin(p.Log, "access-trouble", "reason", err, "client", client.String())
	return lookupTrouble("access")
}

// LookupFailed logs that a table cannot be asked now and returns the verdict meanwhile.
func (p *Policy) LookupFailed(err error, client session.Client) access.Verdict {
	return p.lookupFailed(err, client)
}

// CheckSender decides whether the client may use its sender address; None: it may.
func (p *Policy) CheckSender(ctx context.Context, f *access.Facts, client session.Client) access.Verdict {
	if f.User == "" || len(p.senders) == 0 || f.From.IsNull() {
		return access.Verdict{}
	}
	ok, err := p.maySend(ctx, f.User, f.From)
	switch {
	case err != nil:
		return p.lookupFailed(err, client)
	case ok:
		p.tableTrouble.End(p.Log, "access-recovered")
		return access.Verdict{}
	}
	return access.Verdict{Action: access.Reject, Code: 553, Status: status.Code{Class: 5, Subject: 7, Detail: 1},
		Text: fmt.Sprintf("<%s>: Sender address rejected: not owned by user %s", f.From, f.User), By: "senderlogin"}
}

// MayETRN reports whether the client may start the queue of the host in f.To: it is in
// ETRNNETS, or a rule says so.
func (p *Policy) MayETRN(ctx context.Context, f *access.Facts, client session.Client) (bool, error) {
	if session.Contains(p.ETRNNets, f.Client) {
		return true, nil
	}
	ok, err := p.rules.MayETRN(ctx, f)
	if err != nil {
		p.lookupFailed(err, client)
	}
	return ok, err
}

// OffersETRN reports whether the client may start some queue.
func (p *Policy) OffersETRN(ctx context.Context, f *access.Facts) bool {
	return session.Contains(p.ETRNNets, f.Client) || p.rules.SomeETRN(ctx, f)
}

// Transaction is the decisions about one message, from its MAIL to its content.
type Transaction struct {
	// Facts of the client and the message. Checks of the content put their results here
	// before Content is called.
	access.Facts
	// Frozen is the verdict that has the message held in freezer/: of a rule, a check or a
	// filter. The first one counts.
	Frozen access.Verdict
	Taken  int // recipients
	// Discarded names the rule that has the message accepted and thrown away; "": none.
	Discarded string
	Effects   []access.Effect // what else rules do to the message

	policy     *Policy
	client     *session.Client // for the log
	only       address.Mailbox // the first recipient
	effectText int             // bytes of Effects
	data       access.Verdict  // at DATA, with so many recipients
	dataRcpts  int
	// waiting are the recipients whose rules wait for the content; pending names those rules.
	waiting []waiting
	pending string
}

type waiting struct {
	to    address.Mailbox
	local bool
	// answers are of policy services, which are asked once.
	answers access.Answers
}

// Begin begins a transaction; client is for the log.
func (p *Policy) Begin(f access.Facts, client *session.Client) Transaction {
	return Transaction{Facts: f, policy: p, client: client}
}

// decided reports whether the message was accepted before, by all rules, and comes back from the
// content filter.
func (t *Transaction) decided() bool { return t.client.Role == session.RoleReinject }

// Recipient decides about one recipient. None: it is accepted, so far, and Take has to be
// called with the decision if nothing else refuses it.
func (t *Transaction) Recipient(ctx context.Context, to address.Mailbox) (access.Decision, access.Verdict) {
	p, f := t.policy, &t.Facts
	f.To, f.Local, f.Rcpts = to, false, t.Taken+1
	if t.decided() {
		return access.Decision{}, access.Verdict{}
	}
	f.SetAnswers(nil)
	if f.Instance == "" && !p.rules.Empty() {
		f.Instance = newInstance()
	}
	var err error
	if !f.Trusted || !p.rules.Empty() || p.rcpts != nil && !p.RcptCheck.Untrusted {
		f.Local, err = p.IsLocal(ctx, to)
	}
	d := access.Decision{}
	if err == nil {
		d, err = p.rules.Decide(ctx, f)
	}
	if err != nil {
		return d, p.lookupFailed(err, *t.client)
	}
	p.tableTrouble.End(p.Log, "access-recovered")
	if len(d.Effects)+len(d.Warnings) > 0 {
		t.apply(&d)
	}
	switch {
	case d.Action == access.Reject || d.Action == access.Defer:
		return d, d.Verdict
	case t.Taken > 0 && d.Pending != t.pending:
		// There is one reply to the content, and rules that apply to one of the two alone may
		// give either. RFC 5321 section 4.5.3.1.10: the client sends it in another transaction.
		return d, access.Verdict{Action: access.Defer, Code: 452, Status: status.Code{Class: 4, Subject: 5, Detail: 3},
			Text: "Error: different rules apply to this recipient, use another transaction", By: d.By}
	}
	if d.By == access.ByDefault {
		if v := p.checkLists(ctx, f); v.Action != access.None {
			return d, v
		}
	}
	// The greylist is last: it remembers no recipients that do not exist.
	v := p.verify(ctx, f)
	if v.Action == access.None && d.By == access.ByDefault && !p.Greylist.RulesOnly {
		v = p.checkGreylist(ctx, f, false)
	}
	return d, v
}

// Take adds a recipient that was accepted.
func (t *Transaction) Take(d access.Decision) {
	if d.Action == access.Freeze {
		t.Freeze(d.Verdict)
	}
	t.Taken++
	if t.Taken == 1 && (t.policy.rules.Asks(access.StateDATA) || t.policy.rules.Asks(access.StateEnd)) {
		t.only = address.Mailbox{Local: strings.Clone(t.To.Local), Domain: strings.Clone(t.To.Domain)}
	}
	if t.pending = d.Pending; d.Pending != "" {
		// The address is part of the whole command line, which is not kept.
		to := address.Mailbox{Local: strings.Clone(t.To.Local), Domain: strings.Clone(t.To.Domain)}
		t.waiting = append(t.waiting, waiting{to, t.Local, t.Facts.Answers()})
	}
}

// Freeze has the message held in freezer/ when it is stored.
func (t *Transaction) Freeze(v access.Verdict) {
	if t.Frozen.Action == access.None {
		t.Frozen = v
	}
}

// Content decides about the message when all of it was read and checked. Its error is an
// *access.RefusedError.
func (t *Transaction) Content(ctx context.Context, size int64) error {
	if t.decided() {
		return nil
	}
	f := &t.Facts
	f.Whole, f.Size, f.Rcpts = true, size, t.Taken
	for _, w := range t.waiting {
		f.To, f.Local = w.to, w.local
		f.SetAnswers(w.answers)
		d, err := t.policy.rules.Decide(ctx, f)
		if err != nil {
			return &access.RefusedError{Verdict: t.policy.lookupFailed(err, *t.client)}
		}
		d.OnlyOf(t.pending) // the other rules have had their effect
		t.apply(&d)
		switch {
		case d.Action == access.Reject || d.Action == access.Defer:
			return &access.RefusedError{Verdict: d.Verdict}
		case d.Action == access.Freeze:
			t.Freeze(d.Verdict)
		}
	}
	if t.policy.rules.Asks(access.StateEnd) {
		if v := t.message(ctx, access.StateEnd, size); v.Action == access.Reject || v.Action == access.Defer {
			return &access.RefusedError{Verdict: v}
		}
	}
	return nil
}

// Explanation is a decision with what led to it, for operators.
type Explanation struct {
	access.Decision
	Asked     bool // the router was
	Router    rcptcheck.Answer
	RouterErr error
}

// Explain decides about the recipient in f as Recipient does, and always asks the router if
// recipients are verified at all. With an error the verdict is that of lookup trouble.
func (p *Policy) Explain(ctx context.Context, f *access.Facts) (x Explanation, err error) {
	if x.Decision, err = p.rules.Decide(ctx, f); err != nil {
		x.Verdict = lookupTrouble("access")
		return x, err
	}
	if x.Action == access.Reject || x.Action == access.Defer || p.rcpts == nil {
		return x, nil
	}
	x.Asked = true
	x.Router, x.RouterErr = p.rcpts.Check(ctx, f.From, f.To)
	return x, nil
}

// AsksProgram reports whether the router is asked about the content of messages: there is a
// router.star, and the router is asked at all (RCPTCHECK).
func (p *Policy) AsksProgram() bool { return p.rcpts != nil && p.program != nil && p.program.Current() }

// CheckContent asks the router what router.star decides about a message; None: it is not
// rejected. head is its envelope and header.
func (p *Policy) CheckContent(ctx context.Context, head []byte, size int64) access.Verdict {
	a, err := p.rcpts.Content(ctx, head, size)
	if err != nil {
		return p.rcptFailed(err)
	}
	p.rcptTrouble.End(p.Log, "rcpt-check-recovered")
	if a.Known {
		return access.Verdict{}
	}
	return access.Verdict{Action: access.Reject, Code: 550, Status: a.Code, Text: a.Text, By: "router.star"}
}
