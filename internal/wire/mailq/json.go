package mailq

import "time"

// These are the lines of the JSON requests, one object each. Times are RFC 3339, zero
// ones are left out; spans are in seconds.

// StatusInfo is the line of JSON STATUS.
type StatusInfo struct {
	PID           int       `json:"pid"`
	Now           time.Time `json:"now"`
	UptimeSeconds int64     `json:"uptime_seconds"`

	Messages int `json:"messages"` // in the queue
	// Refused is how many specifications cannot be used, and are not among them.
	Refused int `json:"refused"`
	// OldestSeconds is the age of the oldest message at the last look; 0: there was none.
	OldestSeconds int64 `json:"oldest_seconds"`
	// Suspensions is how many suspensions of deliveries are in force.
	Suspensions int `json:"suspensions,omitempty"`
	// Scanned: all that lay there at the start has been read.
	Scanned bool `json:"scanned"`

	Recipients int `json:"recipients"` // that wait in threads or are being delivered
	Threads    int `json:"threads"`
	Rings      int `json:"rings"`
	Agents     int `json:"agents"`
	Idle       int `json:"idle_agents"`

	// Since the start.
	MessagesIn    uint64 `json:"messages_in"`
	MessagesOut   uint64 `json:"messages_out"`
	RecipientsIn  uint64 `json:"recipients_in"`
	RecipientsOut uint64 `json:"recipients_out"`
	Attempts      uint64 `json:"attempts"`
	Deliveries    uint64 `json:"deliveries"`
	Deferrals     uint64 `json:"deferrals"`
	Failures      uint64 `json:"failures"`

	// MostAtOnce is how many vertices a query has had the engine look at in one turn.
	MostAtOnce int `json:"most_at_once"`
}

// ThreadInfo is a line of JSON THREADS, and the first one of JSON THREAD.
type ThreadInfo struct {
	Channel    string `json:"channel"`
	Host       string `json:"host"`
	State      string `json:"state"`
	Messages   int    `json:"messages"`
	Recipients int    `json:"recipients"`
	Ready      int    `json:"ready"`
	Running    int    `json:"running"`
	Limit      int    `json:"limit"` // of deliveries at once; 0: none
	Attempts   uint64 `json:"attempts"`
	Tries      int    `json:"tries"` // failures of the host in a row

	Until         time.Time `json:"until,omitzero"`
	WaitSeconds   int64     `json:"wait_seconds"`
	Oldest        time.Time `json:"oldest,omitzero"`
	OldestSeconds int64     `json:"oldest_seconds"`
	Trouble       string    `json:"trouble,omitempty"`
	// Crowd describes which places are taken that a thread in state no-place waits for.
	Crowd string `json:"crowd,omitempty"`

	// Suspended is the operator's decision that nothing is delivered there.
	Suspended *SuspendedInfo `json:"suspended,omitempty"`

	Clause      string `json:"clause"`
	RingRunning int    `json:"ring_running"`
	MaxRing     int    `json:"maxring"`
	MaxChannel  int    `json:"maxchannel"`
	MaxThread   int    `json:"maxthr"`
	PID         int    `json:"pid,omitempty"` // of an agent that works on it
}

// SuspendedInfo is an operator's decision that mail waits.
type SuspendedInfo struct {
	Order   string    `json:"order"`
	Subject string    `json:"subject"` // "host example.net"
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
}

// WaitingInfo is a recipient that waits, in the lines of JSON THREAD behind the first
// one and in JSON MESSAGE.
type WaitingInfo struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"` // of the file below transport/
	Channel  string    `json:"channel,omitempty"`
	Host     string    `json:"host,omitempty"`
	Rcpt     string    `json:"rcpt"`
	From     string    `json:"from"`
	State    string    `json:"state"` // queued, waiting, running, unserved, held, frozen
	Attempts int       `json:"attempts"`
	Accepted time.Time `json:"accepted"`
	Next     time.Time `json:"next,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`
	Until    time.Time `json:"until,omitzero"` // of a hold
	Cause    string    `json:"cause,omitempty"`
	Status   string    `json:"status,omitempty"`
	Answer   string    `json:"answer,omitempty"`
}

// MessageInfo is the line of JSON MESSAGE.
type MessageInfo struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Open  int    `json:"open"`  // recipients
	Total int    `json:"total"` // recipients
	// Why is, for each thread of the message, what it waits for.
	Why []WhyInfo `json:"why"`
	// More: there are more threads than Why has.
	More       bool          `json:"more,omitempty"`
	Recipients []WaitingInfo `json:"recipients"` // that are open
}

// WhyInfo is why a part of a message waits.
type WhyInfo struct {
	Thread    ThreadInfo     `json:"thread"`
	Text      string         `json:"text"`
	Suspended *SuspendedInfo `json:"suspended,omitempty"` // it waits for the end of this
}
