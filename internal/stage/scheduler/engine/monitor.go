package engine

import (
	"fmt"
	"path"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// monitor raises alarms (A25): it looks every minute, logs what is new and what is over, and
// keeps the file of alarms.
type monitor struct {
	*base
	intake    *intake
	scanner   *scanner
	suspender *suspender

	at      time.Time // of the next look
	looking bool
	board   alarm.Board
	written bool // the file was written by this process
	failing bool // or could not be

	// The oldest message with recipients that are to be delivered, and the number of
	// those: of the last pass over all messages, and of the one under way.
	oldest, seeing int64
	queued, seen   int
	// The oldest of all messages, in the same way.
	first, earliest int64

	still map[*thread.Thread]stillness
	// linked are the names beside queue/ of files that were in it, too, at the last look.
	linked map[string]bool
}

// DefaultMonitorEvery is the time between two checks.
const DefaultMonitorEvery = time.Minute

// see takes a message into the pass over all of them.
func (l *monitor) see(m *thread.Message) {
	if l.earliest == 0 || m.Stamp < l.earliest {
		l.earliest = m.Stamp
	}
	if !m.Waits() {
		return // all of it is held or frozen
	}
	l.seen++
	if l.seeing == 0 || m.Stamp < l.seeing {
		l.seeing = m.Stamp
	}
}

// passed ends a pass.
func (l *monitor) passed() {
	l.oldest, l.queued = l.seeing, l.seen
	l.first = l.earliest
	l.seeing, l.seen, l.earliest = 0, 0, 0
}

// check checks when it is time.
func (e *monitor) check() {
	l := e
	if l.at.IsZero() {
		l.at = e.now.Add(e.conf.MonitorEvery)
	}
	if l.at.After(e.now) || l.looking || e.stopping {
		return
	}
	l.at, l.looking = e.now.Add(e.conf.MonitorEvery), true
	found := append(append(e.stillThreads(), e.refusals()...), e.suspender.alarms()...)
	if l.oldest != 0 {
		if a, ok := alarm.Age("queue", l.queued, time.Unix(0, l.oldest), e.conf.Alarms.Queue, e.now); ok {
			found = append(found, a)
		}
	}
	now, limits := e.now, e.conf.Alarms
	e.pool.do(func() {
		places, linked := e.spool.Standing(limits, now)
		found = append(append(found, places...), e.po.ConfigAlarms(now)...)
		e.post(func() { e.checked(append(found, e.duplicates(linked)...)) })
	})
}

// checked logs what has changed since the last check.
func (e *monitor) checked(found []alarm.Alarm) {
	l := e
	l.looking = false
	raised, cleared := l.board.Update(found)
	for _, a := range raised {
		e.emit(events.AlarmRaised, "kind", a.Kind, "subject", a.Subject, "reason", a.Text)
	}
	for _, a := range cleared {
		e.emit(events.AlarmCleared, "kind", a.Kind, "subject", a.Subject, "since", a.Since.UTC().Format(time.RFC3339))
	}
	text := alarm.Append(nil, l.board.Raised())
	if l.written && len(raised)+len(cleared) == 0 && len(text) == 0 {
		return
	}
	e.pool.do(func() {
		err := e.po.WriteAlarms(text)
		e.post(func() {
			if l.written = err == nil; err != nil && !l.failing {
				e.log.Error("disk", "name", postoffice.AlarmFile, "reason", err, "retry", "at every look")
			}
			l.failing = err != nil
		})
	})
}

// refusals returns the specifications that are left alone.
func (e *monitor) refusals() []alarm.Alarm {
	var list []alarm.Alarm
	for name, r := range e.intake.refused {
		if r.kind != "" {
			list = append(list, alarm.Alarm{Kind: r.kind, Subject: postoffice.Transport + "/" + name, Since: e.now, Text: r.why})
		}
	}
	return list
}

// duplicates are files that are in queue/ under another name: they would be delivered twice.
// One that was on its way there at a look is not at the next.
func (e *monitor) duplicates(linked []string) []alarm.Alarm {
	var list []alarm.Alarm
	now := map[string]bool{}
	for _, name := range linked {
		number, _, _ := strings.Cut(path.Base(name), ".") // what follows is why it is there
		n, ok := postoffice.ParseName(number)
		if !ok {
			continue
		}
		m := e.messages.get(n.Ino)
		if m == nil {
			continue
		}
		if now[name] = true; e.linked[name] {
			list = append(list, alarm.Alarm{Kind: alarm.Duplicate, Subject: name, Since: e.now,
				Text: "it is the same file as " + postoffice.Queue + "/" + m.Name() + ", and would be delivered twice"})
		}
	}
	e.linked = now
	return list
}

// stillness is a thread that could deliver and has begun no attempt since.
type stillness struct {
	begun uint64
	since time.Time
}

// stillThreads returns the threads that make no progress although nothing is known to be
// against it.
func (e *monitor) stillThreads() []alarm.Alarm {
	limit := e.conf.Alarms.Progress
	if limit == 0 || e.scanner.startsNothing() {
		return nil
	}
	var list []alarm.Alarm
	before, now := e.still, map[*thread.Thread]stillness{}
	e.core.Rings(func(r *thread.Ring) {
		r.Threads(func(t *thread.Thread) {
			ready, running, begun := t.Could(e.now)
			if ready == 0 && running == 0 {
				return
			}
			s, known := before[t]
			if !known || s.begun != begun {
				s = stillness{begun, e.now}
			}
			now[t] = s
			if store.Since(s.since, e.now) >= limit {
				list = append(list, alarm.Alarm{Kind: alarm.NoProgress, Subject: t.Channel() + "/" + strings.ToLower(t.Host), Since: e.now,
					Text: fmt.Sprintf("%d deliveries could begin, %d are under way, and none has begun since %s",
						ready, running, s.since.UTC().Format(time.RFC3339))})
			}
		})
	})
	e.still = now
	return list
}
