package engine

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// A new scheduler.conf is read beside the engine, at SIGHUP or the
// file has changed. One that is bad is refused and the old one stays; a good one takes
// effect in one turn (docs/scheduler.conf.md).

// Reread is where a new scheduler.conf comes from.
type Reread struct {
	File string           // watched for changes; "": a built-in one is used
	Ask  <-chan os.Signal // a reason to read it now; may be nil
	// Read reads it; asked: zmailer.conf, too. Without a Renewal and an error zmailer.conf cannot
	// be used, which was logged. nil: it is read once.
	Read func(asked bool) (*Renewal, error)
}

// Renewal is what a reload has read.
type Renewal struct {
	Conf   *conf.File
	Site   *store.Site    // nil: as before
	Alarms *alarm.Limits  // nil: as before
	Filter *ContentFilter // if Alarms is set
	Look   time.Duration  // SCHEDULERPOLL; 0: as before
	// Accept notes that it is used, and returns for the log which settings of zmailer.conf have
	// changed; nil: zmailer.conf was not read.
	Accept func() []any
}

// reconfiguration has a new scheduler.conf take effect.
type reconfiguration struct {
	*base
	placement *placement
	suspender *suspender
	serveOn   func(socket string) // has the queries served on PARAM mailqsock
	lookEvery func(time.Duration) // has transport/ looked at in another interval

	next map[*thread.Ring]*conf.Settings // while it takes effect
}

// follow reads scheduler.conf again until ctx is done.
func (e *reconfiguration) follow(ctx context.Context) {
	r := e.conf.Reread
	if r.Read == nil {
		return
	}
	var hints <-chan watch.Hint
	if r.File != "" {
		name := filepath.Base(r.File)
		w := watch.New(ctx, []string{filepath.Dir(r.File)}, e.conf.Look, func(s string) bool { return s == name }, e.log)
		defer w.Wait()
		hints = w.C()
	}
	last := e.conf.Conf.Text
	var known fileState // the first hint, which comes at once, has it looked at
	// What is being written is read when it has been left alone for so long.
	gone, quiet := false, time.NewTimer(time.Hour)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Ask:
			known = stateOf(r.File)
			last = e.readAgain(ctx, "asked", last)
			continue
		case <-hints:
		case <-quiet.C:
		}
		now := stateOf(r.File)
		if now == known {
			continue
		}
		if missing := now == (fileState{}); missing && !gone {
			// An operator puts another one in its place.
			gone = true
			quiet.Reset(quietFor)
			continue
		}
		gone = false
		if age := time.Since(now.written); age >= 0 && age < quietFor {
			quiet.Reset(quietFor - age)
			continue
		}
		known = now
		last = e.readAgain(ctx, "changed", last)
	}
}

// quietFor is how long a file must not have been written before it is read by itself.
const quietFor = time.Second

// fileState distinguishes one version of a file from another without reading it.
type fileState struct {
	written time.Time
	size    int64
	inode   uint64
}

func stateOf(file string) fileState {
	info, err := os.Stat(file)
	if err != nil {
		return fileState{}
	}
	s := fileState{written: info.ModTime(), size: info.Size()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = stat.Ino
	}
	return s
}

// readAgain reads the configuration and has the engine go by it if it can be used.
func (e *reconfiguration) readAgain(ctx context.Context, why, last string) (text string) {
	e.conf.Service.Reloading()
	next, err := e.conf.Reread.Read(why == "asked")
	if err == nil && next == nil {
		e.conf.Service.Ready("serves %s; a new zmailer.conf was refused", e.conf.Dir)
		return last
	}
	if err != nil {
		e.conf.Service.Ready("serves %s; a new scheduler.conf was refused", e.conf.Dir)
		for _, err := range conf.Errors(err) {
			e.log.Error("conf-refused", "reason", err, "advice", "the old one stays in use; see scheduler --check-config")
		}
		return last
	}
	if why == "asked" || next.Conf.Text != last {
		used := make(chan []any, 1)
		e.post(func() { used <- e.reconfigure(next) })
		select {
		case attrs := <-used:
			if attrs == nil {
				return last // it stops
			}
			attrs = append([]any{"file", next.Conf.Name, "why", why}, attrs...)
			if next.Accept != nil {
				attrs = append(attrs, next.Accept()...)
			}
			e.log.Info("conf-read", attrs...)
			e.conf.Service.Ready("serves %s", e.conf.Dir)
		case <-ctx.Done():
		}
	} else {
		e.conf.Service.Ready("serves %s", e.conf.Dir)
	}
	return next.Conf.Text
}

// reconfigure has a new configuration take effect. Deliveries under way go on; an agent
// that the new one would have started in another way ends when it has no more of them. It
// returns for the log what has changed; nil: it stops.
func (e *reconfiguration) reconfigure(renewal *Renewal) (attrs []any) {
	if e.stopping {
		return nil
	}
	next := renewal.Conf
	if renewal.Site != nil {
		e.spool.Adopt(*renewal.Site)
	}
	if renewal.Alarms != nil {
		e.conf.Alarms = *renewal.Alarms
		if f := renewal.Filter; f == nil || e.conf.Filter == nil || f.channel != e.conf.Filter.channel || f.host != e.conf.Filter.host {
			e.conf.Filter = f
		}
	}
	if renewal.Look > 0 {
		e.lookEvery(renewal.Look)
	}
	old := e.conf.Conf.Current()
	e.conf.Conf.Replace(next)
	var rings []*thread.Ring
	e.core.Rings(func(r *thread.Ring) { rings = append(rings, r) })
	moved, ended := 0, 0
	e.next = map[*thread.Ring]*conf.Settings{}
	for _, r := range rings {
		moved += e.moveThreads(r, old)
	}
	for _, r := range rings {
		ended += e.resettle(r, old)
	}
	e.next = nil
	e.suspender.regate()
	for m := range e.placement.unserved {
		e.placement.reload(m, nil)
	}
	if old.ReportInterval != next.ReportInterval {
		e.core.Rings(e.lookAtReports)
	}
	e.serveOn(next.MailQSock)
	for _, where := range next.NoEffect {
		e.log.Warn("setting-without-effect", "setting", where)
	}
	return []any{"clauses", next.Clauses(), "threads", moved, "agents", ended}
}

// moveThreads puts the threads of a ring where they belong now, and returns how many have
// gone elsewhere.
func (e *reconfiguration) moveThreads(r *thread.Ring, old *conf.File) (moved int) {
	g := agents.GroupOf(r)
	if g == nil {
		return 0
	}
	next := e.conf.Conf.Current()
	var list, left []*thread.Thread
	r.Threads(func(t *thread.Thread) { list = append(list, t) })
	// A ring without threads goes by whom it was made for.
	settings := next.Match(g.Channel, g.Host)
	if settings != nil && settings.RingKey(g.Channel, g.Host) != r.Key {
		settings = nil
	}
	for _, t := range list {
		s := next.Match(t.Channel(), t.Host)
		if s == nil {
			left = append(left, t) // nothing serves it any more, see feed
			continue
		}
		if s.RingKey(t.Channel(), t.Host) == r.Key {
			settings = s
			continue
		}
		to := e.ring(t.Channel(), t.Host)
		e.core.Move(t, to, e.now)
		if was := old.Match(t.Channel(), t.Host); was == nil || !slices.Equal(s.ReportTimes, was.ReportTimes) {
			e.reportsOf(t)
		}
		moved++
	}
	e.next[r] = settings
	if settings != nil {
		// The ring stays, for others.
		for _, t := range left {
			e.placement.reloadThread(t)
		}
	}
	return moved
}

// resettle gives a ring's agents their new settings and returns how many of them are to end.
func (e *reconfiguration) resettle(r *thread.Ring, old *conf.File) (ended int) {
	g := agents.GroupOf(r)
	if g == nil {
		return 0
	}
	s := e.next[r]
	if s == nil {
		return e.agents.Follow(g, nil)
	}
	e.follows(r, s.Policy)
	if was := old.Match(g.Channel, g.Host); was == nil || !slices.Equal(s.ReportTimes, was.ReportTimes) {
		e.lookAtReports(r)
	}
	return e.agents.Follow(g, s)
}

// ring returns the ring that serves a channel and host, nil if no clause does.
func (e *reconfiguration) ring(channel, host string) *thread.Ring {
	s := e.conf.Conf.Current().Match(channel, host)
	if s == nil {
		return nil
	}
	r := e.core.Ring(s.RingKey(channel, host), s.Policy)
	switch g := agents.GroupOf(r); {
	case g == nil:
		channel, host = strings.Clone(channel), strings.Clone(host)
		agents.NewGroup(r, s, channel, host)
	case g.Retired():
		g.Revive(s)
		e.follows(r, s.Policy)
	}
	if e.next != nil {
		e.next[r] = s
	}
	return r
}

// follows has the threads of a ring wait, take turns and get too old by another policy.
func (e *reconfiguration) follows(r *thread.Ring, p thread.Policy) {
	if reflect.DeepEqual(r.Policy, p) {
		return
	}
	e.core.Follow(r, p, e.now)
}

// reloadThread reads the messages of a thread again.
func (e *placement) reloadThread(t *thread.Thread) {
	seen := map[*thread.Message]bool{}
	t.Vertices(0, func(v *thread.Vertex) bool {
		if v.Waiting() && e.changes.busy[v.Message] == nil {
			seen[v.Message] = true
		}
		return true
	})
	for m := range seen {
		e.reload(m, nil)
	}
}

// goesBy takes note of what a message's specification was read by.
func (e *placement) goesBy(m *thread.Message, l *store.Loaded) {
	if l.Unserved {
		e.unserved[m] = true
	} else {
		delete(e.unserved, m)
	}
	if l.Conf != e.conf.Conf.Current() {
		// The configuration has changed while it was read.
		e.reload(m, nil)
	}
}

// lookAtReports has the messages of a ring looked at for reports that are due by other
// times now.
func (e *reconfiguration) lookAtReports(r *thread.Ring) {
	r.Threads(func(t *thread.Thread) { e.reportsOf(t) })
}

// reportsOf has the messages of a thread looked at, one after the other so that the disk
// is not asked for all of them at once.
func (e *reconfiguration) reportsOf(t *thread.Thread) {
	const pause = time.Millisecond
	at := e.now
	t.Vertices(0, func(v *thread.Vertex) bool {
		at = at.Add(pause)
		if due := e.core.Reminder(v.Message); due.IsZero() || due.After(at) {
			e.core.Remind(v.Message, at)
		}
		return true
	})
}
