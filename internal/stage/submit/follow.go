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
	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// The pause between two scans for a message: at least scanPause, and scanShare times as long
// as a scan takes, so that a large queue costs little.
const (
	scanPause = 200 * time.Millisecond
	scanShare = 20
)

// callTime is how long the scheduler may take to answer. lastEvents is how long its events
// are read after a message has gone: the last one comes a little later.
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

// listener keeps the scheduler's events, from before the message is accepted: a local
// message may be delivered at once.
type listener struct {
	stop context.CancelFunc

	mu     sync.Mutex
	events []event
	ended  bool
	more   chan struct{} // holds one value if there is something new
}

// listen calls the scheduler. It answers to root, its own user and the postoffice's
// owner; why is the reason if it does not.
func (s *submission) listen(ctx context.Context) (l *listener, why string) {
	refused := "the scheduler answers to root and the postoffice's owner"
	if s.PostOffice == "" {
		return nil, "no postoffice was named"
	}
	calling, done := context.WithTimeout(ctx, callTime)
	defer done()
	conn, err := socket.Dial(calling, path.Join(s.PostOffice, postoffice.QuerySocket))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, refused
	case err != nil:
		return nil, "the scheduler is not running"
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
		// After the first line no event is missed.
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
		return nil // of a later version
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

// follow reports the message's progress until it is gone, waits for an operator, or ctx
// is done (M44). It is accepted, whatever happens here.
func (s *submission) follow(ctx context.Context, l *listener, why string, po *postoffice.PostOffice, a postoffice.Accepted) {
	f := follower{s: s, fs: po.FS(), id: a.ID, last: a.Name}
	more := (chan struct{})(nil)
	if l != nil {
		defer l.stop()
		more = l.more
	} else {
		s.say("%s: replies of hosts are not shown", why)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.say("%s is on its way; see zmctl events %s or zmctl why", a.ID, a.ID)
			return
		case <-more:
			last, ended := f.hear(l)
			if last {
				return
			}
			if ended {
				s.say("the scheduler has ended; scanning for the message")
				more = nil
			}
		case <-timer.C:
			began := time.Now()
			w := f.scan()
			if w == aside || w == gone && (more == nil || f.lost || began.Sub(f.missed) >= lastEvents) {
				if l != nil {
					if last, _ := f.hear(l); last {
						return
					}
				}
				f.s.say("%s", f.end)
				return
			}
			timer.Reset(max(scanPause, scanShare*time.Since(began)))
		}
	}
}

// follower is one message on its way.
type follower struct {
	s     *submission
	fs    durable.FS
	id    postoffice.SpoolID
	last  string // the file's name when it was seen last
	state string // the last one that was reported
	lost  bool   // events were lost; the last one may be among them

	missed time.Time // since when the file is not found; zero: it is
	hidden bool      // a directory could not be read
	end    string    // the final report
}

// where is the result of a scan.
type where int

const (
	underway where = iota
	aside          // it waits for an operator
	gone           // two scans did not find it
)

// hear reports the events since the last call; last: no more will come for this message.
func (f *follower) hear(l *listener) (last, ended bool) {
	list, ended := l.take()
	for i := range list {
		if f.report(&list[i]) {
			return true, ended
		}
	}
	return false, ended
}

// report reports an event of this message; true: it was the last.
func (f *follower) report(e *event) (last bool) {
	if e.Event == "lost" {
		f.lost = true
		f.s.say("%d events were lost", e.Count)
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
		f.s.say("%s: %s: %s; the sender gets a report", e.Rcpt, e.Event, answer)
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

// scan finds the message's file and reports where it is, if that has changed.
func (f *follower) scan() where {
	name := f.find()
	if name == "" {
		if f.missed.IsZero() {
			f.missed = time.Now()
			return underway // between two directories
		}
		f.end = "no longer in the queue: delivered, reported to its sender, discarded or removed"
		switch {
		case path.Dir(f.last) == postoffice.Public:
			// The router's copy cannot be read by its submitter.
			f.end = "the router has taken it; the postmaster's log has submitted=" + f.id.String()
		case f.hidden:
			f.end = "no longer in the queue: delivered, reported to its sender, discarded, or set aside for the postmaster"
		}
		return gone
	}
	f.last, f.missed = name, time.Time{}
	switch dir, base := path.Split(name); {
	case strings.HasPrefix(dir, postoffice.Queue+"/"):
		f.say("queued", "queued")
	case dir == postoffice.Deferred+"/":
		_, why, _ := strings.Cut(base, ".")
		f.say("aside "+why, "cannot be routed now (%s); it waits in %s", why, name)
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

// say reports the message's state, once.
func (f *follower) say(state, format string, args ...any) {
	if f.state != state {
		f.state = state
		f.s.say(format, args...)
	}
}

// find searches the file: under its last name, then wherever its submitter may read.
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
			// A name with _ in postman/ is a copy: the message went on.
			rest, ok := strings.CutPrefix(e.Name, number)
			if ok && (rest == "" || rest[0] == '-' || rest[0] == '.') && f.is(dir+"/"+e.Name) {
				return dir + "/" + e.Name
			}
		}
	}
	return ""
}

// is reports whether a name is the message's: inode numbers are reused.
func (f *follower) is(name string) bool {
	info, err := f.fs.Stat(name)
	return err == nil && postoffice.IDOf(info) == f.id
}

// recipients returns a number with its noun.
func recipients(n int) string {
	if n == 1 {
		return "1 recipient"
	}
	return fmt.Sprintf("%d recipients", n)
}
