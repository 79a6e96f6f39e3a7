package router

import (
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/backoff"
)

// How long is waited after trouble before the next attempt (K12).
const (
	firstPause = time.Second
	longest    = time.Minute
)

// scanGap is the least time between two scans of router/ while messages wait: hints
// that were lost in a flood must not cost a scan each.
const scanGap = time.Second

// lastWait is how long messages that have crashed routers let others go first. With
// nothing else to do they are routed at once.
const lastWait = time.Minute

// dispatcher decides which message is routed next. The worker that leads uses it (pool.go).
type dispatcher struct {
	pool
	r     *Router
	hints hintSource
	// submissions takes what users have put into a router directory; nil: they are not copied.
	submissions *collector
	watch       func(dir string) // has hints come of a directory that was made meanwhile
	classes     classes          // of the router directories
	suspects    suspects         // served after those, one at a time
	waitlist    waitlist         // they wait for lookups, and for a place where they may
	// sinceAged and sinceLast are how many messages went since one that had its turn
	// because it was too old for its directory, and since one that had crashed routers.
	sinceAged, sinceLast int
	running              int  // orders that workers have
	alone                bool // what runs has crashed routers: nothing is given beside it

	scanned, recovered time.Time
	wake               alarm // for a scan that no hint asks for

	pause pause            // of all routing: the storage is in trouble
	later map[string]pause // of single messages
}

// pause is a wait that doubles until something succeeds.
type pause struct {
	length time.Duration // 0: none
	until  time.Time
}

// longer starts the pause or doubles it. Failures that were under way when it
// started do not.
func (p *pause) longer(now time.Time) {
	if now.Before(p.until) {
		return
	}
	p.length = backoff.Next(p.length, firstPause, longest)
	p.until = now.Add(p.length)
}

// suspects are the messages that have crashed routers.
type suspects struct {
	queue []job
	since map[string]time.Time // by name: when it was first seen
}

func (s *suspects) has(name string) bool {
	_, ok := s.since[name]
	return ok
}

// mark adds a message that is not in router/ just now.
func (s *suspects) mark(name string, now time.Time) {
	if !s.has(name) {
		s.since[name] = now
	}
}

// add puts a message behind the others, once.
func (s *suspects) add(o job, now time.Time) {
	s.mark(o.name, now)
	if !slices.ContainsFunc(s.queue, func(have job) bool { return have.name == o.name }) {
		o.tried = true
		s.queue = append(s.queue, o)
	}
}

// alarm is a time at which something is due; the zero value: never.
type alarm struct {
	at    time.Time
	clock time.Time // the same on the system's clock
}

// by sets the alarm, if it is not set for earlier.
func (a *alarm) by(at, now time.Time) {
	if a.at.IsZero() || at.Before(a.at) {
		a.at, a.clock = at, time.Now().Add(at.Sub(now))
	}
}

func newDispatcher(r *Router, hints hintSource) *dispatcher {
	return &dispatcher{r: r, hints: hints, later: map[string]pause{}, suspects: suspects{since: map[string]time.Time{}},
		watch: func(string) {}, classes: classes{{dir: r.po.Router.Dir()}}, sinceAged: turns, sinceLast: turns}
}

// next returns what a worker is to get: by directory, and in each by age. A message that
// waits in a lower directory for too long gets each fourth turn. One that has ended
// routers waits until there is nothing else, but not for ever, and runs alone: what dies
// with it would be suspected too (M8).
func (d *dispatcher) next() (o job, ok bool) {
	if d.now().Before(d.pause.until) || d.lonely() {
		return job{}, false
	}
	d.skipTried()
	first, waits := d.classes.first()
	if o, ok, wait := d.nextLast(waits); ok || wait {
		return o, ok
	}
	if o, ok := d.nextSlow(); ok {
		return o, true
	}
	if d.sinceAged >= turns-1 {
		if o, ok := d.classes.aged(d.now().Add(-d.r.c.Aging)); ok {
			return o, true
		}
	}
	return first, waits
}

// skipTried puts those last that have a marker by now: another router died with them. Those
// that wait for a place have their own list.
func (d *dispatcher) skipTried() {
	for _, l := range d.classes {
		for len(l.queue) > 0 && d.waitlist.has(l.queue[0].name) {
			l.queue = l.queue[1:]
		}
	}
	if len(d.suspects.since) == 0 {
		return
	}
	for _, l := range d.classes {
		for len(l.queue) > 0 && d.suspects.has(l.queue[0].name) {
			d.suspects.add(l.queue[0], d.now())
			l.queue = l.queue[1:]
		}
	}
}

// given takes an order off its list.
func (d *dispatcher) given(o job) {
	d.running++
	d.sinceAged, d.sinceLast = d.sinceAged+1, d.sinceLast+1
	if o.slow {
		d.waitlist.take()
		return
	}
	if o.tried {
		d.alone, d.sinceLast = true, 0
		d.suspects.queue = d.suspects.queue[1:]
		return
	}
	if o.aged {
		d.sinceAged = 0
	}
	d.classes.take(o)
}

func (d *dispatcher) now() time.Time { return d.r.c.Now() }

// hint takes a name into the queue without a look at the directory, or scans it.
func (d *dispatcher) hint(h watch.Hint) {
	if h.Name != "" {
		d.named(filepath.Base(h.Dir), h.Name)
		return
	}
	if h.Lost {
		for _, l := range d.classes {
			l.listed = time.Time{} // something has come without a hint
		}
	}
	if d.now().Sub(d.recovered) >= d.r.c.Poll*9/10 {
		d.recover()
	}
	if next := d.scanned.Add(scanGap); d.classes.waiting() > 0 && d.now().Before(next) {
		d.wake.by(next, d.now())
		return
	}
	d.scan()
}

// named is hint for a name that has appeared in a directory.
func (d *dispatcher) named(dir, base string) {
	if ino, ok := postoffice.TriesMarker(base); ok {
		// The marker comes before the message is given back.
		d.suspects.mark(postoffice.RouterName(dir, strconv.FormatUint(ino, 10)), d.now())
		return
	}
	name := postoffice.RouterName(dir, base)
	if p, waits := d.later[name]; waits && d.now().Before(p.until) || d.waitlist.has(name) {
		return
	}
	if l := d.classes.of(dir); l != nil {
		l.queue = append(l.queue, job{name: name, since: d.now()})
	}
}

func (d *dispatcher) recover() {
	d.recovered = d.now()
	if err := d.r.Recover(); err != nil {
		d.trouble(err)
	}
}

// scan makes the queues anew from the directories: all that is in a queue is in its
// directory too, unless somebody else has it by now.
func (d *dispatcher) scan() {
	if d.now().Before(d.pause.until) {
		d.wake.by(d.pause.until, d.now())
		return
	}
	d.scanned = d.now()
	listed, err := d.list()
	if err != nil {
		d.trouble(err)
		return
	}
	d.suspects.queue = slices.DeleteFunc(d.suspects.queue, func(o job) bool { _, ok := listed[o.dir()]; return ok })
	later := map[string]pause{}
	for _, l := range d.classes {
		if list, ok := listed[l.dir]; ok {
			d.sort(l, list, later)
		}
	}
	for name, wait := range d.later {
		// One that is not listed may be another router's claim just now and come back.
		if _, known := later[name]; !known && d.scanned.Before(wait.until.Add(longest)) {
			later[name] = wait
		}
	}
	d.later = later
	d.forgetTried(listed)
}

// list lists the directories that are due, by their names.
func (d *dispatcher) list() (map[string][]postoffice.Pending, error) {
	if err := d.openClasses(); err != nil {
		return nil, err
	}
	listed := map[string][]postoffice.Pending{}
	above := false // something waits in a directory before
	for _, l := range d.classes {
		// Those behind one in which something waits are listed now and then only: hints
		// announce what comes meanwhile.
		if above && d.scanned.Sub(l.listed) < max(d.r.c.Poll, d.r.c.Aging/turns) {
			continue
		}
		list, err := d.r.po.Router.ListDir(l.dir, !d.r.c.Unsorted, d.scanned)
		if err != nil {
			return nil, err
		}
		listed[l.dir] = list
		above = above || slices.ContainsFunc(list, func(p postoffice.Pending) bool {
			_, failed := d.later[p.Name]
			return !failed && p.Tries == 0
		})
	}
	return listed, nil
}

// forgetTried drops what is known of messages that have left router/. A marker's hint
// comes before its message does, so young ones stay.
func (d *dispatcher) forgetTried(listed map[string][]postoffice.Pending) {
	if len(d.suspects.since) == 0 {
		return
	}
	there := map[string]bool{}
	for _, list := range listed {
		for _, p := range list {
			there[p.Name] = p.Tries > 0
		}
	}
	for name, since := range d.suspects.since {
		if _, looked := listed[path.Dir(postoffice.RouterPath(name))]; !looked && d.classes.of(path.Dir(postoffice.RouterPath(name))) != nil {
			continue
		}
		if tries, ok := there[name]; !tries && (ok || d.scanned.Sub(since) > lastWait) {
			delete(d.suspects.since, name)
		}
	}
}

// routed draws the consequences of what became of a message.
func (d *dispatcher) routed(o jobResult) {
	switch {
	case o.err == nil:
		d.fine(o.name)
	case errors.Is(o.err, postoffice.ErrGone):
		// Another router has it.
	case errors.Is(o.err, errNoSlot):
		d.waitlist.add(job{name: o.name, since: d.now(), slow: true})
	case errors.Is(o.err, errStopped):
		// It is in router/ again, and nothing has failed.
	case errors.Is(o.err, postoffice.ErrSubmission):
		// Giving it back gives one more hint, which is passed over.
		d.wait(o.name)
		if d.submissions != nil {
			d.submissions.add(postoffice.RouterPath(o.name))
		}
	case errors.Is(o.err, postoffice.ErrUnsettled), errors.Is(o.err, postoffice.ErrIrregular):
		// Of what is no message, giving it back gives one more hint, which is passed over;
		// a scan does not list it (M5).
		d.wait(o.name)
	case errors.Is(o.err, ErrPanic):
		// That was logged with its stack.
		d.suspects.mark(o.name, d.now())
		d.wait(o.name)
	default:
		d.putBack(o)
	}
}

// wait has a message wait, longer each time.
func (d *dispatcher) wait(name string) {
	p := d.later[name]
	p.longer(d.now())
	d.later[name] = p
	d.wake.by(p.until, d.now())
}

func (d *dispatcher) fine(name string) {
	if d.pause.length != 0 {
		d.pause = pause{}
		d.r.c.Log.Info("storage-recovered")
	}
	if len(d.later) > 0 {
		delete(d.later, name)
	}
	if len(d.suspects.since) > 0 {
		delete(d.suspects.since, name)
	}
}

// putBack has a message wait that could not be routed, and with trouble of the
// storage all others. That the message itself waits longer lets the others pass it
// when the storage is bad in one place only.
func (d *dispatcher) putBack(o jobResult) {
	_, again := d.later[o.name]
	d.wait(o.name)
	if isStorage(o.err) {
		d.trouble(o.err)
		return
	}
	if !again {
		d.r.c.Log.Error("not-routed", "name", postoffice.RouterPath(o.name), "reason", o.err, "again", d.later[o.name].length)
	}
}

// trouble pauses all routing. It is logged once.
func (d *dispatcher) trouble(err error) {
	if d.pause.length == 0 {
		d.r.c.Log.Error("storage-trouble", "reason", err, "longest", longest)
	}
	d.pause.longer(d.now())
	d.wake.by(d.pause.until, d.now())
}
