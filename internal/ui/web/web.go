// Package web shows a postoffice to a browser: its queue by host and age, the threads of
// the scheduler, one message with its history, what came and went in the last hours, and
// the orders of operators. If it has an Orderer, it takes orders. docs/web.md has the pages.
//
// Pages are whole HTML made here; there is no script in them. Text of mail, subjects,
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
	"log/slog"
	"net/http"
	"time"
)

// Right is what somebody may do here.
type Right int

// The rights; each has those before it.
const (
	NoRight Right = iota
	MayRead
	MayWrite // if the page takes orders at all
)

// Config is what a Page needs.
type Config struct {
	Source Source
	// Orders takes orders; nil: the page is for reading alone.
	Orders  Orderer
	Samples *Samples
	// Token is a secret that lets its bearer in; "": there is none.
	Token string
	// Login returns the user of a name and password, which came from an address, or
	// ErrRefused; nil: only the token logs in.
	Login func(ctx context.Context, name, password, from string) (string, error)
	// Machine: names and passwords are those of the machine, which guesses could lock: Login
	// is not asked about who has no right. Without it the time that a refusal takes does
	// not tell who has one.
	Machine bool
	// Account returns the current fingerprint of an account: of a session whose account is another
	// one than at its login, nothing is left. nil: it is not known.
	Account func(name string) (string, error)
	// Right is what who has logged in with a password may do now; nil: what the token's
	// bearer may. It is asked at each request.
	Right func(name string) Right
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
	renderer
	c        Config
	gate     gate
	survey   surveyor
	searches *searches
	serve    http.Handler
}

// New makes a Page.
func New(c Config) *Page {
	return build(c, &sessions{now: c.Now}, &tries{now: c.Now}, newSearches())
}

// With returns a Page with another Config, for the same users: their sessions go on as far as the
// token and the accounts are the same.
func (p *Page) With(c Config) *Page { return build(c, p.gate.sessions, p.gate.tries, p.searches) }

func build(c Config, s *sessions, t *tries, searches *searches) *Page {
	r := renderer{c.Hostname, c.Now, c.Log}
	p := &Page{renderer: r, c: c, gate: gate{renderer: r, c: c, sessions: s, tries: t}, searches: searches}
	p.survey.now, p.survey.source = c.Now, c.Source
	p.serve = p.guarded(p.routes())
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve.ServeHTTP(w, r) }

func (p *Page) routes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /style.css", asset("style.css", "text/css; charset=utf-8"))
	m.HandleFunc("GET /icon.svg", asset("icon.svg", "image/svg+xml"))
	m.HandleFunc("GET /login", p.gate.loginForm)
	m.HandleFunc("POST /login", p.gate.login)
	m.HandleFunc("POST /logout", p.gate.inside(p.gate.logout))
	m.HandleFunc("GET /{$}", p.gate.inside(p.overview))
	m.HandleFunc("GET /queue", p.gate.inside(p.queue))
	m.HandleFunc("GET /message/{id}", p.gate.inside(p.message))
	m.HandleFunc("GET /find", p.gate.inside(p.find))
	m.HandleFunc("GET /threads", p.gate.inside(p.threads))
	m.HandleFunc("GET /thread", p.gate.inside(p.thread))
	m.HandleFunc("GET /search", p.gate.inside(p.search))
	m.HandleFunc("GET /suspensions", p.gate.inside(p.suspensions))
	m.HandleFunc("GET /orders", p.gate.inside(p.orders))
	m.HandleFunc("GET /order/{id}", p.gate.inside(p.order))
	m.HandleFunc("POST /act", p.gate.inside(p.gate.writing(p.act)))
	m.HandleFunc("POST /suspend", p.gate.inside(p.gate.writing(p.suspend)))
	m.HandleFunc("POST /resume", p.gate.inside(p.gate.writing(p.resume)))
	m.HandleFunc("POST /undo", p.gate.inside(p.gate.writing(p.undo)))
	return m
}
