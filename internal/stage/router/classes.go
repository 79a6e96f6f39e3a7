package router

import (
	"path"
	"slices"
	"time"

	"zmailer/internal/postoffice"
)

// turns is how many messages go before one that is due whatever is before it: mail that
// waits too long in a lower directory, or that has ended routers, gets each so manieth.
const turns = 4

// clockSlack is how far ahead of the clock a file's time may be before it says that the
// clock was set back, as for postoffice.ListRouter.
const clockSlack = 10 * time.Second

// lane is what waits in one router directory, to be routed in this order.
type lane struct {
	dir   string
	queue []order
	// listed is when the directory was; since then hints have added to the queue.
	listed time.Time
}

// openLanes has a lane for each router directory that is there: one that is made while
// we run is found here.
func (d *dispatcher) openLanes() error {
	dirs, err := d.r.po.Router.Dirs()
	if err != nil {
		return err
	}
	if slices.EqualFunc(d.lanes, dirs, func(l *lane, dir string) bool { return l.dir == dir }) {
		return nil
	}
	lanes := make([]*lane, 0, len(dirs))
	for _, dir := range dirs {
		l := d.lane(dir)
		if l == nil {
			l = &lane{dir: dir}
			d.watch(dir)
		}
		lanes = append(lanes, l)
	}
	d.lanes = lanes
	return nil
}

// lane is that of a directory, nil if there is none.
func (d *dispatcher) lane(dir string) *lane {
	for _, l := range d.lanes {
		if l.dir == dir {
			return l
		}
	}
	return nil
}

// empty tells that nothing waits but what has ended routers.
func (d *dispatcher) empty() bool {
	return !slices.ContainsFunc(d.lanes, func(l *lane) bool { return len(l.queue) > 0 })
}

// first is the message that comes by its directory: the first of the first that has one.
func (d *dispatcher) first() (o order, ok bool) {
	for _, l := range d.lanes {
		if len(l.queue) > 0 {
			return l.queue[0], true
		}
	}
	return order{}, false
}

// aged is the oldest of the messages that have waited too long in a lower directory:
// each fourth turn is theirs, so that they end, however much comes before them.
func (d *dispatcher) aged() (o order, ok bool) {
	if d.sinceAged < turns-1 || len(d.lanes) < 2 {
		return order{}, false
	}
	limit := d.now().Add(-d.r.c.Aging)
	for _, l := range d.lanes[1:] {
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

// take takes an order off its lane.
func (d *dispatcher) take(o order) {
	if l := d.lane(o.dir()); l != nil && len(l.queue) > 0 && l.queue[0].name == o.name {
		l.queue = l.queue[1:]
	}
}

// dir is the directory that the message is in.
func (o *order) dir() string { return path.Dir(postoffice.RouterPath(o.name)) }

// isDue tells whether a directory is to be listed: the ones behind one in which something
// waits are not, but for now and then. Hints tell of what comes meanwhile.
func (d *dispatcher) isDue(l *lane, above bool) bool {
	return !above || d.scanned.Sub(l.listed) >= max(d.r.c.Poll, d.r.c.Aging/turns)
}

// sort puts the listed messages of a directory in the order in which they are to be
// routed, and aside what has ended routers or is to wait still. It tells whether
// something is to be routed.
func (d *dispatcher) sort(l *lane, list []postoffice.Pending, later map[string]pause) {
	var overdue, again []order
	queue := make([]order, 0, len(list))
	for _, p := range list {
		o := order{name: p.Name, since: d.since(p.ModTime)}
		wait, failed := d.later[p.Name]
		if failed {
			later[p.Name] = wait
		}
		switch {
		case d.crowd.has(p.Name):
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
func keepOrder(before, listed []order) []order {
	if len(before) == 0 {
		return listed
	}
	there := make(map[string]bool, len(listed))
	for i := range listed {
		there[listed[i].name] = true
	}
	kept := make([]order, 0, len(listed))
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
