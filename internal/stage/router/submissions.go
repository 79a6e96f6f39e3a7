package router

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
)

// collectors is how many submissions are copied at the same time: they share their syncs. Of
// one user there are at most perUser, so that large files of one user do not keep the others waiting.
const (
	collectors = 5
	perUser    = collectors - 1
)

// collector picks up what users have submitted, beside the routing (postoffice.PickUp).
// Users take turns, so that one who submits very much has no other process wait.
type collector struct {
	r     *Router
	hints interface {
		hintSource
		Close()
	}

	mu      sync.Mutex
	more    *sync.Cond
	waiting map[uint32][]string // by user, in the order in which they were found
	turns   []uint32            // the users in waiting, in the order of their turns
	busy    map[uint32]int      // by user, how many are being copied
	known   map[string]struct{} // what waits and what is being copied
	wake    time.Time           // no name in later is due before; zero: none is
	later   map[string]delay    // what could not be copied
	ended   bool
}

// delay is the pause before the next try at a file.
type delay struct {
	pause
	told bool // the log has the reason
}

func newCollector(r *Router, hints *watch.Watcher) *collector {
	c := &collector{r: r, hints: hints, waiting: map[uint32][]string{}, busy: map[uint32]int{}, known: map[string]struct{}{}, later: map[string]delay{}}
	c.more = sync.NewCond(&c.mu)
	return c
}

// run copies until ctx is done; what is begun is finished then.
func (c *collector) run(ctx context.Context) {
	defer context.AfterFunc(ctx, c.hints.Interrupt)()
	var workers sync.WaitGroup
	for range collectors {
		workers.Go(c.work)
	}
	for ctx.Err() == nil {
		for _, h := range c.hints.Await(c.due()) {
			if h.Name != "" {
				c.add(filepath.Base(h.Dir) + "/" + h.Name)
				continue
			}
			c.list()
		}
		c.retry()
	}
	c.mu.Lock()
	c.ended = true
	c.more.Broadcast()
	c.mu.Unlock()
	workers.Wait()
}

// list takes in all that is there.
func (c *collector) list() {
	list, err := c.r.po.Submissions.List()
	if err != nil {
		c.r.c.Log.Warn("recovered", "action", postoffice.Unreadable, "name", postoffice.Public, "reason", err)
		return
	}
	there := make(map[string]struct{}, len(list))
	for _, s := range list {
		there[s.Name] = struct{}{}
		c.put(s.UID, s.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.later, func(name string, p delay) bool {
		_, ok := there[name]
		return !ok && c.r.c.Now().After(p.until)
	})
}

// add takes in a name that was hinted at.
func (c *collector) add(name string) {
	info, err := c.r.po.FS().Stat(name)
	if err == nil {
		c.put(info.UID, name)
		return
	}
	c.mu.Lock()
	delete(c.later, name) // gone; what cannot be looked at is found by the next list
	c.mu.Unlock()
}

func (c *collector) put(uid uint32, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[name]; ok {
		return
	}
	if p, ok := c.later[name]; ok && c.r.c.Now().Before(p.until) {
		return
	}
	c.known[name] = struct{}{}
	if len(c.waiting[uid]) == 0 {
		c.turns = append(c.turns, uid)
	}
	c.waiting[uid] = append(c.waiting[uid], name)
	c.more.Signal()
}

// next waits for a name; ok is false when there is no more to be done. done follows.
func (c *collector) next() (name string, uid uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.turn()
	for ; turn < 0 && !c.ended; turn = c.turn() {
		c.more.Wait()
	}
	if c.ended {
		return "", 0, false
	}
	uid = c.turns[turn]
	c.turns = slices.Delete(c.turns, turn, turn+1)
	c.busy[uid]++
	list := c.waiting[uid]
	if len(list) == 1 {
		delete(c.waiting, uid)
	} else {
		c.waiting[uid] = list[1:]
		c.turns = append(c.turns, uid)
	}
	return list[0], uid, true
}

// turn is whose turn it is, an index of turns; -1: no user waits.
func (c *collector) turn() int {
	return slices.IndexFunc(c.turns, func(uid uint32) bool { return c.busy[uid] < perUser })
}

func (c *collector) work() {
	for {
		name, uid, ok := c.next()
		if !ok {
			return
		}
		_, err := c.r.PickUp(name)
		c.done(name, uid, err)
	}
}

// done notes what became of a name: after an error it waits, longer each time.
func (c *collector) done(name string, uid uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
	if c.busy[uid]--; c.busy[uid] == 0 {
		delete(c.busy, uid)
	}
	c.more.Signal() // the user may have the next turn
	if err == nil || errors.Is(err, postoffice.ErrGone) {
		delete(c.later, name)
		return
	}
	d := c.later[name]
	d.longer(c.r.c.Now())
	// Many of a user's end together: what waits is looked through once in a second.
	d.until = d.until.Truncate(time.Second).Add(time.Second)
	if !d.told && !errors.Is(err, postoffice.ErrUnsettled) {
		d.told = true
		c.r.c.Log.Error("not-picked-up", "name", name, "reason", err, "again", d.length)
	}
	c.later[name] = d
	if c.wake.IsZero() || d.until.Before(c.wake) {
		c.wake = d.until
		c.hints.Interrupt() // it waits for the end of the pause by now
	}
}

// due is when the next name is to be tried again; zero: none waits for that.
func (c *collector) due() (at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake.IsZero() {
		return c.wake
	}
	return time.Now().Add(max(c.wake.Sub(c.r.c.Now()), time.Millisecond))
}

// retry takes in the names whose pauses are over.
func (c *collector) retry() {
	for _, name := range c.over() {
		c.add(name)
	}
}

// over lists the names whose pauses are over, and finds out when the next one is.
func (c *collector) over() (names []string) {
	now := c.r.c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake.IsZero() || now.Before(c.wake) {
		return nil
	}
	c.wake = time.Time{}
	for name, p := range c.later {
		switch _, taken := c.known[name]; {
		case taken: // done looks after it
		case !now.Before(p.until):
			names = append(names, name)
		case c.wake.IsZero() || p.until.Before(c.wake):
			c.wake = p.until
		}
	}
	return names
}

func (r *Router) pickUpAll() error {
	list, err := r.po.Submissions.List()
	for _, s := range list {
		if _, e := r.PickUp(s.Name); !errors.Is(e, postoffice.ErrGone) && !errors.Is(e, postoffice.ErrUnsettled) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// PickUp copies a message that a user has submitted; name is below the postoffice. nil: it
// was, or it was put away because it is none.
func (r *Router) PickUp(name string) (postoffice.PickedUp, error) {
	done, err := r.po.Submissions.PickUp(name)
	if disbelief := (*postoffice.UntrustedError)(nil); errors.As(err, &disbelief) {
		return done, r.quarantineUntrusted(name, disbelief)
	}
	if incomplete := (*postoffice.IncompleteError)(nil); errors.As(err, &incomplete) && !r.po.Submissions.IsInbox(filepath.Dir(name)) {
		// An earlier version let users make it there; no one can complete it now.
		return done, r.putAside(name, err, "uid", incomplete.UID, "size", incomplete.Size)
	}
	if err != nil {
		return done, err
	}
	r.c.Log.Info("picked-up", "id", done.ID, "submitted", done.Was, "uid", done.UID, "name", done.Name, "size", done.Size)
	return done, nil
}

// quarantineUntrusted puts away a file that no daemon may act on.
func (r *Router) quarantineUntrusted(name string, why *postoffice.UntrustedError) error {
	return r.putAside(name, why, "uid", why.UID, "links", why.Nlink, "mode", why.Mode.String())
}

// putAside puts a file into quarantine/, and logs it with attributes.
func (r *Router) putAside(name string, why error, attrs ...any) error {
	to, err := r.po.Aside.Quarantine(name, "foreign")
	if errors.Is(err, postoffice.ErrGone) {
		return nil
	}
	if err != nil {
		return errors.Join(why, err)
	}
	r.c.Log.Warn("disbelieved", append(append([]any{"name", name}, attrs...), "quarantine", to)...)
	return nil
}
