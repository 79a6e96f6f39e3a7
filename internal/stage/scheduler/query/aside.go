package query

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
)

// ZMailer keeps every open recipient in a thread, and its mailq asks for threads alone.
// Recipients that are held or frozen, on channel hold, or served by no clause are in no
// thread of ours: the classic listings show them as threads in which nothing moves.

// asideKept is for how long a session uses what it has found: mailq asks for each thread.
const asideKept = 10 * time.Second

// asidePlace is the recipients of one channel and host that are in no thread.
type asidePlace struct {
	channel, host string
	messages      []threadMessage
	rcpts         int
	oldest        time.Time
	threaded      bool // this listing has a thread of that channel and host
}

func (p *asidePlace) compare(channel, host string) int {
	return cmp.Or(strings.Compare(p.channel, channel), strings.Compare(p.host, strings.ToLower(host)))
}

// line returns the place for the classic listings.
func (p *asidePlace) line(now time.Time) mailq.ThreadLine {
	return mailq.ThreadLine{Channel: p.channel, Host: p.host, Messages: len(p.messages), Recipients: p.rcpts, Age: store.Since(p.oldest, now)}
}

// partly is a message with recipients that are in no thread, and the threads that have the
// others: those show all that the message has for their host.
type partly struct {
	threadMessage
	threads []*thread.Thread
}

func (m *partly) shownBy(channel, host string) bool {
	return slices.ContainsFunc(m.threads, func(t *thread.Thread) bool { return t.Channel() == channel && strings.EqualFold(t.Host, host) })
}

// aside finds the messages with recipients that are in no thread, a part of the table in a
// turn of the engine.
func (q *snapshots) aside() (list []partly, err error) {
	for part, parts := 0, 1; part < parts && err == nil; {
		err = q.ask(func(v View) {
			for n := 0; part < parts && n < askedAtOnce; part++ {
				parts = v.Messages(part, func(m *thread.Message) {
					n++
					placed, threads := 0, []*thread.Thread(nil)
					m.Vertices(func(v *thread.Vertex) { placed += len(v.Recipients()) })
					if placed >= int(m.Open) {
						return
					}
					m.Vertices(func(v *thread.Vertex) { threads = append(threads, v.Thread) })
					list = append(list, partly{threadMessage{name: m.Name(), id: idOf(m)}, threads})
				})
			}
		})
	}
	return list, err
}

// asides are the places that a session has found, in order.
type asides struct {
	list []*asidePlace // nil: not asked yet
	at   time.Time
}

// find looks for them, unless that was a moment ago.
func (a *asides) find(q *Server) error {
	now := q.Now()
	if a.list != nil && now.Sub(a.at).Abs() < asideKept {
		return nil
	}
	messages, err := q.aside()
	if err != nil {
		return err
	}
	places := []*asidePlace{}
	for i := range messages {
		m := &messages[i]
		for _, w := range q.waiting(&m.threadMessage, nil) {
			if !w.aside() || m.shownBy(w.Channel, w.Host) {
				continue
			}
			at, found := slices.BinarySearchFunc(places, &w, func(p *asidePlace, w *waitingRecipient) int { return p.compare(w.Channel, w.Host) })
			if !found {
				places = slices.Insert(places, at, &asidePlace{channel: w.Channel, host: strings.ToLower(w.Host)})
			}
			p := places[at]
			p.rcpts++
			if p.oldest.IsZero() || w.Accepted.Before(p.oldest) {
				p.oldest = w.Accepted
			}
			if n := len(p.messages); n == 0 || p.messages[n-1].name != m.name {
				p.messages = append(p.messages, m.threadMessage)
			}
		}
	}
	a.list, a.at = places, now
	return nil
}

// aside reports whether a recipient is in no thread.
func (w *waitingRecipient) aside() bool {
	return w.State == "held" || w.State == "frozen" || w.State == "unserved"
}

// threaded notes that a listing has the thread of a channel and host.
func (a *asides) threaded(channel, host string) {
	if p := a.place(channel, host); p != nil {
		p.threaded = true
	}
}

// place is one of those that were found last; nil: there is none.
func (a *asides) place(channel, host string) *asidePlace {
	if at, found := slices.BinarySearchFunc(a.list, 0, func(p *asidePlace, _ int) int { return p.compare(channel, host) }); found {
		return a.list[at]
	}
	return nil
}

// showAside writes what a listing has of recipients that are in no thread, and gives their
// number. A thread's own line includes those of its channel and host.
func (s *session) showAside(k mailq.Kind, now time.Time) (rcpts int, err error) {
	if k == mailq.Threads && len(s.asides.list) > 0 {
		err = s.write(mailq.AppendLine(nil, "-/-/0"))
	}
	shown := 0
	for _, p := range s.asides.list {
		rcpts += p.rcpts
		if p.threaded {
			continue
		}
		shown++
		line := p.line(now)
		text := mailq.AppendThreads2(nil, &line)
		if k == mailq.Threads {
			text = mailq.AppendThreads(nil, &line)
		}
		err = cmp.Or(err, s.write(text))
	}
	if k == mailq.Threads && len(s.asides.list) > 0 {
		err = cmp.Or(err, s.write(mailq.AppendRing(nil, &mailq.RingLine{Threads: shown, Recipients: rcpts})))
	}
	return rcpts, err
}

// showThreadAside writes the recipients of a channel and host that are in no thread. headed:
// the thread's own line was written.
func (s *session) showThreadAside(r mailq.Request, headed bool) error {
	err := s.asides.find(s.q)
	p := s.asides.place(r.Channel, r.Host)
	if err != nil || p == nil {
		return err
	}
	shot := &threadShot{channel: r.Channel, host: r.Host, now: s.q.Now()}
	if !headed {
		line := p.line(shot.now)
		err = s.write(mailq.AppendThreadHead(nil, &line))
	}
	for i := range p.messages {
		for _, w := range s.q.waiting(&p.messages[i], shot) {
			if !w.aside() || err != nil {
				continue
			}
			entry := w.entry(shot)
			err = s.write(mailq.AppendEntry(nil, &entry))
		}
	}
	return err
}
