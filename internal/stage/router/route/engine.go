// Package route decides where the recipients of one message go: it reads envelope and header,
// checks the sender, rewrites the header as the configuration asks, asks router.star and the
// tables (packages policy and rules) about each recipient, and writes the work specification
// beside the claim (Engine.Route). Engine.Explain and Verifier take the same steps and write
// nothing.
//
//	en, err := route.New(po, config)
//	result := en.Route(ctx, table.NoWaiter{}, claim, false) // then claim.HandOver()
//	explanation := explainer.Explain(ctx, route.Question{From: &from, To: []string{to}})
//
// testdata shows, message by message, what the specification becomes.
//
// It owns no file: the claim and its work file are its caller's, which hands both over or
// removes them. The tables, header-rules and router.star are read again when they change.
//
// Diagnostics: New returns a *config.Error for settings or tables that cannot be used. For a
// Result's Err, Defers reports whether the message has to wait for a lookup, IsFrozen whether an
// operator has to decide; any other error is the disk's, and the message is routed again.
package route

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// Config is the settings of routing.
type Config struct {
	Hostname string // for Received, Message-ID and addresses without a domain
	Rules    rules.Config
	// Masquerade are the sources of MASQUERADE; none: the file masquerade, if it exists.
	Masquerade                []string
	LookupTimeout, LookupKeep time.Duration
	LookupParallel            int // lookups of one source at the same time; 0: table's default
	// Trusted are the uids whose files' privileged envelope lines are believed,
	// beside root's and our own.
	Trusted []uint32
	// OwnSenders: other users may only use their own address as the sender
	// (SENDERCHECK=owner).
	OwnSenders bool
	// PostmanCopy: a message whose header is broken, or that loops, also leaves a copy in
	// postman/.
	PostmanCopy bool
	// BodyRulesSize is how much of each part's body the rules in body-rules look at; 0: the
	// default.
	BodyRulesSize int
	SRS           SRSConfig
	// ContentFilter is where mail goes before anything else is decided about its recipients; nil:
	// there is no content filter.
	ContentFilter *text.Route
	// FilterNets are the networks that its filter gives mail back from.
	FilterNets []netip.Prefix
	// HideClient: Received lines of authenticated users' mail do not name the client.
	HideClient bool
	// PolicySteps and PolicyTime bound each call of router.star; 0: policy's defaults.
	PolicySteps int
	PolicyTime  time.Duration
	Keeper      config.Keeper // of the files beside zmailer.conf; may be nil
	Log         *slog.Logger  // nil: discarded
	Now         func() time.Time
	Service     *sdnotify.Service // nil: none
	Metrics     *metrics.Set      // nil: none
}

// Engine routes messages. It may be used by many goroutines.
type Engine struct {
	c       Config
	po      *postoffice.PostOffice // nil: none
	rules   *rules.Rules
	logins  *logins
	self    uint32        // the uid that routers run as
	permits table.Permits // of lookups that are made ahead
	idle    sync.Pool     // of *worker

	masquerade   *masquerade
	contentRules *contentrules.Set // about header and body
	srs          *rewriter
	policy       *policy.Policy
	dryRun       bool // nothing is counted or logged
	recipients   *metrics.Counters

	large sync.Mutex // held by the worker that writes very many recipients as they are found
}

// New reads the tables. po is nil for an engine that only explains.
func New(po *postoffice.PostOffice, c Config) (*Engine, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Rules.Hostname, c.Rules.Now, c.Rules.Log = c.Hostname, c.Now, c.Log
	senders, serr := openSRS(c)
	c.Rules.Reverse = senders.reverser()
	tables, err := rules.New(c.Rules)
	en := &Engine{c: c, po: po, srs: senders, permits: permitsOf(c.Rules.Source), rules: tables, logins: newLogins(c.Now), self: uint32(os.Geteuid()),
		recipients: c.Metrics.Counter("zmailer_router_recipients_total",
			"Recipients that were decided about, by channel; again for a message that is routed again.", "channel")}
	var merr, cerr, perr error
	en.masquerade, merr = newMasquerade(c)
	en.contentRules, cerr = contentrules.Open(c.Rules.Dir, contentrules.Options{Directory: config.NewDirectory(c.Rules.Dir), Keeper: c.Keeper, Now: c.Now, Log: c.Log})
	en.policy, perr = policy.New(policyConfig(c))
	if err = errors.Join(err, serr, merr, cerr, perr); err != nil {
		return nil, errors.Join(err, en.Close())
	}
	en.idle.New = func() any { return &worker{en: en} }
	return en, nil
}

// permitsOf returns a part of the lookups that one source is asked for at the same time: the
// others are for messages whose turn it is.
func permitsOf(o table.Options) table.Permits {
	return table.NewPermits(cmp.Or(max(o.Parallel, 0), table.DefaultParallel) * 3 / 4)
}

// Close ends the connections and children of the tables.
func (en *Engine) Close() error {
	var err error
	if en.rules != nil {
		err = en.rules.Close()
	}
	return errors.Join(err, en.masquerade.close(), en.policy.Close())
}

// isDaemon reports whether a uid is one that daemons run as: their files name the user who
// submitted the message.
func (en *Engine) isDaemon(uid uint32) bool {
	return uid == 0 || uid == en.self || en.po != nil && uid == en.po.Owner()
}

// trusts reports whether the privileged lines of a uid's message files are believed.
func (en *Engine) trusts(uid uint32) bool {
	return uid == 0 || uid == en.self || slices.Contains(en.c.Trusted, uid)
}

// isThawed reports whether an operator has thawed a message: a policy does not freeze it
// again. A file of reasons that cannot be read counts as none, so that an operator decides.
func (en *Engine) isThawed(id postoffice.SpoolID) bool {
	if en.po == nil {
		return false
	}
	list, _ := en.po.Aside.Reasons(id)
	return slices.ContainsFunc(list, func(p postoffice.Reason) bool { return p.What == postoffice.WasThawed })
}

// NoteReason writes down beside a message why it is put aside, before it is. Without room
// for that it is put aside all the same: the log has the reason, too.
func (en *Engine) NoteReason(dir string, id postoffice.SpoolID, what, why string) {
	err := en.po.Aside.Explain(dir, postoffice.Reason{ID: id, Time: en.c.Now(), Who: "router", What: what, Text: why})
	if err != nil {
		en.c.Log.Warn("no-reason", "id", id.String(), "name", dir, "reason", err)
	}
}

// CheckStart reads what New reads.
func CheckStart(c Config) error {
	en, err := New(nil, c)
	if err == nil {
		err = en.Close()
	}
	return err
}

// VerifiedDomains returns the domains of the text tables whose recipients are to be verified, with
// their next hops. Without ADDRESSVERIFY no table is read.
func VerifiedDomains(ctx context.Context, c Config) ([]rules.VerifiedDomain, error) {
	if !c.Rules.Classes.Verify {
		return nil, nil
	}
	en, err := New(nil, c)
	if err != nil {
		return nil, err
	}
	list := en.rules.Tables().VerifiedDomains(ctx)
	return list, en.Close()
}

// CheckTables reads what New reads, and all lists, asks each source once, and tries
// router.star. It returns all errors, as *config.Error.
func CheckTables(c Config) error {
	en, err := New(nil, c)
	if err == nil {
		err = errors.Join(en.rules.Check(context.Background()), en.srs.check(func(m address.Mailbox) (bool, error) { return en.rules.Tables().IsLocal(context.Background(), m) }))
		err = errors.Join(err, en.Close())
	}
	_, perr := policy.Check(policyConfig(c))
	return errors.Join(err, perr)
}
