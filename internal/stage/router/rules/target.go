package rules

import (
	"errors"

	"zmailer/internal/mail/address"
	"zmailer/internal/table"
	"zmailer/internal/workspec"
)

// Channels that rules itself gives. Any other comes from the table routes.
const (
	Local     = "local"          // a local user's mailbox: host is login@domain, user the same with its tag
	File      = "file"           // host file.UID, user a path
	Pipe      = "pipe"           // host pipe.UID, user a bar and a command
	Bitbucket = "bitbucket"      // host -, user the dropped recipient
	Virtual   = workspec.Virtual // a virtual mailbox: host is a workspec.VirtualStore, user the address
	SMTP      = "smtp"           // the channel of a domain that has no route
	Error     = "error"          // host has the reason, see the Err constants
)

// Hosts of channel error.
const (
	ErrNoUser     = "nouser"     // 5.1.1: a local domain has no such user or alias
	ErrBadAddress = "badaddress" // 5.1.3: not an address
	ErrLoop       = "loop"       // 5.4.6: aliases lead back to themselves, or too deep
	ErrUnsafe     = "unsafe"     // 5.7.1: a program or file that must not be run or written
)

// ErrorHost returns the host of a recipient that cannot be delivered: one of the Err
// constants, a word, or a status code like 5.7.1, and what the report is to say; ""
// if the word is enough (docs/notes/error-channel.md).
func ErrorHost(word, text string) string {
	if text == "" {
		return word
	}
	return word + ":" + address.EncodeXText(text)
}

// Nobody is the privilege of what comes from no trustworthy file: an address from
// outside, a value of a table that its group or everybody may write (M48). A uid.
const Nobody = 65534

// Target is one place where a recipient's mail is to go.
type Target struct {
	Channel   string
	Host      string // holds no blanks
	User      string // the address in the recipient's line
	Privilege uint32 // a uid
	// Via is what was expanded on the way, the recipient itself first; nil if
	// nothing was. Targets share it: do not change it.
	Via []string
	// Owner is where reports of it go instead of to the message's sender: the owner
	// of the list that it is a member of; "": to the sender.
	Owner string
	VERP  bool // the sender that its agent gives is Owner with the recipient in it
	// Verify: its next hop is asked whether it takes the recipient before mail is accepted.
	Verify bool
}

// Query is a recipient whose targets are wanted.
type Query struct {
	Recipient address.Mailbox
	// Batch are the lookups of the message; nil: each is made by itself.
	Batch  *table.Batch
	Report bool       // the message is a report, for which other routes may hold
	Trace  func(Step) // called for each step; may be nil
}

// Step is one thing that was looked up on the way to a target.
type Step struct {
	Depth   int    `json:"depth"`
	Address string `json:"address,omitempty"` // what was looked up
	Table   string `json:"table"`             // aliases fqdnaliases localnames routes lists :include: .forward users postmaster address
	Where   string `json:"where,omitempty"`   // "/etc/zmailer/aliases:12", "db:/etc/zmailer/aliases.db:12"; "" if nothing fitted
	Key     string `json:"key,omitempty"`     // the key that fitted; ""
	Result  string `json:"result"`            // for operators
}

// Trouble is a lookup that could not be made.
type Trouble struct {
	// Why is one word, for the name in deferred/: users, include, lists, forward, or the
	// table whose source does not provide it: aliases, fqdnaliases, localnames, routes.
	Why string
	Err error
}

func (e *Trouble) Error() string { return e.Err.Error() }
func (e *Trouble) Unwrap() error { return e.Err }

// IsTrouble returns the *Trouble in an error.
func IsTrouble(err error) (*Trouble, bool) {
	t := (*Trouble)(nil)
	ok := errors.As(err, &t)
	return t, ok
}
