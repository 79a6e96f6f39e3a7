// Package web shows a postoffice to a browser: its queue by host and age, the threads of
// the scheduler, one message with its history, what came and went in the last hours, and
// what people ordered. If it is told to, it takes orders. docs/web.md has the pages.
//
// Pages are whole HTML made here; there is no script in them. What mail says, subjects,
// addresses, replies, is text everywhere: html/template sets it, and the policy sent with
// each page lets a browser run nothing.
//
// It owns the file .web.samples of the postoffice: the counts of each minute of the last
// day. What survives a crash: all but the last minutes; the file is worthless to all
// others. Who is logged in is known to the process alone.
//
// Diagnostics: what a Source or an Orderer errs with is shown on the page, and logged if
// the page could not be made; a request never ends the process. ErrNotFound of a Source
// becomes the status 404.
package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"zmailer/internal/mailq"
	"zmailer/internal/passwd"
	"zmailer/internal/postoffice"
	"zmailer/internal/selector"
)

// ErrNotFound means that there is no such message, thread or order.
var ErrNotFound = errors.New("it is not here")

// Source is what pages are made of. Its methods may be used by many goroutines.
type Source interface {
	// Walk calls fn with each message that waits and is selected, with the selected
	// recipients alone; oldest first if sorted. An error of fn ends it. What it cannot
	// list is told by the error beside the rest.
	Walk(ctx context.Context, sel selector.Selector, fn func(*Message) error) (sorted bool, err error)
	// Look tells all about one message; of one that is gone, what the ledger has.
	Look(ctx context.Context, id postoffice.SpoolID) (*Look, error)
	Status(ctx context.Context) (*Status, error)
	// Threads asks the running scheduler.
	Threads(ctx context.Context) ([]mailq.ThreadInfo, error)
	Thread(ctx context.Context, channel, host string) (*Thread, error)
	// Orders are the newest ones, at most so many, newest first.
	Orders(ctx context.Context, most int) ([]Order, error)
	// Order is one of them with its messages.
	Order(ctx context.Context, id postoffice.OrderID) (*Order, error)
}

// Orderer acts on queued mail, as zmctl's verbs do.
type Orderer interface {
	// Try tells what a command would be about, and changes nothing.
	Try(ctx context.Context, c Command) (string, error)
	// Give does it. What is done is told even beside an error.
	Give(ctx context.Context, who string, c Command) (*Given, error)
	// Undo takes an order back, and tells what it did.
	Undo(ctx context.Context, who string, id postoffice.OrderID) (string, error)
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

// Config is what a Page needs.
type Config struct {
	Source Source
	// Orders takes orders; nil: the page is for reading alone.
	Orders  Orderer
	Samples *Samples
	// Token is a secret that lets its bearer in; "": there is none.
	Token string
	// Accounts are those who may log in with a password; nil: nobody.
	Accounts func() (*passwd.Accounts, error)
	// Hosts are the names and addresses, without a port, that requests may be made to.
	Hosts []string
	// Secure: it is served by TLS.
	Secure bool
	// Cookie sets this page's cookie apart from those of others on the same host.
	Cookie string
	// Hostname is shown.
	Hostname string
	Now      func() time.Time
	Log      *slog.Logger
}

// Page serves all pages.
type Page struct {
	c        Config
	sessions sessions
	tries    tries
	survey   surveyor
	serve    http.Handler
}

// New makes a Page.
func New(c Config) *Page {
	p := &Page{c: c}
	p.sessions.now, p.tries.now, p.survey.now = c.Now, c.Now, c.Now
	p.survey.source = c.Source
	p.serve = p.guarded(p.routes())
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve.ServeHTTP(w, r) }

// routes are the pages.
func (p *Page) routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /style.css", style)
	m.HandleFunc("GET /login", p.loginForm)
	m.HandleFunc("POST /login", p.login)
	m.HandleFunc("POST /logout", p.inside(p.logout))
	m.HandleFunc("GET /{$}", p.inside(p.overview))
	m.HandleFunc("GET /queue", p.inside(p.queue))
	m.HandleFunc("GET /message/{id}", p.inside(p.message))
	m.HandleFunc("GET /find", p.inside(p.find))
	m.HandleFunc("GET /threads", p.inside(p.threads))
	m.HandleFunc("GET /thread", p.inside(p.thread))
	m.HandleFunc("GET /orders", p.inside(p.orders))
	m.HandleFunc("GET /order/{id}", p.inside(p.order))
	m.HandleFunc("POST /act", p.inside(p.writing(p.act)))
	m.HandleFunc("POST /undo", p.inside(p.writing(p.undo)))
	return m
}
