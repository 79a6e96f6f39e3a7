package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
)

// json writes one line.
func (s *session) json(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return s.write(mailq.AppendLine(nil, string(line)))
}

// jsonStatus answers JSON STATUS by what the engine counts: no message is looked at.
func (s *session) jsonStatus() error {
	i := mailq.StatusInfo{PID: os.Getpid()}
	err := s.q.threads(func(v View) {
		st := v.Status()
		i.Suspensions = st.Suspensions
		i.Now, i.UptimeSeconds = v.Now().UTC(), int64(st.Uptime/time.Second)
		i.Messages, i.Refused, i.Agents, i.Idle = st.Messages, st.Refused, st.Agents, st.Idle
		i.MessagesIn, i.MessagesOut, i.RecipientsIn, i.RecipientsOut = st.MessagesIn, st.MessagesOut, st.RecipientsIn, st.RecipientsOut
		i.Attempts, i.Deliveries, i.Deferrals, i.Failures = st.Attempts, st.Deliveries, st.Deferrals, st.Failures
		i.MostAtOnce, i.Scanned = s.q.most, st.Scanned
		if st.First != 0 {
			i.OldestSeconds = int64(store.Since(time.Unix(0, st.First), v.Now()) / time.Second)
		}
		v.Core().Rings(func(*thread.Ring) { i.Rings++ })
	}, func(v View, t *thread.Thread) {
		i.Threads++
		i.Recipients += t.Brief(v.Now()).Recipients
	})
	if err != nil {
		return s.stopped()
	}
	return s.block(func() error { return s.json(&i) })
}

// json returns the thread as JSON.
func (t *threadShot) json(now time.Time) mailq.ThreadInfo {
	i := mailq.ThreadInfo{Channel: t.channel, Host: t.host, State: t.stats.State, Messages: t.stats.Vertices, Recipients: t.stats.Recipients,
		Ready: t.stats.Ready, Running: t.stats.Running, Limit: t.stats.Limit, Attempts: t.stats.Attempts, Tries: t.stats.Tries,
		Until: t.stats.Until, Oldest: t.stats.Oldest, Trouble: t.stats.Trouble, Crowd: t.stats.Crowd,
		Clause: t.ring.clause, RingRunning: t.ring.running, MaxRing: t.ring.maxRing, MaxChannel: t.ring.maxChannel,
		MaxThread: t.ring.maxThread, PID: t.pid, Suspended: suspendedInfo(t.stats.Suspension)}
	if t.stats.Until.After(now) {
		i.WaitSeconds = int64((t.stats.Until.Sub(now) + time.Second - 1) / time.Second)
	}
	if !t.stats.Oldest.IsZero() {
		i.OldestSeconds = int64(store.Since(t.stats.Oldest, now) / time.Second)
	}
	return i
}

func suspendedInfo(s *thread.Suspension) *mailq.SuspendedInfo {
	if s == nil {
		return nil
	}
	return &mailq.SuspendedInfo{Order: s.Order, Subject: s.Subject, By: s.Who, Reason: s.Reason, Since: s.Since, Until: s.Until}
}

// jsonThread answers JSON THREAD: the thread, then its recipients.
func (s *session) jsonThread(r mailq.Request) error {
	t, shot, err := s.q.find(r.Channel, r.Host)
	switch {
	case err != nil:
		return s.stopped()
	case t == nil:
		return s.no("no such thread")
	}
	return s.block(func() error {
		if err := s.json(shot.json(shot.now)); err != nil {
			return err
		}
		return s.q.messages(t, func(m *threadMessage) error {
			for _, w := range s.q.waiting(m, shot) {
				if err := s.json(w.json()); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// json returns the recipient as JSON.
func (w *waitingRecipient) json() mailq.WaitingInfo {
	return mailq.WaitingInfo{ID: w.message.id.String(), Name: w.message.name, Channel: w.Channel, Host: w.Host, Rcpt: w.Address, From: w.Sender,
		State: w.State, Attempts: w.Tries, Accepted: w.Accepted, Next: w.Next, Last: w.Last, Expires: w.Expires,
		Until: w.Until, Cause: w.Cause, Status: w.Status, Answer: w.Answer}
}

// mostWhys is for how many threads of a message it is shown why they wait.
const mostWhys = 100

// jsonMessage answers JSON MESSAGE: why this message waits.
func (s *session) jsonMessage(r mailq.Request) error {
	m, err := s.q.message(r.ID)
	switch {
	case errors.Is(err, errStopped):
		return s.stopped()
	case err != nil:
		return s.no(err.Error())
	}
	info := mailq.MessageInfo{ID: m.id.String(), Name: m.name, Why: []mailq.WhyInfo{}, Recipients: []mailq.WaitingInfo{}}
	if err := s.q.ask(func(v View) { s.q.whys(v, m, &info) }); err != nil {
		return s.stopped()
	}
	for _, w := range s.q.waiting(m, nil) {
		info.Recipients = append(info.Recipients, w.json())
	}
	return s.block(func() error { return s.json(&info) })
}

// whys fills in what the engine knows; it is the engine that calls it.
func (q *snapshots) whys(view View, m *threadMessage, info *mailq.MessageInfo) {
	n, _ := postoffice.ParseName(m.name)
	x := view.Message(n.Ino)
	if x == nil || idOf(x) != m.id {
		return
	}
	now := view.Now()
	info.Open, info.Total = int(x.Open), int(x.Total)
	x.Vertices(func(v *thread.Vertex) {
		if q.visited++; q.visited > mostWhys {
			info.More = true
			return
		}
		t := v.Thread
		shot := threadShot{ring: shotOf(t.Ring), channel: t.Channel(), host: t.Host, stats: t.Brief(now), now: now}
		why := mailq.WhyInfo{Thread: shot.json(now), Text: shot.why(v)}
		if s := view.Core().Suspended(v); s != nil && v.Waiting() {
			why.Text, why.Suspended = suspendedText(s), suspendedInfo(s)
		}
		info.Why = append(info.Why, why)
	})
}

// why is in words why a part of a message waits.
func (t *threadShot) why(v *thread.Vertex) string {
	full := func(running, limit int) bool { return limit > 0 && running >= limit }
	s := &t.stats
	switch {
	case v.Running():
		return "an agent delivers it, since " + v.Started().Format(time.TimeOnly)
	case !v.Waiting():
		return "what became of its last attempt is being written down"
	case s.State == thread.Paused:
		return "its clause " + t.ring.clause + " of scheduler.conf has queueonly: it is delivered when its host asks for it with ETRN, or at zmctl retry"
	case s.State == thread.Throttled:
		return "the rate of its clause is used up until " + s.Until.Format(time.TimeOnly)
	case s.Until.After(t.now) && s.Tries > 0:
		text := fmt.Sprintf("its host failed %s; it is tried again at %s", inRow(s.Tries), s.Until.Format(time.RFC3339))
		if s.Trouble != "" {
			text += "; its reply: " + strings.TrimSpace(s.Trouble)
		}
		return text
	case s.State == thread.NoPlace:
		return "it waits for a place: " + s.Crowd + " (maxunproven)"
	case s.State == thread.Probing:
		return "its host was in trouble; another message is the probe"
	case full(s.Running, s.Limit):
		return fmt.Sprintf("its thread has all of its %d places taken", s.Limit)
	case full(t.ring.running, t.ring.maxRing):
		return fmt.Sprintf("its ring has all of its %d places taken (maxring)", t.ring.maxRing)
	case s.Ready == 0:
		return "it waits for its own next attempt, at " + v.Next().Format(time.RFC3339)
	}
	return "it waits for its turn, for an agent or for room in its channel"
}

// suspendedText is in words that mail waits because of an operator's decision.
func suspendedText(s *thread.Suspension) string {
	text := "deliveries are suspended: " + s.Subject
	if s.Who != "" {
		text += ", by " + s.Who
	}
	if !s.Until.IsZero() {
		text += ", until " + s.Until.Format(time.RFC3339)
	}
	if s.Reason != "" {
		text += ", reason " + strconv.Quote(s.Reason)
	}
	return text
}

// inRow returns how often something failed without a success between.
func inRow(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}
