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

	"zmailer/internal/web/desk"
)

const (
	// sessionIdle ends a session that nobody uses, sessionLife any.
	sessionIdle = time.Hour
	sessionLife = 12 * time.Hour
	maxSessions = 1000
	// triesFree are failures of a client without a pause; then each costs triesPause,
	// doubled up to triesLongest.
	triesFree    = 5
	triesPause   = time.Second
	triesLongest = time.Minute
	maxClients   = 1000
	// checksAtOnce bounds how many passwords are looked at, which takes memory.
	checksAtOnce = 2
)

// session is somebody who is logged in.
type session struct {
	who        string // as the history has it
	name       string // of who came with a password
	csrf       string // what each of his forms carries
	made, seen time.Time
	// given are the last orders and what became of them.
	given map[string]*desk.Given
}

// sessions are those who are logged in.
type sessions struct {
	now  func() time.Time
	mu   sync.Mutex
	list map[string]*session // by the digest of the cookie's value
}

// secret is a new one of 256 bits.
func secret() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// NewToken makes a token.
func NewToken() string { return secret() }

// begin lets somebody in and gives his cookie's value.
func (s *sessions) begin(who, name string) string {
	value := secret()
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[string]*session{}
	}
	for key, one := range s.list {
		if one.over(now) {
			delete(s.list, key)
		}
	}
	if len(s.list) >= maxSessions {
		clear(s.list) // all log in again
	}
	s.list[digest(value)] = &session{who: who, name: name, csrf: secret(), made: now, seen: now, given: map[string]*desk.Given{}}
	return value
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.seen) > sessionIdle || now.Sub(s.made) > sessionLife
}

// find gives the session of a cookie's value, nil if there is none.
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
func (s *sessions) remember(one *session, g *desk.Given) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(one.given) > 20 {
		clear(one.given)
	}
	one.given[g.Order] = g
}

func (s *sessions) given(one *session, order string) *desk.Given {
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

// tries counts failures by client.
type tries struct {
	now    func() time.Time
	mu     sync.Mutex
	failed map[string]*failures
	busy   chan struct{}
}

type failures struct {
	n     int
	until time.Time
}

// wait tells for how long a client may not try again.
func (t *tries) wait(from string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.failed[from]; f != nil {
		return f.until.Sub(t.now())
	}
	return 0
}

// count counts what a client tried.
func (t *tries) count(from string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		delete(t.failed, from)
		return
	}
	if t.failed == nil || len(t.failed) >= maxClients {
		t.failed = map[string]*failures{}
	}
	f := t.failed[from]
	if f == nil {
		f = &failures{}
		t.failed[from] = f
	}
	if f.n++; f.n >= triesFree {
		f.until = t.now().Add(min(triesPause<<min(f.n-triesFree, 16), triesLongest))
	}
}

// enter waits for a place to look at a password in.
func (t *tries) enter(ctx context.Context) (leave func(), err error) {
	t.mu.Lock()
	if t.busy == nil {
		t.busy = make(chan struct{}, checksAtOnce)
	}
	busy := t.busy
	t.mu.Unlock()
	select {
	case busy <- struct{}{}:
		return func() { <-busy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ErrRefused is all that a stranger is told.
var ErrRefused = errors.New("that is not right")

// admit tells who may come in with what he says.
func (p *Page) admit(ctx context.Context, token, user, password, from string) (who, name string, err error) {
	token = strings.TrimSpace(token)
	if token != "" {
		if p.c.Token != "" && same(token, p.c.Token) {
			return "web", "", nil
		}
		return "", "", ErrRefused
	}
	// Who may do nothing is not asked about: guesses here must not lock root's account.
	if p.c.Login == nil || user == "" || p.right(user) == NoRight {
		return "", "", ErrRefused
	}
	name, err = p.c.Login(ctx, user, password, from)
	if err != nil {
		return "", "", err
	}
	if p.right(name) == NoRight {
		return "", "", ErrRefused
	}
	return "web:" + clean(name), name, nil
}

// right is what who came with a name may do; "" is the token's bearer.
func (p *Page) right(name string) Right {
	if name == "" || p.c.Right == nil {
		return MayWrite
	}
	return p.c.Right(name)
}

func (p *Page) cookieName() string {
	name := "zmweb" + p.c.Cookie
	if p.c.Secure {
		name = "__Host-" + name // a browser takes it from TLS alone
	}
	return name
}

func (p *Page) setCookie(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: p.cookieName(), Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: p.c.Secure, SameSite: http.SameSiteStrictMode})
}

// visit is a request of somebody who is logged in.
type visit struct {
	*session
	r     *http.Request
	w     http.ResponseWriter
	write bool // he may give orders
}

// inside serves those who are logged in, and sends all others to the login.
func (p *Page) inside(serve func(v *visit)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var one *session
		if c, err := r.Cookie(p.cookieName()); err == nil {
			one = p.sessions.find(c.Value)
		}
		may := NoRight
		if one != nil {
			may = p.right(one.name)
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
		v := &visit{session: one, r: r.WithContext(ctx), w: w, write: p.c.Orders != nil && may == MayWrite}
		if r.Method == http.MethodPost && !same(r.PostForm.Get("csrf"), one.csrf) {
			p.fail(v, http.StatusForbidden, "This form is not of this session. Go back, load the page again and repeat it.")
			return
		}
		serve(v)
	}
}

// writing serves what changes something, if that is allowed here.
func (p *Page) writing(serve func(v *visit)) func(v *visit) {
	return func(v *visit) {
		switch {
		case p.c.Orders == nil:
			p.fail(v, http.StatusForbidden, "This page is for reading: zmctl web --write takes orders.")
			return
		case !v.write:
			p.fail(v, http.StatusForbidden, "You may read here: WEBWRITERS names who gives orders.")
			return
		}
		serve(v)
	}
}

// loginForm asks who is there.
func (p *Page) loginForm(w http.ResponseWriter, r *http.Request) {
	p.showLogin(w, r, http.StatusOK, "")
}

func (p *Page) showLogin(w http.ResponseWriter, r *http.Request, code int, trouble string) {
	p.render(w, code, "login", nil, map[string]any{
		"Token": p.c.Token != "", "Accounts": p.c.Login != nil, "Trouble": trouble, "To": inner(r.FormValue("to")),
	})
}

// inner is where a login leads to: a page of ours and nothing else.
func inner(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

// login looks at what a stranger says.
func (p *Page) login(w http.ResponseWriter, r *http.Request) {
	from := client(r)
	leave, err := p.tries.enter(r.Context())
	if err != nil {
		return // he has gone
	}
	defer leave()
	if wait := p.tries.wait(from); wait > 0 {
		w.Header().Set("Retry-After", seconds(wait))
		p.showLogin(w, r, http.StatusTooManyRequests, "Too many tries. Wait "+seconds(wait)+" seconds.")
		return
	}
	user := r.PostFormValue("user")
	who, name, err := p.admit(r.Context(), r.PostFormValue("token"), user, r.PostFormValue("password"), from)
	p.tries.count(from, err == nil)
	if err != nil {
		p.c.Log.Warn("login-refused", "client", from, "user", clean(user), "reason", err)
		code, trouble := http.StatusUnauthorized, "That is not right."
		if !errors.Is(err, ErrRefused) {
			code, trouble = http.StatusServiceUnavailable, "Nobody can log in that way now; the log tells why."
		}
		p.showLogin(w, r, code, trouble)
		return
	}
	p.c.Log.Info("login", "client", from, "who", who)
	p.setCookie(w, p.sessions.begin(who, name), int(sessionLife/time.Second))
	http.Redirect(w, r, inner(r.PostFormValue("to")), http.StatusSeeOther)
}

func (p *Page) logout(v *visit) {
	if c, err := v.r.Cookie(p.cookieName()); err == nil {
		p.sessions.end(c.Value)
	}
	p.setCookie(v.w, "", -1)
	http.Redirect(v.w, v.r, "/login", http.StatusSeeOther)
}
