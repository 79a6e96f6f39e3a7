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
	classes := make([]*class, 0, len(dirs))
	for _, dir := range dirs {
		l := d.class(dir)
		if l == nil {
			l = &class{dir: dir}
			d.watch(dir)
		}
		classes = append(classes, l)
	}
	d.classes = classes
	return nil
}

// class is that of a directory, nil if there is none.
func (d *dispatcher) class(dir string) *class {
	for _, l := range d.classes {
		if l.dir == dir {
			return l
		}
	}
	return nil
}

// empty reports whether nothing waits but messages that have crashed routers.
func (d *dispatcher) empty() bool {
	return !slices.ContainsFunc(d.classes, func(l *class) bool { return len(l.queue) > 0 })
}

// first is the message that comes by its directory: the first of the first that has one.
func (d *dispatcher) first() (o job, ok bool) {
	for _, l := range d.classes {
		if len(l.queue) > 0 {
			return l.queue[0], true
		}
	}
	return job{}, false
}

// aged is the oldest of the messages that have waited too long in a lower directory:
// each fourth turn is theirs, so that they end, however much comes before them.
func (d *dispatcher) aged() (o job, ok bool) {
	if d.sinceAged < turns-1 || len(d.classes) < 2 {
		return job{}, false
	}
	limit := d.now().Add(-d.r.c.Aging)
	for _, l := range d.classes[1:] {
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

// take takes an order off its class.
func (d *dispatcher) take(o job) {
	if l := d.class(o.dir()); l != nil && len(l.queue) > 0 && l.queue[0].name == o.name {
		l.queue = l.queue[1:]
	}
}

// dir is the directory that the message is in.
func (o *job) dir() string { return path.Dir(postoffice.RouterPath(o.name)) }

// isDue reports whether a directory is to be listed: the ones behind one in which something
// waits are not, but for now and then. Hints tell of what comes meanwhile.
func (d *dispatcher) isDue(l *class, above bool) bool {
	return !above || d.scanned.Sub(l.listed) >= max(d.r.c.Poll, d.r.c.Aging/turns)
}

// sort puts the listed messages of a directory in the order in which they are to be
// routed, and aside what has crashed routers or is to wait still. It reports whether
// something is to be routed.
func (d *dispatcher) sort(l *class, list []postoffice.Pending, later map[string]pause) {
	var overdue, again []job
	queue := make([]job, 0, len(list))
	for _, p := range list {
		o := job{name: p.Name, since: d.since(p.ModTime)}
		wait, failed := d.later[p.Name]
		if failed {
			later[p.Name] = wait
		}
		switch {
		case d.waitlist.has(p.Name):
		case failed && d.scanned.Before(wait.until):
			d.wakeBy(wait.until)
		case p.Tries > 0:
			d.putLast(o)
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

// since is when a message has begun to wait, by its file's time. A time in the future is
// from before the clock was set back.
func (d *dispatcher) since(modTime time.Time) time.Time {
	switch now := d.now(); {
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
