// Package importer takes the queued mail of another mail system into the postoffice, so
// that moving over loses nothing and delivers nothing twice.
//
// It owns the steps from an old queue to router/ and freezer/, and the record of them, a
// text in imports/ that is kept. How a system stores its mail is known to the packages
// below: each is a Source.
//
// What survives a crash: a message is written in imports/ and synced, named in the record,
// which is synced, moved to router/ or freezer/, and then noted as taken. A file that the
// record names and that is still in imports/ is moved by the next import; one that is not
// there was. What no line names is dropped and written again. The old queue is changed
// last, with Config.Move alone.
//
// Diagnostics: errors of Run end the import; another one goes on where it stopped. What
// is wrong with one message is in its Result, and the message stays in the old queue. ErrLeft:
// this message is not to be taken now, and Run counts it as left. ErrRunning: the other
// system works on its queue. ErrNoQueue: a path is no such queue.
package importer

import (
	"context"
	"errors"
	"io"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
)

var (
	// ErrLeft means that a message stays where it is.
	ErrLeft = errors.New("left in the old queue")
	// ErrRunning means that the system whose queue it is still works on it.
	ErrRunning = errors.New("the mail system is running on this queue; stop it first")
	// ErrNoQueue means that what is at a path is not what was asked for.
	ErrNoQueue = errors.New("no such queue is here")
	// ErrGone means that a message that was listed is not there any more.
	ErrGone = errors.New("it is gone")
	// ErrLater means that a message is removed with others, when all are taken.
	ErrLater = errors.New("it is removed after all others")
)

// Remains is the error of opening what is left of a message that was being removed. It is
// an ErrLeft, unless the record says that the message was taken: then they are removed, too.
type Remains struct {
	Why string
	// Key is the message's, or its part before the first point.
	Key string
}

func (e *Remains) Error() string { return e.Why }

// Is has it count as ErrLeft.
func (e *Remains) Is(target error) bool { return target == ErrLeft }

// Ref is one message in a queue, as it was listed.
type Ref struct {
	Name string // for people, and for the Source to find it again
	At   int64  // where it begins, if a file has several
	Size int64  // of it there; 0: the file's
}

// Source is the queue of another system.
type Source interface {
	// List names the messages; unfinished ones, and what the system has put aside, too.
	List(ctx context.Context) ([]Ref, error)
	// Open reads a message. An error that is ErrLeft says why it is not to be taken.
	Open(ref Ref) (*Message, error)
	// Remove takes a message that was taken out of the queue. ErrLater: not by itself.
	Remove(ref Ref) error
	// Programs returns the names of the processes that work on such a queue.
	Programs() []string
	Close() error
}

// Message is an open message of another system.
type Message struct {
	// Key is unique among all messages that are or were in that queue.
	Key     string
	Arrival time.Time // zero: unknown
	// Local: what a local submitter wrote, to which From, Date and Message-ID may still
	// have to be added.
	Local    bool
	FullName string // of a local submitter
	BodyType string
	Parts    []Part
	// Notes are remarks for the operator.
	Notes []string
	// Write writes header, empty line and body with line ends LF.
	Write func(w io.Writer) error
	// Close gives back what is open and locked; nil: nothing is.
	Close func() error
}

// Part is those open recipients of a message that can be in one envelope.
type Part struct {
	Sender     string // "": the null sender
	EnvID, Ret string // as in envelope.Envelope
	Recipients []envelope.Recipient
	Held       string // why it is to be put into freezer/; "": it is not
}

// Config is one import.
type Config struct {
	PostOffice *postoffice.PostOffice
	Journal    *ledger.Journal // may be nil
	Source     Source
	System     string // "postfix": names the record
	Path       string // absolute; names the record too
	// Move takes each message out of the old queue when it is taken.
	Move bool
	// Young gives messages the present as their arrival, so that their time begins anew.
	Young bool
	// Hold puts all of them into freezer/.
	Hold bool
	Who  string // for the text beside a message in freezer/
	// Listed is called with the number of messages; Tell with the outcome of each, in the
	// order of the list. Either may be nil.
	Listed func(n int)
	Tell   func(*Result) error
}

// What became of a message.
const (
	Taken  = "taken"  // it is in router/ or freezer/
	Before = "before" // an earlier import has taken it
	Done   = "done"   // no recipient is open
	Left   = "left"   // it stays in the old queue for now
	Failed = "failed" // it could not be taken; it stays in the old queue
	Would  = "would"  // it would be taken: a dry run
)

// Result is what became of one message.
type Result struct {
	Message    string     `json:"message"` // in the old queue
	Key        string     `json:"key,omitempty"`
	Did        string     `json:"did"`
	Moved      bool       `json:"moved,omitempty"` // out of the old queue
	Arrival    *time.Time `json:"arrival,omitempty"`
	Sender     *string    `json:"sender,omitempty"`
	Recipients []string   `json:"recipients,omitempty"`
	Held       string     `json:"held,omitempty"`
	IDs        []string   `json:"ids,omitempty"`
	Notes      []string   `json:"notes,omitempty"`
	Why        string     `json:"why,omitempty"`
}

// Sum counts Results.
type Sum struct {
	Taken, Recipients, Held, Before, Done, Left, Failed, Moved int
}

func (s *Sum) add(r *Result) {
	switch r.Did {
	case Taken, Would:
		s.Taken++
		s.Recipients += len(r.Recipients)
		if r.Held != "" {
			s.Held++
		}
	case Before:
		s.Before++
	case Done:
		s.Done++
	case Left:
		s.Left++
	case Failed:
		s.Failed++
	}
	if r.Moved {
		s.Moved++
	}
}

// about fills in what is known of a message.
func (r *Result) about(l *Message) {
	r.Key, r.Notes = l.Key, l.Notes
	if !l.Arrival.IsZero() {
		at := l.Arrival.UTC()
		r.Arrival = &at
	}
	for i := range l.Parts {
		p := &l.Parts[i]
		if r.Sender == nil {
			r.Sender = &p.Sender
		}
		if p.Held != "" {
			r.Held = p.Held
		}
		for _, to := range p.Recipients {
			r.Recipients = append(r.Recipients, to.Address)
		}
	}
}
