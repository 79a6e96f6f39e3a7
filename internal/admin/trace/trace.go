// Package trace puts the life of one message together: steps that the log, the history in
// its work specification and the ledger have, each once, in the order of time; what
// became of each recipient, and where the time went. It is pure: its caller reads
// the places.
//
// What survives a crash: it keeps nothing.
//
// Diagnostics: none. Parts of a line that cannot be parsed are kept as they are; what no
// source has is left out, and counted where its number is known.
package trace

import (
	"cmp"
	"time"
)

// Sources of a step.
const (
	Log     = "log"
	History = "history"
	Ledger  = "ledger"
)

// Step is one thing that happened to a message.
type Step struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"` // the log's word
	Told    []string  `json:"told"`  // by which sources
	Program string    `json:"program,omitempty"`
	// Recipients are those it was about; none: the message.
	Recipients []string  `json:"recipients,omitempty"`
	Channel    string    `json:"channel,omitempty"`
	Host       string    `json:"host,omitempty"`
	Status     string    `json:"status,omitempty"`
	Reply      string    `json:"reply,omitempty"`
	Attempt    int       `json:"attempt,omitempty"`
	Next       time.Time `json:"next,omitzero"`
	Who        string    `json:"who,omitempty"`
	Until      time.Time `json:"until,omitzero"`
	// Other is the spool ID of another message: a report, a copy.
	Other string `json:"other,omitempty"`
	Kind  string `json:"kind,omitempty"` // of a report
	Text  string `json:"text"`
	// Of a delivery: the server as name[address]:port, what protected the connection, and the
	// recipient before aliases.
	Relay    string `json:"relay,omitempty"`
	TLS      string `json:"tls,omitempty"`
	Cipher   string `json:"cipher,omitempty"`
	Verified string `json:"verified,omitempty"`
	Original string `json:"orig_rcpt,omitempty"`
	// Fresh: attempts before it do not count any more.
	Fresh bool `json:"fresh,omitempty"`

	Routing  time.Duration `json:"-"`
	Queue    time.Duration `json:"-"`
	Delivery time.Duration `json:"-"`
	// Took is how long a program was at it: of routed.
	Took  time.Duration `json:"-"`
	timed bool          // one of the first three is known
	from  string        // envelope sender, of accepted and routed
	in    In
	count int // recipients, of accepted and routed
	size  string
}

// Recipient is what became of one.
type Recipient struct {
	Address  string `json:"address"`
	Channel  string `json:"channel,omitempty"`
	Host     string `json:"host,omitempty"`
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
	Status   string `json:"status,omitempty"`
	Last     string `json:"last,omitempty"` // last answer
	// Of the last attempt, see Step.
	Relay    string    `json:"relay,omitempty"`
	TLS      string    `json:"tls,omitempty"`
	Cipher   string    `json:"cipher,omitempty"`
	Verified string    `json:"verified,omitempty"`
	Original string    `json:"orig_rcpt,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`

	// How its time was spent, as far as it is known, over all attempts.
	Routing  time.Duration `json:"routing_ns"`
	Queue    time.Duration `json:"queue_ns"`
	Delivery time.Duration `json:"delivery_ns"`
	Waited   time.Duration `json:"waited_ns"` // for its next attempts, and for operators
	Took     time.Duration `json:"took_ns"`   // from acceptance to its end, or until now
	timed    bool

	held, frozen bool
	until        time.Time // of the hold; zero: without an end
}

// States of a recipient, as zmctl queue has them.
const (
	Waiting   = "waiting"
	Unserved  = "unserved"
	Delivered = "delivered"
	Failed    = "failed"
	Removed   = "removed"
	Held      = "held"
	Frozen    = "frozen"
	Rerouted  = "rerouted"
)

// Filtered is the event of a message that the content filter gives back, as another, and what it is to
// that one.
const Filtered = "filtered"

// Caused is another message that this one brought about.
type Caused struct {
	ID   string `json:"id"`
	Kind string `json:"kind"` // of a report: failed, delayed, delivered; copy: of recipients that were routed again; filtered
	To   string `json:"to,omitempty"`
	Life *Life  `json:"life,omitempty"`
}

// In is how a message came in.
type In struct {
	MessageID  string `json:"message_id,omitempty"`
	Client     string `json:"client,omitempty"` // address and port
	ClientName string `json:"client_name,omitempty"`
	Helo       string `json:"helo,omitempty"`
	// Through is the client that gave us the message, where that named another one by XFORWARD, and
	// OriginalID the message's ID there: the content filter, and the spool ID on the way to it.
	Through    string `json:"through,omitempty"`
	OriginalID string `json:"original_id,omitempty"`
	User       string `json:"user,omitempty"` // who logged in
	Protocol   string `json:"protocol,omitempty"`
	TLS        string `json:"tls,omitempty"`
	Cipher     string `json:"cipher,omitempty"`
	Verified   string `json:"verified,omitempty"` // the client's certificate
}

// add takes over what is not known yet.
func (i *In) add(o *In) {
	for _, f := range []struct{ to, from *string }{{&i.MessageID, &o.MessageID}, {&i.Client, &o.Client}, {&i.ClientName, &o.ClientName}, {&i.Helo, &o.Helo}, {&i.Through, &o.Through}, {&i.OriginalID, &o.OriginalID},
		{&i.User, &o.User}, {&i.Protocol, &o.Protocol}, {&i.TLS, &o.TLS}, {&i.Cipher, &o.Cipher}, {&i.Verified, &o.Verified}} {
		*f.to = cmp.Or(*f.to, *f.from)
	}
}

// Life is all that is known of a message.
type Life struct {
	ID      string `json:"id"`
	From    string `json:"from"`
	HasFrom bool   `json:"-"`
	Size    string `json:"size,omitempty"` // bytes
	In
	Accepted time.Time `json:"accepted"`
	Ended    time.Time `json:"ended,omitzero"`
	// State is that of its files; gone: there are none.
	State string   `json:"state,omitempty"`
	Told  []string `json:"told"` // sources that have it
	// Origin is the message that it is a report on, a copy of, or that the content filter had.
	Origin *Caused `json:"origin,omitempty"`

	Steps      []Step      `json:"steps"`
	Recipients []Recipient `json:"recipients"`
	// Untold is how many recipients more it has that nothing was said of yet.
	Untold int      `json:"recipients_without_an_attempt,omitempty"`
	Caused []Caused `json:"caused,omitempty"`

	at map[string]int // of Recipients, by address
}
