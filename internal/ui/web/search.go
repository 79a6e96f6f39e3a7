package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/trace"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
)

// Bounds of a search.
const (
	searchTime    = 30 * time.Second
	searchMost    = 200    // messages
	searchLines   = 50_000 // of the log, about these messages
	searchRows    = 20     // recipients that are shown of a message
	searchesOnce  = 2      // by all users; each takes all processors
	searchSince   = "7d"   // unless something else is asked for
	longestSearch = 500    // bytes of the word
)

// errOther is the cause of the end of a search.
var errOther = errors.New("you have begun another search")

// searches lets each user have one search at a time: the next one ends the one before.
type searches struct {
	mu      sync.Mutex
	running map[string]*running // by user
	places  chan struct{}
}

type running struct {
	stop  context.CancelCauseFunc
	ended chan struct{}
}

func newSearches() *searches {
	return &searches{running: map[string]*running{}, places: make(chan struct{}, searchesOnce)}
}

// begin waits for the place of a search. It has to use the context that is returned. Call end
// at its end.
func (s *searches) begin(ctx context.Context, who string) (of context.Context, end func(), err error) {
	ctx, stop := context.WithCancelCause(ctx)
	mine := &running{stop: stop, ended: make(chan struct{})}
	for {
		old := s.claim(who, mine)
		if old == nil {
			break
		}
		old.stop(errOther)
		select {
		case <-old.ended:
		case <-ctx.Done():
			stop(nil)
			return nil, nil, context.Cause(ctx)
		}
	}
	free := func() {
		s.mu.Lock()
		delete(s.running, who)
		s.mu.Unlock()
		close(mine.ended)
		stop(nil)
	}
	select {
	case s.places <- struct{}{}:
		return ctx, func() { <-s.places; free() }, nil
	case <-ctx.Done():
		err := context.Cause(ctx)
		free()
		return nil, nil, err
	}
}

// claim makes a search that of a user, unless there is one, which it returns.
func (s *searches) claim(who string, mine *running) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.running[who]; old != nil {
		return old
	}
	s.running[who] = mine
	return nil
}

// searchPage is what was asked for and found.
type searchPage struct {
	Word, Since, Until string
	Problem            string
	Asked              bool // a search was made
	Found              []foundMessage
	More               bool // older messages were left out
	Unsearched         bool
}

type foundMessage struct {
	*trace.Life
	Rows []view.FoundRow
	Rest int // recipients that are not in Rows
}

// search looks for the messages of an address, a Message-ID, a user or a client.
func (p *Page) search(v *visit) {
	form := v.r.URL.Query()
	text := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	s := &searchPage{Word: text("word"), Since: text("since"), Until: text("until")}
	if s.Word == "" {
		if !form.Has("since") {
			s.Since = searchSince
		}
		p.render(v.w, http.StatusOK, "search", v, s)
		return
	}
	q, err := s.query(p.c.Now())
	if err != nil {
		s.Problem = clean(err.Error())
		p.render(v.w, http.StatusBadRequest, "search", v, s)
		return
	}
	ctx, end, err := p.searches.begin(v.r.Context(), v.who)
	if err != nil {
		p.unsearched(v, s, err)
		return
	}
	defer end()
	found, err := p.c.Source.Search(ctx, q)
	if cause := context.Cause(ctx); cause != nil {
		p.unsearched(v, s, cause)
		return
	}
	switch {
	case errors.Is(err, view.ErrShortSearch):
		s.Problem = clean(err.Error())
		p.render(v.w, http.StatusBadRequest, "search", v, s)
		return
	case errors.Is(err, context.DeadlineExceeded):
		s.Problem = fmt.Sprintf("The search was stopped after %s; what it had found by then is below. Choose a shorter time.", human.Span(searchTime))
	case err != nil:
		p.c.Log.Error("page-failed", "page", "search", "reason", err)
		s.Problem = clean(err.Error())
	}
	if s.Asked = true; found != nil {
		s.show(found, &q)
	}
	p.render(v.w, http.StatusOK, "search", v, s)
}

// unsearched answers a search that has not come to its end.
func (p *Page) unsearched(v *visit, s *searchPage, cause error) {
	s.Problem = "The search was stopped: " + clean(cause.Error()) + "."
	p.render(v.w, http.StatusConflict, "search", v, s)
}

func (s *searchPage) query(now time.Time) (q view.Search, err error) {
	if len(s.Word) > longestSearch {
		return q, errors.New("the word is too long")
	}
	q = view.Search{Word: s.Word, Most: searchMost, Lines: searchLines}
	for _, x := range []struct {
		name, text string
		to         *time.Time
	}{{"since", s.Since, &q.Since}, {"until", s.Until, &q.Until}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = logread.ParseTime(x.text, now); err != nil {
			return q, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return q, nil
}

// show takes over what was found, the newest message first.
func (s *searchPage) show(found *view.Found, q *view.Search) {
	s.More, s.Unsearched = found.More > 0, found.Unsearched
	for i := len(found.Lives) - 1; i >= 0; i-- {
		m := foundMessage{Life: found.Lives[i], Rows: q.Rows(found.Lives[i], searchRows)}
		if m.Rows[0].Recipient != nil {
			m.Rest = max(len(m.Recipients)+m.Untold-len(m.Rows), 0)
		}
		s.Found = append(s.Found, m)
	}
}

func searchLink(word string) string {
	return "/search?" + url.Values{"word": {word}, "since": {searchSince}}.Encode()
}

// Search implements Source.
func (w *Postoffice) Search(ctx context.Context, q view.Search) (*view.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	s := w.spool()
	t := &view.Tracer{Spool: s, Now: s.Now}
	log, err := logread.Locate(ctx, w.settings)
	if err == nil {
		t.Read(log)
	}
	found, ferr := t.Find(ctx, q)
	return found, errors.Join(ferr, err)
}
