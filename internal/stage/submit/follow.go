package submit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// Between two looks at where a message is: at least, and so many times as long as a
// look takes, so that a large queue costs little.
const (
	lookPause = 200 * time.Millisecond
	lookShare = 20
)

// callTime is how long the scheduler may take to answer. lastEvents is how long it is
// heard about a message that is gone: it tells that a little later.
const (
	callTime   = 5 * time.Second
	lastEvents = 2 * time.Second
)

// event is a line of the scheduler's JSON EVENTS, as far as it is shown.
type event struct {
	Event      string `json:"event"`
	ID         string `json:"id"`
	Rcpt       string `json:"rcpt"`
	Status     string `json:"status"`
	Reply      string `json:"reply"`
	Next       string `json:"next"`
	Kind       string `json:"kind"`
	Who        string `json:"who"`
	Reason     string `json:"reason"`
	Recipients int    `json:"recipients"`
	Count      int    `json:"count"`
}

// listener keeps what the scheduler tells, from before the message is accepted: a local
// one is delivered before its submitter has looked.
type listener struct {
	stop context.CancelFunc

	mu     sync.Mutex
	events []event
	ended  bool
	more   chan struct{} // holds one value if there is something new
}

// listen calls the scheduler. It answers to root, its own user and the postoffice's
// owner: others, who are not to read of others' mail, are told what can be seen.
func (s *submission) listen(ctx context.Context) (l *listener, why string) {
	refused := "the scheduler answers to root and the postoffice's owner"
	if s.PostOffice == "" {
		return nil, "no postoffice was named"
	}
	calling, done := context.WithTimeout(ctx, callTime)
	defer done()
	conn, err := postoffice.DialSocket(calling, path.Join(s.PostOffice, postoffice.QuerySocket))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, refused
	case err != nil:
		return nil, "the scheduler does not run, or not yet"
	}
	ctx, cancel := context.WithCancel(ctx)
	l = &listener{stop: cancel, more: make(chan struct{}, 1)}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	ready := make(chan bool, 1)
	go func() {
		defer l.end()
		defer cancel()
		defer func() { ready <- false }()
		c, err := mailq.NewClient(conn)
		if err != nil {
			return
		}
		// The first line says that events follow; no event before that is missed.
		_, _ = c.AskFollowing(mailq.Request{Kind: mailq.JSONEvents}, func() { ready <- true }, l.heard)
	}()
	select {
	case ok := <-ready:
		if ok {
			return l, ""
		}
	case <-calling.Done():
		refused = "the scheduler does not answer now"
	}
	cancel()
	return nil, refused
}

func (l *listener) heard(line string) error {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		return nil // of a scheduler that says more than we know
	}
	l.mu.Lock()
	l.events = append(l.events, e)
	l.mu.Unlock()
	l.wake()
	return nil
}

func (l *listener) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.wake()
}

func (l *listener) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *listener) take() (list []event, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, l.events = l.events, nil
	return list, l.ended
}

// follow tells what becomes of the message until it is gone, waits for a person, or ctx
// is done (M44). It is accepted, whatever happens here.
func (s *submission) follow(ctx context.Context, l *listener, why string, po *postoffice.PostOffice, a postoffice.Accepted) {
	f := follower{s: s, fs: po.FS(), id: a.ID, last: a.Name}
	more := (chan struct{})(nil)
	if l != nil {
		defer l.stop()
		more = l.more
	} else {
		s.say("%s: what each recipient's host says is not shown", why)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.say("%s goes its way; zmctl events %s, or zmctl why, tells more", a.ID, a.ID)
			return
		case <-more:
			last, ended := f.hear(l)
			if last {
				return
			}
			if ended {
				s.say("the scheduler has ended; the message is looked for")
				more = nil
			}
		case <-timer.C:
			began := time.Now()
			w := f.look()
			if w == aside || w == gone && (more == nil || f.lost || began.Sub(f.missed) >= lastEvents) {
				if l != nil {
					if last, _ := f.hear(l); last {
						return
					}
				}
				f.s.say("%s", f.end)
				return
			}
			timer.Reset(max(lookPause, lookShare*time.Since(began)))
		}
	}
}

// follower is one message on its way.
type follower struct {
	s     *submission
	fs    durable.FS
	id    postoffice.SpoolID
	last  string // the file's name when it was seen last
	state string // what was said of it last
	lost  bool   // the scheduler has told more than was heard; its end may be among that

	missed time.Time // since when the file is not found; zero: it is
	hidden bool      // a directory was not for us to look into
	end    string    // what is to be said of where it is now, at the end
}

// where is what a look has found.
type where int

const (
	underway where = iota
	aside          // it waits for a person
	gone           // it was not found by two looks
)

// hear says what the scheduler has told since; last: no more will come of this message.
func (f *follower) hear(l *listener) (last, ended bool) {
	list, ended := l.take()
	for i := range list {
		if f.tell(&list[i]) {
			return true, ended
		}
	}
	return false, ended
}

// tell says an event of this message; true: it was the last.
func (f *follower) tell(e *event) (last bool) {
	if e.Event == "lost" {
		f.lost = true
		f.s.say("%d events came too fast to be told", e.Count)
		return false
	}
	if e.ID != f.id.String() {
		return false
	}
	answer := strings.TrimSpace(e.Status + " " + strings.TrimPrefix(e.Reply, e.Status))
	switch e.Event {
	case "routed":
		f.say("queued", "queued for %s", recipients(e.Recipients))
	case "delivered":
		f.s.say("%s: delivered: %s", e.Rcpt, answer)
	case "failed", "expired":
		f.s.say("%s: %s: %s; the sender is told", e.Rcpt, e.Event, answer)
	case "deferred":
		next := ""
		if t, err := time.Parse(time.RFC3339, e.Next); err == nil {
			next = "; next try at " + t.Local().Format(time.TimeOnly)
		}
		f.s.say("%s: deferred: %s%s", e.Rcpt, answer, next)
	case "report":
		f.s.say("a report (%s) to %s", e.Kind, e.Rcpt)
	case "finished":
		f.s.say("finished")
		return true
	default:
		by := ""
		if e.Who != "" {
			by = " by " + e.Who
		}
		f.s.say("%s", strings.TrimSpace(strings.Join([]string{e.Rcpt, e.Event + by, e.Reason}, " ")))
	}
	return false
}

// look finds the message's file and says where it is, if that is news.
func (f *follower) look() where {
	name := f.find()
	if name == "" {
		if f.missed.IsZero() {
			f.missed = time.Now()
			return underway // between two directories
		}
		f.end = "not in the queue any more, nor put aside: delivered, reported to its sender, discarded or removed"
		switch {
		case path.Dir(f.last) == postoffice.Public:
			// What was copied is not for us to look at.
			f.end = "the router has taken it; the postmaster's log has submitted=" + f.id.String()
		case f.hidden:
			f.end = "not in the queue any more: delivered, reported to its sender, discarded, or put aside for the postmaster"
		}
		return gone
	}
	f.last, f.missed = name, time.Time{}
	switch dir, base := path.Split(name); {
	case strings.HasPrefix(dir, postoffice.Queue+"/"):
		f.say("queued", "queued")
	case dir == postoffice.Deferred+"/":
		_, why, _ := strings.Cut(base, ".")
		f.say("aside "+why, "it cannot be routed now (%s) and waits in %s", why, name)
	case dir == postoffice.Freezer+"/":
		_, why, _ := strings.Cut(base, ".")
		f.end = fmt.Sprintf("frozen (%s): it waits for the postmaster in %s", why, name)
		return aside
	case dir == postoffice.Postman+"/":
		f.end = "it cannot be routed: it waits for the postmaster in " + name
		return aside
	case strings.Contains(base, "-"):
		f.say("routing", "being routed")
	default:
		f.say("waits", "waits for the router in %s", dir)
	}
	return underway
}

// say says what the message's state is, once.
func (f *follower) say(state, format string, args ...any) {
	if f.state != state {
		f.state = state
		f.s.say(format, args...)
	}
}

// find looks for the file: under its last name, then wherever a submitter may look.
func (f *follower) find() string {
	if f.is(f.last) {
		return f.last
	}
	number := strconv.FormatUint(f.id.Ino, 10)
	dirs := []string{f.s.dir, postoffice.Router}
	for levels := range 3 {
		dirs = append(dirs, path.Join(postoffice.Queue, postoffice.HashDir(f.id.Ino, levels)))
	}
	f.hidden = false
	for _, dir := range append(dirs, postoffice.Deferred, postoffice.Freezer, postoffice.Postman) {
		entries, err := f.fs.ReadDir(dir)
		if err != nil { // not there, or not for us
			f.hidden = f.hidden || errors.Is(err, fs.ErrPermission)
			continue
		}
		for _, e := range entries {
			// What stands behind a _ in postman/ is a copy: the message went on.
			rest, ok := strings.CutPrefix(e.Name, number)
			if ok && (rest == "" || rest[0] == '-' || rest[0] == '.') && f.is(dir+"/"+e.Name) {
				return dir + "/" + e.Name
			}
		}
	}
	return ""
}

// is tells whether a name is the message's: numbers are given again.
func (f *follower) is(name string) bool {
	info, err := f.fs.Stat(name)
	return err == nil && postoffice.IDOf(info) == f.id
}

// recipients says how many.
func recipients(n int) string {
	if n == 1 {
		return "1 recipient"
	}
	return fmt.Sprintf("%d recipients", n)
}
