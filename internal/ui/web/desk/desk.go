// Package desk is where the pages of zmweb meet zmctl: what a page asks and what it is
// told, as values, and the lines in which one process asks the other.
//
// The program with the pages listens to browsers and knows HTML; zmctl, started by it as a
// child, knows the postoffice and gives the orders. So the one links no commands, the other
// no pages. A Client asks over a pipe, Serve answers; any number of questions are under way
// at a time, and who asks no more says so.
//
// It owns nothing. What survives a crash: orders that are being given when the other side
// ends are finished; nobody is told what became of them but the files.
//
// Diagnostics: errors of the other side come as its words; ErrNotFound stays what it is.
// ErrEnded: the child has ended, the next question starts another.
package desk

import (
	"context"
	"errors"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// OrderTime is how long an order may take; its browser may be gone by then.
const OrderTime = 10 * time.Minute

// ErrNotFound means that there is no such message, thread or order.
var ErrNotFound = errors.New("it is not here")

// ErrEnded means that the other side ended before it answered.
var ErrEnded = errors.New("the child that knows the postoffice has ended")

// Source is what pages are made of. Its methods may be used by many goroutines.
type Source interface {
	// Survey counts all that waits.
	Survey(ctx context.Context) (*Survey, error)
	// List gives a part of what waits and is selected by an expression, oldest first where
	// that is possible: most messages behind the first so many.
	List(ctx context.Context, where string, first, most int) (*Listing, error)
	// Waiting is how many messages the running scheduler has.
	Waiting(ctx context.Context) (int, error)
	// Look tells all about one message; of one that is gone, what the ledger has.
	Look(ctx context.Context, id postoffice.SpoolID) (*Look, error)
	// Threads asks the running scheduler.
	Threads(ctx context.Context) ([]mailq.ThreadInfo, error)
	Thread(ctx context.Context, channel, host string) (*Thread, error)
	// Orders are the newest ones, at most so many, newest first.
	Orders(ctx context.Context, most int) ([]Order, error)
	// Order is one of them with its messages.
	Order(ctx context.Context, id postoffice.OperationID) (*Order, error)
}

// Orderer acts on queued mail, as zmctl's verbs do. Its methods may be used by many
// goroutines.
type Orderer interface {
	// Try tells what a command would be about, and changes nothing.
	Try(ctx context.Context, c Command) (string, error)
	// Give does it. What is done is told even beside an error.
	Give(ctx context.Context, who string, c Command) (*Given, error)
	// Undo takes an order back, and tells what it did.
	Undo(ctx context.Context, who string, id postoffice.OperationID) (string, error)
}

// Listing is a part of what was selected.
type Listing struct {
	Messages   []*Message
	All        int // messages that are selected
	Recipients int // of them
	Sorted     bool
	Problem    string // what could not be listed
}

// Message is one that waits.
type Message struct {
	ID, Name   string
	State      string
	Since      time.Time
	Age        string // in words
	Size       string
	Sender     string // with brackets
	Why        string
	Problem    string
	Recipients []Recipient
	Hidden     int // recipients that were not selected
}

// Recipient is one of a message.
type Recipient struct {
	Address, Channel, Host string
	State                  string
	Words                  string // state, attempts, next attempt, in words
	Last                   string // last answer
	Open                   bool
}

// Thread names the thread that it waits in, "" if none.
func (r *Recipient) Thread() string {
	if r.Channel == "" {
		return ""
	}
	return r.Channel + "/" + r.Host
}

// Look is all about one message.
type Look struct {
	ID      string
	State   string // "gone" if no file is left
	Message *Message
	Why     []string // sentences
	Header  []Field
	Files   []string
	Steps   []Step
}

// Field is a field of a message's header.
type Field struct{ Name, Value string }

// Step is one thing that happened to a message.
type Step struct {
	Time        time.Time
	Event, Text string
}

// Status is what the directories hold.
type Status struct {
	PostOffice  string
	Directories []Directory
	Daemons     []Daemon
	Alarms      []Alarm
}

// Directory counts one directory's files.
type Directory struct {
	Name, State string
	Files       int
	Oldest      string
	Problem     string
}

// Daemon is a process that works on the postoffice.
type Daemon struct {
	Says  string
	Alive bool
}

// Alarm is what needs a person.
type Alarm struct{ Kind, Subject, For, Text string }

// Thread is all about one thread.
type Thread struct {
	Info    mailq.ThreadInfo
	State   string // in words
	Waiting []mailq.WaitingInfo
	More    int // recipients that are not in Waiting
}

// Order is something that a person ordered.
type Order struct {
	ID       string
	Time     time.Time
	Who      string
	Verb     string
	Selector string
	Reason   string
	Until    string
	Flags    string
	Messages int
	Undone   string
	Undo     string   // what an undo does; "": it cannot be undone
	IDs      []string // of the first messages
}

// Command is what a person wants done.
type Command struct {
	Verb string
	// IDs are the messages; Where is a selector in their place, or beside them.
	IDs   []string
	Where string
	// Reason is kept in each message's history. Until is the end of a hold.
	Reason, Until string
	// Silent, of expire: the sender is not told. Report, of remove: he is.
	Silent, Report bool
}

// Given is what became of a command.
type Given struct {
	Order string // "": nothing was done
	Lines []string
	Error string // what was not done
}
