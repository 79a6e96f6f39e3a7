package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// sessionIdle ends an unused session, sessionLife any.
	sessionIdle = time.Hour
	sessionLife = 12 * time.Hour
	// maxSessions is how many there may be, nameSessions how many of one name. Of more,
	// the one ends that was not used for the longest time.
	maxSessions  = 1000
	nameSessions = 20
)

// session is somebody who is logged in.
type session struct {
	who        string // as the history has it
	name       string // of who came with a password
	account    string // what Config.Account said of it then
	csrf       string // what each of his forms carries
	made, seen time.Time
	// given are the last orders and what became of them.
	given map[string]*Given
}

// sessions are those who are logged in.
type sessions struct {
	now  func() time.Time
	mu   sync.Mutex
	list map[string]*session // by the digest of the cookie's value
}

// secret returns a new one of 256 bits.
func secret() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// NewToken makes a token.
func NewToken() string { return secret() }

// begin lets somebody in and gives his cookie's value.
func (s *sessions) begin(one *session) string {
	value := secret()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[string]*session{}
	}
	for key, old := range s.list {
		if old.over(now) {
			delete(s.list, key)
		}
	}
	s.room(nameSessions, func(old *session) bool { return old.name == one.name })
	s.room(maxSessions, func(*session) bool { return true })
	one.csrf, one.made, one.seen, one.given = secret(), now, now, map[string]*Given{}
	s.list[digest(value)] = one
	return value
}

// room makes room for one more among those that count.
func (s *sessions) room(most int, counts func(*session) bool) {
	n, longest := 0, ""
	for key, one := range s.list {
		if !counts(one) {
			continue
		}
		if n++; longest == "" || one.seen.Before(s.list[longest].seen) {
			longest = key
		}
	}
	if n >= most {
		delete(s.list, longest)
	}
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.seen) > sessionIdle || now.Sub(s.made) > sessionLife
}

func (s *sessions) find(value string) *session {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.list[digest(value)]
	if one == nil || one.over(now) {
		return nil
	}
	one.seen = now
	return one
}

func (s *sessions) end(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, digest(value))
}

// remember keeps what became of an order, for its page.
func (s *sessions) remember(one *session, g *Given) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(one.given) > 20 {
		clear(one.given)
	}
	one.given[g.Order] = g
}

func (s *sessions) given(one *session, order string) *Given {
	s.mu.Lock()
	defer s.mu.Unlock()
	return one.given[order]
}

func digest(s string) string {
	d := sha256.Sum256([]byte(s))
	return string(d[:])
}

func same(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(digest(a)), []byte(digest(b))) == 1
}

// errNoLogin means that a way to log in does not exist any more.
var errNoLogin = errors.New("this login is no longer offered")

// ErrRefused is the only answer to a failed login.
var ErrRefused = errors.New("that is not right")

// gate logs users in and out, and lets their requests through to the pages.
type gate struct {
	renderer
	c        Config
	sessions *sessions
	tries    *tries
}

func (g *gate) bearer(token string) bool {
	return g.c.Token != "" && same(strings.TrimSpace(token), g.c.Token)
}

func (g *gate) admit(ctx context.Context, user, password, from string) (*session, error) {
	if g.c.Login == nil || user == "" || g.c.Machine && g.right(user) == NoRight {
		return nil, ErrRefused
	}
	// Before the password is looked at: if the account changes meanwhile, the session ends.
	account, err := g.account(user)
	if err != nil {
		return nil, err
	}
	name, err := g.c.Login(ctx, user, password, from)
	if err != nil {
		return nil, err
	}
	// A user without rights is refused as late as one with a wrong password: the time reveals nothing.
	if g.right(name) == NoRight {
		return nil, ErrRefused
	}
	return &session{who: "web:" + clean(name), name: name, account: account}, nil
}

// account returns the current fingerprint of an account; "" is that of the token's bearer.
func (g *gate) account(name string) (string, error) {
	switch {
	case name == "" && g.c.Token == "":
		return "", errNoLogin
	case name == "":
		return digest(g.c.Token), nil
	case g.c.Login == nil:
		return "", errNoLogin
	case g.c.Account == nil:
		return "", nil
	}
	return g.c.Account(name)
}

// may returns what a session may do now. It ends when its account is another one.
func (g *gate) may(one *session, cookie string) Right {
	switch account, err := g.account(one.name); {
	case err != nil:
		return NoRight // it is not known; it may come back
	case account != one.account:
		g.sessions.end(cookie)
		return NoRight
	}
	return g.right(one.name)
}

// right returns what who came with a name may do; "" is the token's bearer.
func (g *gate) right(name string) Right {
	if name == "" || g.c.Right == nil {
		return MayWrite
	}
	return g.c.Right(name)
}

func (g *gate) cookieName() string {
	name := "zmweb" + g.c.Cookie
	if g.c.Secure {
		name = "__Host-" + name // a browser takes it from TLS alone
	}
	return name
}

func (g *gate) setCookie(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: g.cookieName(), Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: g.c.Secure, SameSite: http.SameSiteStrictMode})
}

// visit is a request of somebody who is logged in.
type visit struct {
	*session
	r     *http.Request
	w     http.ResponseWriter
	write bool // he may give orders
}

// inside serves those who are logged in, and sends all others to the login.
func (g *gate) inside(serve func(v *visit)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var one *session
		may := NoRight
		if c, err := r.Cookie(g.cookieName()); err == nil {
			if one = g.sessions.find(c.Value); one != nil {
				may = g.may(one, c.Value)
			}
		}
		if may == NoRight {
			to := "/login"
			if r.Method == http.MethodGet && r.URL.Path != "/" {
				to += "?to=" + escape(r.URL.RequestURI())
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
		if r.Method == http.MethodPost && r.ParseForm() != nil {
			http.Error(w, "the form cannot be read", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		v := &visit{session: one, r: r.WithContext(ctx), w: w, write: g.c.Orders != nil && may == MayWrite}
		if r.Method == http.MethodPost && !same(r.PostForm.Get("csrf"), one.csrf) {
			g.fail(v, http.StatusForbidden, "This form is not of this session. Go back, load the page again and repeat it.")
			return
		}
		serve(v)
	}
}

// writing serves what changes something, if that is allowed here.
func (g *gate) writing(serve func(v *visit)) func(v *visit) {
	return func(v *visit) {
		switch {
		case g.c.Orders == nil:
			g.fail(v, http.StatusForbidden, "This page is for reading: zmctl web --write takes orders.")
			return
		case !v.write:
			g.fail(v, http.StatusForbidden, "You may read here: WEBWRITERS names who gives orders.")
			return
		}
		serve(v)
	}
}

// loginForm asks who is there.
func (g *gate) loginForm(w http.ResponseWriter, r *http.Request) {
	g.showLogin(w, r, http.StatusOK, "")
}

func (g *gate) showLogin(w http.ResponseWriter, r *http.Request, code int, trouble string) {
	g.render(w, code, "login", nil, map[string]any{
		"Token": g.c.Token != "", "Accounts": g.c.Login != nil, "Trouble": trouble, "To": inner(r.FormValue("to")),
	})
}

// inner returns where a login leads to: a page of ours and nothing else.
func inner(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

// login checks the form of the login page.
func (g *gate) login(w http.ResponseWriter, r *http.Request) {
	// The whole of it is read first: who sends slowly must not keep a place.
	if r.ParseForm() != nil {
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return
	}
	from := client(r)
	// Guesses of others who come from the same address do not keep the owner out.
	if g.bearer(r.PostForm.Get("token")) {
		g.enter(w, r, from, &session{who: "web", account: digest(g.c.Token)})
		return
	}
	if g.early(w, r, from) {
		return
	}
	leave, err := g.tries.enter(r.Context())
	if err != nil {
		return // he has gone
	}
	defer leave()
	if g.early(w, r, from) { // others of his failed meanwhile
		return
	}
	user, one := r.PostForm.Get("user"), (*session)(nil)
	err = ErrRefused // a wrong token
	if r.PostForm.Get("token") == "" {
		one, err = g.admit(r.Context(), user, r.PostForm.Get("password"), from)
	}
	g.tries.count(from, user, err == nil)
	if err != nil {
		g.log.Warn("login-refused", "client", from, "user", clean(user), "reason", err)
		code, trouble := http.StatusUnauthorized, "That is not right."
		if !errors.Is(err, ErrRefused) {
			code, trouble = http.StatusServiceUnavailable, "This login does not work at the moment; the log has the reason."
		}
		g.showLogin(w, r, code, trouble)
		return
	}
	g.enter(w, r, from, one)
}

// early refuses who has failed too often to try again now.
func (g *gate) early(w http.ResponseWriter, r *http.Request, from string) bool {
	wait := g.tries.wait(from)
	if wait > 0 {
		w.Header().Set("Retry-After", seconds(wait))
		g.showLogin(w, r, http.StatusTooManyRequests, "Too many tries. Wait "+seconds(wait)+" seconds.")
	}
	return wait > 0
}

// enter lets somebody in.
func (g *gate) enter(w http.ResponseWriter, r *http.Request, from string, one *session) {
	g.log.Info("login", "client", from, "who", one.who)
	g.setCookie(w, g.sessions.begin(one), int(sessionLife/time.Second))
	http.Redirect(w, r, inner(r.PostForm.Get("to")), http.StatusSeeOther)
}

func (g *gate) logout(v *visit) {
	if c, err := v.r.Cookie(g.cookieName()); err == nil {
		g.sessions.end(c.Value)
	}
	g.setCookie(v.w, "", -1)
	http.Redirect(v.w, v.r, "/login", http.StatusSeeOther)
}
