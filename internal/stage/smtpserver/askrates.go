package smtpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// ErrNoRates means that no smtpserver with rates runs.
var ErrNoRates = errors.New("no smtpserver that counts runs")

// RatesQuestion asks who has used most of the rates, or how much one client and sender have.
type RatesQuestion struct {
	Top    int        `json:"top,omitempty"` // how many; 0: the others decide
	Client netip.Addr `json:"client,omitzero"`
	User   string     `json:"user,omitempty"`
	From   string     `json:"from,omitempty"` // the envelope sender
}

const (
	// maxTop bounds an answer.
	maxTop = 1000
	// ratesTime bounds a question and its answer.
	ratesTime = 5 * time.Second
)

// AskRates asks the smtpserver of a postoffice. It reports ErrNoRates if none answers.
func AskRates(ctx context.Context, dir string, q RatesQuestion) (list []limits.Usage, err error) {
	path := filepath.Join(dir, postoffice.RatesSocket)
	ctx, cancel := context.WithTimeout(ctx, ratesTime)
	defer cancel()
	c, err := socket.Dial(ctx, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNoRates
	}
	if err != nil {
		return nil, fmt.Errorf("ask smtpserver at %s: %w", path, err)
	}
	defer c.Close()
	limit, _ := ctx.Deadline()
	err = c.SetDeadline(limit)
	if err == nil {
		err = json.NewEncoder(c).Encode(q)
	}
	if err == nil {
		err = json.NewDecoder(c).Decode(&list)
	}
	if err != nil {
		return nil, fmt.Errorf("ask smtpserver at %s: %w", path, err)
	}
	return list, nil
}

// counts reports whether there are rates for mail or connections: what AskRates is for.
func (c *Config) counts() bool { return c.Limits.CountsAny() || len(c.Access.RateLimits) > 0 }

// rateAnswers answers AskRates, once there are rates.
type rateAnswers struct {
	acceptors *acceptors
	listener  *net.UnixListener // nil: nothing is served
	all       sync.WaitGroup
}

// serve begins to answer if the server of now has rates; what cannot be served is logged.
func (r *rateAnswers) serve() {
	s := r.acceptors.current.Load()
	if r.listener != nil || !s.counts() || s.PostOffice == "" {
		return
	}
	l, err := socket.ListenAlone(filepath.Join(s.PostOffice, postoffice.RatesSocket), 0o600)
	if err != nil {
		s.Log.Error("rates-not-served", "reason", err, "advice", "mail goes on; zmctl rates has no answer")
		return
	}
	r.listener = l
	r.all.Go(func() {
		for { // one question at a time: an operator asks
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			r.answer(c)
		}
	})
}

// stop ends the answers.
func (r *rateAnswers) stop() {
	if r.listener != nil {
		_ = r.listener.Close() // the socket stays, as that of a process that was killed
		r.all.Wait()
	}
}

// answer answers one question. Whoever asks wrongly gets no answer.
func (r *rateAnswers) answer(c *net.UnixConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(ratesTime))
	var q RatesQuestion
	if err := json.NewDecoder(c).Decode(&q); err != nil {
		return
	}
	s := r.acceptors.current.Load()
	list := []limits.Usage{}
	if q.Top > 0 {
		list = append(list, s.limits.Top(min(q.Top, maxTop))...)
	} else if w, err := s.whoIs(s.ctx, q); err == nil {
		list = append(list, s.limits.Of(&w)...)
	} else {
		return
	}
	_ = json.NewEncoder(c).Encode(list)
}

// whoIs returns who a question is about, with the rates that hold.
func (s *server) whoIs(ctx context.Context, q RatesQuestion) (limits.Who, error) {
	w := limits.Who{Addr: q.Client, User: q.User}
	from, err := address.Parse("<" + q.From + ">")
	if err != nil {
		return w, err
	}
	w.Sender = policy.SenderKey(from)
	if s.rules.HasRates() {
		w.UserRates, w.SenderRates, err = s.rules.Rates(ctx, q.User, from)
	}
	return w, err
}
