// Package taproto is the line protocol between scheduler and transport agent
// (formats.md "Scheduler and transport agent"). It holds no connection: it turns
// lines into values and back. Each line is whole or it was not said: a last line
// without its newline is what a dying peer left, and Reader drops it.
//
// Nothing here survives a crash; what must is in the work specification.
//
// Diagnostics: ErrCommand names a line that no scheduler sends; the caller logs it
// and goes on. A line from an agent never errs: what cannot be read is a comment,
// for an agent's chatter must never stop a scheduler. Reader's other errors are
// those of the connection, io.EOF at its end.
package taproto

import (
	"errors"
	"time"
)

// ErrCommand is returned for a line that is no command.
var ErrCommand = errors.New("not a scheduler's command")

// ErrEndless is returned for a line that does not end.
var ErrEndless = errors.New("a line without end")

// Job is what a scheduler hands out: deliver the open recipients of the work
// specification Name for Host. Name is relative to transport/, with its hash
// directories. Host is empty if the agent got it in its arguments.
type Job struct{ Name, Host string }

// CommandKind is the kind of a line that a scheduler sends.
type CommandKind uint8

const (
	CommandJob  CommandKind = iota
	CommandIdle             // "#idle": nothing now
	CommandEnd              // empty line: finish and exit
)

// Command is one line from the scheduler.
type Command struct {
	Kind CommandKind
	Job  Job
}

// Word is the STATUS of an answer.
type Word string

const (
	OK       Word = "ok"       // delivered; scheduler appends a diagnostic if one is owed
	OK2      Word = "ok2"      // delivered; the agent appended the d line
	OK3      Word = "ok3"      // delivered; no report was requested
	Error    Word = "error"    // failed; the scheduler appends the d line
	Error2   Word = "error2"   // failed; the agent appended the d line
	Deferred Word = "deferred" // try this recipient again
	DeferAll Word = "deferall" // try every recipient of this host again
	RetryAt  Word = "retryat"  // as deferall, not before Answer.At
)

// LineKind is the kind of a line that an agent sends.
type LineKind uint8

const (
	LineComment LineKind = iota // "# text" and anything else: to be logged
	LineHungry                  // "#hungry": one free slot
	LineAnswer
	LineResync // "#resync NAME", or "#resync NAME TAB HOST"
	LineSlots  // "#slots N": it will ask for N jobs at once
)

// Line is one line from an agent.
type Line struct {
	Kind   LineKind
	Answer Answer
	Name   string // of a resync
	// Host is that of the job that a resync is about; empty if the agent did not say.
	Host  string
	Slots int    // of a slots line
	Text  string // of a comment
}

// Answer is the outcome for one recipient.
type Answer struct {
	Number uint64 // the decimal number that the i field starts with
	Offset int64  // of the r line
	Notary string // raw, see workspec.ParseNotary; may be empty
	Word   Word
	// At is the time of a retryat: absolute, or relative to now if Relative.
	At       time.Time
	After    time.Duration
	Relative bool
	// Text is the text, newlines restored. With a status word that is not known,
	// which counts as Deferred, it starts with that word.
	Text string
}
