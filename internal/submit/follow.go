package submit

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/durable"
	"zmailer/internal/mailq"
	"zmailer/internal/postoffice"
)

// Between two looks at where a message is: at least, and so many times as long as a
// look takes, so that a large queue costs little.
const (
	lookPause = 200 * time.Millisecond
	lookShare = 20
)

// callTime is how long the scheduler may take to answer.
const callTime = 5 * time.Second

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

// follow tells what becomes of the message until it is gone or ctx is done (M44). It is
// accepted, whatever happens here.
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
			list, ended := l.take()
			for i := range list {
				if f.tell(&list[i]) {
					return
				}
			}
			if ended {
				s.say("the scheduler has ended; the message is looked for")
				more = nil
			}
		case <-timer.C:
			began := time.Now()
			if f.look() && more == nil {
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
	gone  bool   // it was not found by the look before
}

// tell says an event of this message; true: it was the last.
func (f *follower) tell(e *event) (last bool) {
	if e.Event == "lost" {
		f.s.say("%d events came too fast to be told", e.Count)
		return false
	}
	if e.ID != f.id.String() {
		return false
	}
	answer := strings.TrimSpace(e.Status + " " + strings.TrimPrefix(e.Reply, e.Status))
	switch e.Event {
	case "routed":
		f.say("queued", "queued for %d recipients", e.Recipients)
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

// look finds the message's file and says where it is, if that is news; true: it is
// nowhere to be seen, twice.
func (f *follower) look() (gone bool) {
	name := f.find()
	if name == "" {
		was := f.gone
		f.gone = true
		if was {
			f.say("gone", "not in the queue any more: every recipient has it, or the sender is told")
		}
		return was
	}
	f.last, f.gone = name, false
	switch dir, base := path.Split(name); {
	case strings.HasPrefix(dir, postoffice.Queue+"/"):
		f.say("queued", "queued")
	case dir == postoffice.Deferred+"/":
		_, why, _ := strings.Cut(base, ".")
		f.say("aside "+why, "it cannot be routed now (%s) and waits in %s", why, name)
	case strings.Contains(base, "-"):
		f.say("routing", "being routed")
	default:
		f.say("waits", "waits for the router in %s", dir)
	}
	return false
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
	for _, dir := range append(dirs, postoffice.Deferred) {
		entries, err := f.fs.ReadDir(dir)
		if err != nil {
			continue // not there, or not for us
		}
		for _, e := range entries {
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
