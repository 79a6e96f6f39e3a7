package query

import (
	"errors"
	"strconv"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
)

// threadMessage is a message of a thread, as the engine has it.
type threadMessage struct {
	name    string
	id      postoffice.SpoolID
	running bool
	since   time.Time // when it was given to an agent
}

// find looks a thread up. nil: there is none.
func (q *snapshots) find(channel, host string) (t *thread.Thread, shot *threadShot, err error) {
	key := ""
	if s := q.conf.Current().Match(channel, host); s != nil {
		key = s.RingKey(channel, host)
	}
	var ring *ringShot
	err = q.ask(func(v View) {
		if t = v.Core().Find(key, channel, host); t != nil {
			ring = shotOf(t.Ring)
		}
	})
	if err != nil || t == nil {
		return nil, nil, err
	}
	ring.threads = []*thread.Thread{t}
	err = q.each(ring, func(s *threadShot) error {
		one := *s
		shot = &one
		return nil
	})
	if err != nil || shot == nil {
		return nil, nil, err
	}
	return t, shot, nil
}

// messages gives the messages of a thread, a part at a time: while it is read, the
// thread goes on, so that one that came or went meanwhile may be listed or not.
func (q *snapshots) messages(t *thread.Thread, fn func(*threadMessage) error) error {
	for from := 0; ; from += askedAtOnce {
		list := make([]threadMessage, 0, 64)
		err := q.ask(func(View) {
			t.Vertices(from, func(v *thread.Vertex) bool {
				q.visited++
				list = append(list, threadMessage{name: v.Message.Name(), id: idOf(v.Message), running: v.Running(), since: v.Started()})
				return len(list) < askedAtOnce
			})
		})
		if err != nil {
			return err
		}
		for i := range list {
			if err := fn(&list[i]); err != nil {
				return err
			}
		}
		if len(list) < askedAtOnce {
			return nil
		}
	}
}

// showThread answers SHOW THREAD: the open recipients of one channel and host, from the
// files of their messages.
func (s *session) showThread(r mailq.Request) error {
	t, shot, err := s.q.find(r.Channel, r.Host)
	if err != nil {
		return s.stopped()
	}
	return s.block(func() error {
		if t != nil {
			line := shot.line(s.q.Now())
			if err := s.write(mailq.AppendThreadHead(nil, &line)); err != nil {
				return err
			}
			err := s.q.messages(t, func(m *threadMessage) error {
				for _, w := range s.q.waiting(m, shot) {
					entry := w.entry(shot)
					if err := s.write(mailq.AppendEntry(nil, &entry)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return s.showThreadAside(r, t != nil)
	})
}

// waitingRecipient is an open recipient as its file has it.
type waitingRecipient struct {
	message *threadMessage
	index   int
	store.OpenRecipient
}

// waiting reads the open recipients of a message for a thread; shot nil: all. A file that
// is gone has none, and one that cannot be read neither: the log reports that elsewhere.
func (q *Server) waiting(m *threadMessage, shot *threadShot) []waitingRecipient {
	q.reading <- struct{}{}
	defer func() { <-q.reading }()
	channel, host := "", ""
	if shot != nil {
		channel, host = shot.channel, shot.host
	}
	open := q.Store.OpenRecipients(m.name, m.id, channel, host)
	list := make([]waitingRecipient, len(open))
	for i := range open {
		list[i] = waitingRecipient{message: m, index: i, OpenRecipient: open[i]}
	}
	return list
}

// entry returns the recipient for the classic listing.
func (w *waitingRecipient) entry(t *threadShot) mailq.Entry {
	e := mailq.Entry{File: w.message.name, Index: w.index, Sender: w.Sender, Offset: w.Offset, Expires: w.Expires,
		Next: w.Next, Last: w.Last, Tries: w.Tries, Answer: w.Answer}
	if w.message.running && w.message.since.After(e.Last) {
		e.Last = w.message.since
	}
	if t.stats.Until.After(e.Next) {
		e.Next = t.stats.Until
	}
	switch {
	case w.aside():
		e.State = w.State
	case t.stats.State == thread.Suspended && !w.message.running:
		e.State = thread.Suspended
	case w.message.running && t.pid > 0:
		e.State = "running now, pid=" + strconv.Itoa(t.pid)
	case w.message.running:
		e.State = "running now"
	case e.Next.After(t.now):
		e.State = "retry in " + mailq.Span(e.Next.Sub(t.now))
	case t.stats.Limit > 0 && t.stats.Running >= t.stats.Limit:
		e.State = "waiting for thread slot"
	default:
		e.State = "waiting for channel slot"
	}
	if e.Answer == "" {
		e.Answer = t.stats.Trouble
	}
	return e
}

// errNoMessage means that the queue has none of that name.
var errNoMessage = errors.New("no such message in the queue")

// message finds a message by its spool ID or by its name below transport/.
func (q *snapshots) message(id string) (*threadMessage, error) {
	want, err := postoffice.ParseSpoolID(id)
	byID := err == nil
	if !byID {
		n, ok := postoffice.ParseName(id)
		if !ok {
			return nil, errNoMessage
		}
		want.Ino = n.Ino
	}
	var found *threadMessage
	err = q.ask(func(v View) {
		m := v.Message(want.Ino)
		if byID && (m == nil || idOf(m) != want) {
			m = v.MessageOfInode(want.Ino)
		}
		if m == nil || byID && idOf(m) != want || !byID && !m.Named(id) {
			return
		}
		found = &threadMessage{name: m.Name(), id: idOf(m)}
	})
	if err == nil && found == nil {
		err = errNoMessage
	}
	return found, err
}

func idOf(m *thread.Message) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Inode(), MTime: m.Stamp}
}
