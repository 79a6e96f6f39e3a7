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

// line is the place for the classic listings.
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
func (q *Server) aside() (list []partly, err error) {
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

// asidePlaces are the places that a session shows, in order.
func (s *session) asidePlaces() ([]*asidePlace, error) {
	now := s.q.Now()
	if s.asides != nil && now.Sub(s.asidesAt).Abs() < asideKept {
		return s.asides, nil
	}
	messages, err := s.q.aside()
	if err != nil {
		return nil, err
	}
	places := []*asidePlace{}
	for i := range messages {
		m := &messages[i]
		for _, w := range s.q.waiting(&m.threadMessage, nil) {
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
	s.asides, s.asidesAt = places, now
	return places, nil
}

// aside reports whether a recipient is in no thread.
func (w *waitingRecipient) aside() bool {
	return w.State == "held" || w.State == "frozen" || w.State == "unserved"
}

// threaded notes that a listing has the thread of a channel and host.
func (s *session) threaded(channel, host string) {
	if at, found := s.placeOf(channel, host); found {
		s.asides[at].threaded = true
	}
}

// placeOf finds a place among those that were found last.
func (s *session) placeOf(channel, host string) (int, bool) {
	return slices.BinarySearchFunc(s.asides, 0, func(p *asidePlace, _ int) int { return p.compare(channel, host) })
}

// showAside writes what a listing has of recipients that are in no thread, and gives their
// number. A thread's own line stands for those of its channel and host.
func (s *session) showAside(k mailq.Kind, now time.Time) (rcpts int, err error) {
	if k == mailq.Threads && len(s.asides) > 0 {
		err = s.write(mailq.AppendLine(nil, "-/-/0"))
	}
	shown := 0
	for _, p := range s.asides {
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
	if k == mailq.Threads && len(s.asides) > 0 {
		err = cmp.Or(err, s.write(mailq.AppendRing(nil, &mailq.RingLine{Threads: shown, Recipients: rcpts})))
	}
	return rcpts, err
}

// showThreadAside writes the recipients of a channel and host that are in no thread. headed:
// the thread's own line was written.
func (s *session) showThreadAside(r mailq.Request, headed bool) error {
	if _, err := s.asidePlaces(); err != nil {
		return err
	}
	at, found := s.placeOf(r.Channel, r.Host)
	if !found {
		return nil
	}
	err := error(nil)
	p, shot := s.asides[at], &threadShot{channel: r.Channel, host: r.Host, now: s.q.Now()}
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
