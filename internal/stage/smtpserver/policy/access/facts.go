package access

import (
	"net/netip"

	"zmailer/internal/mail/address"
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
}
