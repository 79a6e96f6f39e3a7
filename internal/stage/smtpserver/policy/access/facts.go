package access

import (
	"context"
	"net/netip"
	"sync"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/session"
)

// Facts are what the rules may ask about a client, its transaction and its message. Results
// of checks are known after the content: until Whole is set a rule that asks for one waits,
// unless it is filled in already.
type Facts struct {
	Client netip.Addr // invalid: a Unix socket
	Name   string     // the client's host name, verified forwards
	Role   string     // mx, submission, submissions, lmtp
	Helo   string
	TLS    bool
	Cert   string // SHA-256 of the client's certificate in lower-case hex; "": it showed none
	User   string // the authenticated user; "": none

	// Trusted clients may send to any domain: those in RELAYNETS and authenticated users.
	Trusted bool
	Network bool // in RELAYNETS

	From  address.Mailbox // null: <>
	To    address.Mailbox
	Local bool // To is in a domain of ours

	Whole bool  // the content was read; what follows is known
	Size  int64 // of the content, in bytes
	Rcpts int   // of the message
	// Results of RFC 8601 §2.7: pass, fail, softfail, neutral, none, policy, temperror,
	// permerror. "": not known yet or, with Whole, not checked, which is none.
	SPF, DKIM, DMARC string
	// Policy is what the author's domain asks for mail that fails DMARC: none, quarantine,
	// reject.
	Policy string

	// For policy services.
	Peer     *session.Client // nil: nothing but the above is known
	Protocol string          // ESMTP, SMTP or LMTP
	Instance string          // the same for all requests about one message

	Score *Score // of the client in DNSBL_SITES; nil: they are not asked

	// Trace is called for each rule that was looked at, in their order; nil: no one wants to
	// know.
	Trace func(Step)

	answers Answers
}

// Answers are what policy services answered about a recipient, by the line of the rule.
type Answers []answered

type answered struct {
	line int
	out  outcome
}

// Answers returns what services answered about the recipient in f.
func (f *Facts) Answers() Answers { return f.answers }

// SetAnswers has rules take these answers instead of asking again; nil: for another
// recipient.
func (f *Facts) SetAnswers(a Answers) { f.answers = a }

// Step is a rule with its result.
type Step struct {
	Line   int
	Rule   string
	Result string // no match, waits for the content, or what it decided
}

// Score is what DNSBL_SITES say about one client. They are asked once, for all who want to
// know.
type Score struct {
	Lists *dnslist.Lists
	Addr  netip.Addr

	once   sync.Once
	result *dnslist.Result
}

// Get returns the result. The first call waits for the lists.
func (s *Score) Get(ctx context.Context) *dnslist.Result {
	s.once.Do(func() { s.result = s.Lists.Client(ctx, s.Addr) })
	return s.result
}
