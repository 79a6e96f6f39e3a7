package router

import (
	"path"
	"slices"
	"time"

	"zmailer/internal/postoffice"
)

// turns is how many messages are routed before one that is due out of order: every fourth
// turn serves mail that waits too long in a lower class, or that has crashed routers.
const turns = 4

// clockSlack is how far ahead of the clock a file's time may be before it means that the
// clock was set back, as for postoffice.ListRouter.
const clockSlack = 10 * time.Second

// class is what waits in one router directory, to be routed in this order.
type class struct {
	dir   string
	queue []job
	// listed is when the directory was; since then hints have added to the queue.
	listed time.Time
}

// openClasses has a class for each router directory that is there: one that is made while
// we run is found here.
func (d *dispatcher) openClasses() error {
	dirs, err := d.r.po.Router.Dirs()
	if err != nil {
		return err
	}
	if slices.EqualFunc(d.classes, dirs, func(l *class, dir string) bool { return l.dir == dir }) {
		return nil
	}
	list := make(classes, 0, len(dirs))
	for _, dir := range dirs {
		l := d.classes.of(dir)
		if l == nil {
			l = &class{dir: dir}
			d.watch(dir)
		}
		list = append(list, l)
	}
	d.classes = list
	return nil
}

// classes are the router directories, in the order in which they are served.
type classes []*class

// of returns the class of a directory, nil if there is none.
func (c classes) of(dir string) *class {
	if i := slices.IndexFunc(c, func(l *class) bool { return l.dir == dir }); i >= 0 {
		return c[i]
	}
	return nil
}

// waiting returns how many messages wait, without those that have crashed routers.
func (c classes) waiting() (n int) {
	for _, l := range c {
		n += len(l.queue)
	}
	return n
}

// first returns the first message of the first class that has one.
func (c classes) first() (o job, ok bool) {
	for _, l := range c {
		if len(l.queue) > 0 {
			return l.queue[0], true
		}
	}
	return job{}, false
}

// aged returns the oldest message of the lower classes, if it has waited since limit.
func (c classes) aged(limit time.Time) (o job, ok bool) {
	for _, l := range c[1:] {
		if len(l.queue) == 0 || l.queue[0].since.After(limit) {
			continue
		}
		if !ok || l.queue[0].since.Before(o.since) {
			o, ok = l.queue[0], true
		}
	}
	o.aged = true
	return o, ok
}

func (c classes) take(o job) {
	if l := c.of(o.dir()); l != nil && len(l.queue) > 0 && l.queue[0].name == o.name {
		l.queue = l.queue[1:]
	}
}

func (o *job) dir() string { return path.Dir(postoffice.RouterPath(o.name)) }

// sort puts the listed messages of a directory in the order in which they are to be
// routed, and aside what has crashed routers or is to wait still. It reports whether
// something is to be routed.
func (d *dispatcher) sort(l *class, list []postoffice.Pending, later map[string]pause) {
	var overdue, again []job
	queue := make([]job, 0, len(list))
	for _, p := range list {
		o := job{name: p.Name, since: waitsSince(p.ModTime, d.now())}
		wait, failed := d.later[p.Name]
		if failed {
			later[p.Name] = wait
		}
		switch {
		case d.waitlist.has(p.Name):
		case failed && d.scanned.Before(wait.until):
			d.wake.by(wait.until, d.now())
		case p.Tries > 0:
			d.suspects.add(o, d.now())
		case failed && d.scanned.Sub(wait.until) >= lastWait:
			overdue = append(overdue, o)
		case failed:
			again = append(again, o)
		default:
			queue = append(queue, o)
		}
	}
	if d.r.c.Unsorted {
		queue = keepOrder(l.queue, queue)
	}
	// Behind the others: one that fails each time must not be the only one tried. Those
	// that this has cost a minute go first, once.
	l.queue = append(append(overdue, queue...), again...)
	l.listed = d.scanned
}

// waitsSince is when a message has begun to wait, by its file's time. A time in the future is
// from before the clock was set back.
func waitsSince(modTime, now time.Time) time.Time {
	switch {
	case modTime.IsZero():
		return now // not asked for
	case modTime.After(now.Add(clockSlack)):
		return time.Time{}
	}
	return modTime
}

// keepOrder has what waited before come first, in the order that it had, so that without
// sorting, too, everything is reached.
func keepOrder(before, listed []job) []job {
	if len(before) == 0 {
		return listed
	}
	there := make(map[string]bool, len(listed))
	for i := range listed {
		there[listed[i].name] = true
	}
	kept := make([]job, 0, len(listed))
	for _, o := range before {
		if there[o.name] {
			delete(there, o.name)
			kept = append(kept, o)
		}
	}
	for _, o := range listed {
		if there[o.name] {
			kept = append(kept, o)
		}
	}
	return kept
}
