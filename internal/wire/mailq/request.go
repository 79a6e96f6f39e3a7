package mailq

import (
	"bytes"
	"fmt"
	"strings"

	"zmailer/internal/run/human"
)

// Kind is what a request asks for.
type Kind uint8

// Kinds.
const (
	Auth        Kind = iota + 1 // AUTH user HEX
	Short                       // SHOW QUEUE SHORT
	Threads                     // SHOW QUEUE THREADS
	Threads2                    // SHOW QUEUE THREADS2
	SNMP                        // SHOW SNMP
	Counters                    // SHOW COUNTERS
	Thread                      // SHOW THREAD channel host
	ETRN                        // ETRN host
	KillThread                  // KILL THREAD channel host [SILENT]
	KillMessage                 // KILL MSG id [SILENT]
	Quit                        // QUIT, EXIT
	JSONStatus                  // JSON STATUS; these are ours
	JSONThreads                 // JSON THREADS
	JSONThread                  // JSON THREAD channel host
	JSONMessage                 // JSON MESSAGE id
	JSONEvents                  // JSON EVENTS
)

// Request is one line of a client.
type Request struct {
	Kind          Kind
	User, Digest  string // of Auth
	Channel, Host string // of a thread; Host alone of ETRN
	ID            string // of a message: its spool ID, or its file below transport/
	Silent        bool   // of a kill: the sender gets no report
}

// shape is the form of a request: words, then their object.
type shape struct {
	kind  Kind
	words string
	takes takes
}

// takes is what follows the words.
type takes uint8

const (
	nothing takes = iota
	login         // user, digest
	place         // channel, host
	host
	id
)

func shapes() []shape {
	return []shape{
		{Auth, "AUTH", login}, {Short, "SHOW QUEUE SHORT", nothing}, {Threads, "SHOW QUEUE THREADS", nothing},
		{Threads2, "SHOW QUEUE THREADS2", nothing}, {SNMP, "SHOW SNMP", nothing}, {Counters, "SHOW COUNTERS", nothing},
		{Thread, "SHOW THREAD", place}, {ETRN, "ETRN", host}, {KillThread, "KILL THREAD", place}, {KillMessage, "KILL MSG", id},
		{Quit, "QUIT", nothing}, {Quit, "EXIT", nothing},
		{JSONStatus, "JSON STATUS", nothing}, {JSONThreads, "JSON THREADS", nothing}, {JSONThread, "JSON THREAD", place},
		{JSONMessage, "JSON MESSAGE", id}, {JSONEvents, "JSON EVENTS", nothing},
	}
}

// silent is the word behind a kill that the sender is not to hear of.
const silent = "SILENT"

// String returns the words of the request without its object.
func (k Kind) String() string {
	for _, s := range shapes() {
		if s.kind == k {
			return s.words
		}
	}
	return "none"
}

// ParseRequest reads a line without its newline. Verbs are taken in any case. A thread
// may have the empty host. The error is ErrRequest.
func ParseRequest(line []byte) (Request, error) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return Request{}, fmt.Errorf("%w: a character that is no text", ErrRequest)
	}
	words := strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '\t' })
	for _, s := range shapes() {
		verbs := strings.Fields(s.words)
		if len(words) < len(verbs) || !strings.EqualFold(strings.Join(words[:len(verbs)], " "), s.words) {
			continue
		}
		r := Request{Kind: s.kind}
		if !r.take(s.takes, words[len(verbs):]) {
			return Request{}, fmt.Errorf("%w: %s lacks its argument", ErrRequest, s.words)
		}
		return r, nil
	}
	return Request{}, ErrRequest
}

// take reads what a request is about; false: it is too little or too much.
func (r *Request) take(what takes, words []string) bool {
	if r.Kind == KillThread || r.Kind == KillMessage {
		if n := len(words); n > 1 && strings.EqualFold(words[n-1], silent) {
			r.Silent, words = true, words[:n-1]
		}
	}
	n := len(words)
	word := func(i int) string {
		if i < n {
			return words[i]
		}
		return ""
	}
	switch what {
	case nothing:
		return n == 0
	case login:
		r.User, r.Digest = word(0), word(1)
		return n == 2
	case place:
		r.Channel, r.Host = word(0), word(1)
		return n == 1 || n == 2
	case host:
		r.Host = word(0)
		return n == 1
	default:
		r.ID = word(0)
		return n == 1
	}
}

// AppendRequest appends the line. What it is about holds no blanks.
func AppendRequest(b []byte, r Request) []byte {
	b = append(b, r.Kind.String()...)
	add := func(words ...string) {
		for _, w := range words {
			b = append(append(b, ' '), strings.ReplaceAll(human.Blank(w), " ", "_")...)
		}
	}
	for _, s := range shapes() {
		if s.kind != r.Kind {
			continue
		}
		switch s.takes {
		case login:
			add(r.User, r.Digest)
		case place:
			add(r.Channel, r.Host)
		case host:
			add(r.Host)
		case id:
			add(r.ID)
		}
		break
	}
	if r.Silent {
		add(silent)
	}
	return append(b, '\n')
}
