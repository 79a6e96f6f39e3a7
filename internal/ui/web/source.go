package web

import (
	"context"
	"errors"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/wire/mailq"
)

// OrderTime is how long an order may take; it goes on when its browser has gone.
const OrderTime = 10 * time.Minute

// ErrNotFound means that there is no such message, thread or order.
var ErrNotFound = errors.New("not found")

// Source has the values that pages show. Its methods may be used by many goroutines.
type Source interface {
	// Survey counts all that waits.
	Survey(ctx context.Context) (*Survey, error)
	// List returns a part of the messages that an expression selects, oldest first where
	// that is possible: at most most messages after the first so many.
	List(ctx context.Context, where string, first, most int) (*Listing, error)
	// Waiting returns how many messages the running scheduler has.
	Waiting(ctx context.Context) (int, error)
	// Look returns everything about one message; of one that is gone, what the ledger has.
	Look(ctx context.Context, id postoffice.SpoolID) (*Look, error)
	// Threads asks the running scheduler.
	Threads(ctx context.Context) ([]mailq.ThreadInfo, error)
	Thread(ctx context.Context, channel, host string) (*Thread, error)
	// Suspensions returns those in force, also beside an error.
	Suspensions(ctx context.Context) ([]view.Suspension, error)
	// Search looks for messages in the log and in the queue, for searchTime at most. What was
	// found is returned beside an error, too.
	Search(ctx context.Context, q view.Search) (*view.Found, error)
	// Orders returns the newest ones, at most so many, newest first.
	Orders(ctx context.Context, most int) ([]Order, error)
	// Order is one of them with its messages.
	Order(ctx context.Context, id postoffice.OperationID) (*Order, error)
}

// Orderer changes mail as the verbs of zmctl do. Its methods may be used by many goroutines.
type Orderer interface {
	// Try describes what a command would change, and changes nothing.
	Try(ctx context.Context, c Command) (string, error)
	// Give executes a command. What was done is returned even beside an error.
	Give(ctx context.Context, who string, c Command) (*Given, error)
	// TrySuspend describes what a suspension would concern, and changes nothing.
	TrySuspend(ctx context.Context, s Suspending) (string, error)
	Suspend(ctx context.Context, who string, s Suspending) (*Given, error)
	// Resume ends the suspension that an order has begun.
	Resume(ctx context.Context, who string, id postoffice.OperationID) (*Given, error)
	// Undo undoes an order, and describes what it did.
	Undo(ctx context.Context, who string, id postoffice.OperationID) (string, error)
}

// Listing is a part of a selection.
type Listing struct {
	Messages   []*view.Message
	All        int // messages that are selected
	Recipients int // of them
	Sorted     bool
	Problem    string // what could not be listed
}

// Look is all about one message.
type Look struct {
	ID      string
	State   string // "gone" if no file is left
	Message *view.Message
	Why     []string // sentences
	Header  []view.HeaderField
	Steps   []view.Step
}

// Status is what the directories hold, and what needs an operator.
type Status struct {
	*view.Overview
	Alarms      []alarm.Alarm
	Suspensions []view.Suspension // in force
}

// Thread is all about one thread.
type Thread struct {
	Info    mailq.ThreadInfo
	State   string // in words
	Waiting []mailq.WaitingInfo
	More    int // recipients that are not in Waiting
}

// Order is an operation that an operator ordered.
type Order struct {
	act.Operation
	Undo string   // what an undo does; "": it cannot be undone
	IDs  []string // of the first messages
}

// Command is an operation to be executed.
type Command struct {
	Verb string
	// IDs are the messages; Where is a selector in their place, or beside them.
	IDs   []string
	Where string
	// Reason is kept in each message's history. Until is the end of a hold.
	Reason, Until string
	// Silent, of expire: without a report to the sender. Report, of remove: with one.
	Silent, Report bool
}

// Given is the result of a command.
type Given struct {
	Order string // "": nothing was done
	Lines []string
	Error string // of what failed
}
