// Package builtin is the channels that the scheduler serves itself, without a transport
// agent: error, bitbucket and hold. It owns the meanings of their hosts; the store acts on
// the recipients.
//
// What survives a crash: nothing; it reads values, and for a condition of channel hold
// it opens a file or sends a DNS query.
//
// Diagnostics: ParseCondition's error is why mail on channel hold could never leave it;
// the error of a Condition's Ask is why the condition does not hold yet.
package builtin

// The channels, and the hosts of bitbucket that mean something.
const (
	Error     = "error"     // undeliverable from the start; ErrorHost is why
	Bitbucket = "bitbucket" // dropped
	Expanded  = "expanded"  // host of bitbucket: the members of the address are recipients too
	List      = "list"      // host of bitbucket: a mailing list has taken the message
	Hold      = "hold"      // waits for its host, a Condition, unless a clause "hold/..." has an agent
)
