// Package top takes samples of a running mail system: how much mail is in each stage and
// since when, the scheduler's threads, how many messages and recipients passed in the
// time between two samples, and what needs an operator. It writes a sample as text; package
// live shows them on a terminal. It only reads: the directories, the journals of the
// ledger, the scheduler's query socket.
//
// What survives a crash: it keeps nothing.
//
// Diagnostics: Take fails when nothing can be read, which is when its context is
// done; a directory that cannot be read has its reason in its stage, a scheduler that
// does not answer in Sample.Silent, and the others are counted.
package top

import (
	"time"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/mailq"
)

// Sample is the state at one time.
type Sample struct {
	Time       time.Time `json:"time"`
	PostOffice string    `json:"postoffice"`
	Stages     []Stage   `json:"stages"`
	// Router: a router lives.
	Router bool `json:"router_runs"`
	// Scheduler is its own status; nil: it does not answer, and Silent has the reason.
	Scheduler *mailq.StatusInfo `json:"scheduler,omitempty"`
	Silent    string            `json:"scheduler_silent,omitempty"`
	Rates     Rates             `json:"per_second"`
	// Seconds is the time over which the rates were counted; 0: there was no sample before.
	Seconds float64       `json:"seconds"`
	Threads []Thread      `json:"threads"`
	Alarms  []alarm.Alarm `json:"alarms,omitempty"`
}

// Stage is one directory, or those of the queue together.
type Stage struct {
	Name          string    `json:"name"`
	Messages      int       `json:"messages"`
	Recipients    int       `json:"recipients,omitempty"` // of the queue
	Oldest        time.Time `json:"oldest,omitzero"`
	OldestSeconds int64     `json:"oldest_seconds"`
	// Seen is when it was counted: directories that are large are not counted each time.
	Seen    time.Time `json:"seen"`
	Problem string    `json:"problem,omitempty"`
}

// StageQueue is the stage of queue/ and transport/.
const StageQueue = "queue"

// Rates are what happened, in a second.
type Rates struct {
	Accepted  float64 `json:"accepted"` // messages
	Routed    float64 `json:"routed"`   // messages
	Done      float64 `json:"done"`     // messages that left the queue
	Delivered float64 `json:"delivered"`
	Deferred  float64 `json:"deferred"`
	Failed    float64 `json:"failed"` // and given up
}

// Named returns the rates with their names, in the order of a message's life.
func (r *Rates) Named() []Rate {
	return []Rate{{"accepted", r.Accepted}, {"routed", r.Routed}, {"delivered", r.Delivered}, {"deferred", r.Deferred}, {"failed", r.Failed}, {"done", r.Done}}
}

// Rate is one of them.
type Rate struct {
	Name  string
	Value float64
}

// Thread is a thread with the attempts that it had in a second.
type Thread struct {
	mailq.ThreadInfo
	Rate float64 `json:"attempts_per_second"`
}

// Name is as other commands have it.
func (t *Thread) Name() string { return human.Clean(t.Channel) + "/" + human.Clean(t.Host) }
