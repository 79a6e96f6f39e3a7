package sim

import (
	"cmp"
	"hash/fnv"
	"io"
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// Delivery is the recipients that a message has at one host.
type Delivery struct {
	Group string // what the test calls it
	Host  *Host
	Rcpts int

	Arrived  time.Time
	Started  time.Time // of the first attempt, zero if there was none
	Done     time.Time // zero: open
	Outcome  Outcome
	Attempts int // of this simulation
	Deferred int // attempts that ended so for its own sake, those before the simulation included
}

// Outcome is the end of a delivery.
type Outcome uint8

// Outcomes.
const (
	Open Outcome = iota
	Delivered
	Failed
	Expired
)

// Wait returns how long the delivery has waited for its end, or for now if it is open.
func (l *Delivery) Wait(now time.Time) time.Duration {
	if l.Outcome == Open {
		return now.Sub(l.Arrived)
	}
	return l.Done.Sub(l.Arrived)
}

// Message is one to be sent.
type Message struct {
	Group    string
	From     string // sender, for taking turns; "": as Group
	Origin   thread.Origin
	Accepted time.Time // zero: now
	Away     time.Duration
	To       []Destination
}

// Destination is a message's recipients at one host.
type Destination struct {
	Ring    *Ring
	Name    string // channel/host
	Rcpts   int    // 0: 1
	History thread.History
}

// Send queues a message.
func (w *World) Send(m Message) []*Delivery {
	w.number++
	arrived := w.now
	if m.Accepted.IsZero() {
		m.Accepted = w.now
	} else {
		arrived = m.Accepted
	}
	msg := &thread.Message{Number: w.number, Stamp: m.Accepted.UnixNano()}
	msg.SetAway(m.Away)
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, cmp.Or(m.From, m.Group)) // it never fails
	msg.Sender = thread.SenderKey(hash.Sum32(), m.Origin)
	for i := range m.To {
		m.To[i].Rcpts = max(m.To[i].Rcpts, 1)
		msg.Open += int32(m.To[i].Rcpts)
		msg.Total += int32(m.To[i].Rcpts)
	}
	first, offset := len(w.Deliveries), int64(1)
	for i := range m.To {
		d := &m.To[i]
		rcpts := make([]thread.Recipient, d.Rcpts)
		for k := range rcpts {
			rcpts[k] = thread.NewRecipient(offset, "")
			offset++
		}
		l := &Delivery{Group: m.Group, Host: w.Host(d.Name), Rcpts: d.Rcpts, Arrived: arrived}
		if d.History.HostTries == 0 {
			l.Deferred = d.History.Attempts
		}
		l.Host.deliveries++
		w.open++
		w.Deliveries = append(w.Deliveries, l)
		channel, host, _ := strings.Cut(d.Name, "/")
		v := w.core.Add(msg, d.Ring.current(), channel, host, rcpts, d.History, w.now)
		w.deliveries[v] = l
	}
	return w.Deliveries[first:]
}

// SendOne queues a message to one recipient.
func (w *World) SendOne(group string, r *Ring, name string) *Delivery {
	return w.Send(Message{Group: group, To: []Destination{{Ring: r, Name: name}}})[0]
}

// done ends a delivery.
func (w *World) done(v *thread.Vertex, o Outcome) {
	l := w.deliveries[v]
	delete(w.deliveries, v)
	l.Outcome, l.Done = o, w.now
	l.Host.deliveries--
	w.open--
	if o == Delivered {
		l.Host.Delivered++
		l.Host.Last = w.now
	}
}
