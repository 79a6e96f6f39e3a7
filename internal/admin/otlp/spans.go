package otlp

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/trace"
)

// mostSpans and mostEvents are the limits for one message.
const (
	mostSpans  = 1000
	mostEvents = 500
)

// teller makes the spans of one message.
type teller struct {
	Options
	life  *trace.Life
	root  span
	spans []span // below the root
	alike map[string]int
	left  int // that there was no room for
}

// spansOf returns the spans of a message, the root first.
func spansOf(l *trace.Life, o Options) []span {
	t := &teller{Options: o, life: l, alike: map[string]int{}}
	t.root = span{TraceID: TraceID(l.ID), SpanID: rootID(l.ID), Name: "message", Kind: kindInternal, Start: nanos{l.Accepted}, End: nanos{l.Accepted}}
	groups := l.Timed()
	for i := range groups {
		t.step(&groups[i])
	}
	t.head()
	return append([]span{t.root}, t.spans...)
}

// head sets the attributes of the whole message in the root.
func (t *teller) head() {
	l, a := t.life, &t.root.Attributes
	t.common(a)
	if size, err := strconv.ParseInt(l.Size, 10, 64); err == nil {
		a.number("messaging.message.envelope.size", size)
	}
	a.text("zmailer.state", l.State)
	a.number("zmailer.recipients", int64(len(l.Recipients)+l.Untold))
	failed := 0
	for i := range l.Recipients {
		if l.Recipients[i].State == trace.Failed {
			failed++
		}
	}
	if failed > 0 {
		t.root.Status = &status{statusError, fmt.Sprintf("%d of %d recipients failed", failed, len(l.Recipients)+l.Untold)}
	}
	if t.Addresses && l.HasFrom {
		a.text("zmailer.from", "<"+l.From+">")
	}
	if t.left > 0 {
		a.number("zmailer.left_out", int64(t.left))
	}
	if t.root.End.Before(l.Ended) {
		t.root.End = nanos{l.Ended}
	}
	if o := l.Origin; o != nil {
		t.linkTo(o)
	}
	for i := range l.Caused {
		t.linkTo(&l.Caused[i])
	}
}

// linkTo links the trace of another message: one that this is a report on, or that it caused.
func (t *teller) linkTo(c *trace.Caused) {
	k := link{TraceID: TraceID(c.ID), SpanID: rootID(c.ID)}
	k.Attributes.text("messaging.message.id", c.ID)
	k.Attributes.text("zmailer.kind", c.Kind)
	t.root.Links = append(t.root.Links, k)
}

func (t *teller) common(a *attributes) {
	a.text("messaging.system", "zmailer")
	a.text("messaging.message.id", t.life.ID)
}

// step makes of a step a span, or an event in the root.
func (t *teller) step(s *trace.Step) {
	if t.root.End.Before(s.Time) {
		t.root.End = nanos{s.Time}
	}
	switch s.Event {
	case "accepted":
		t.stage(s, "receive", "receive", kindServer, 0)
	case "routed":
		t.stage(s, "route", "process", kindInternal, s.Took)
	case "delivered", "failed", "deferred":
		t.attempt(s)
	case "caused", "finished":
	default:
		t.event(s)
	}
}

// stage is a span for what one program did.
func (t *teller) stage(s *trace.Step, name, kind string, spanKind int, took time.Duration) {
	x := t.span(s, name, spanKind, s.Time.Add(-took), s.Time)
	x.Attributes.text("messaging.operation.name", name)
	x.Attributes.text("messaging.operation.type", kind)
	t.add(x)
}

// attempt is a span for the wait in the queue, and one for the delivery.
func (t *teller) attempt(s *trace.Step) {
	begun := s.Time.Add(-s.Delivery)
	if s.Queue > 0 {
		q := t.span(s, "queue "+s.Channel, kindInternal, begun.Add(-s.Queue), begun)
		q.Attributes.text("messaging.operation.name", "queue")
		q.Attributes.text("messaging.operation.type", "process")
		t.target(&q.Attributes, s)
		t.add(q)
	}
	x := t.span(s, "deliver "+s.Channel, kindClient, begun, s.Time)
	x.Attributes.text("messaging.operation.name", "deliver")
	x.Attributes.text("messaging.operation.type", "send")
	t.target(&x.Attributes, s)
	x.Attributes.text("zmailer.outcome", s.Event)
	x.Attributes.text("zmailer.status", s.Status)
	if s.Event != "delivered" {
		x.Attributes.text("error.type", cmp.Or(s.Status, "_OTHER"))
		x.Status = &status{Code: statusError}
	}
	if t.Addresses {
		x.Attributes.text("zmailer.reply", s.Reply)
		if x.Status != nil {
			x.Status.Message = s.Reply
		}
	}
	t.add(x)
}

// target is the recipient of an attempt.
func (t *teller) target(a *attributes, s *trace.Step) {
	switch host := s.Host; {
	case host == "" || mailbox(s) && !t.Addresses:
		a.text("messaging.destination.name", s.Channel)
	case mailbox(s):
		a.text("messaging.destination.name", s.Channel+"/"+host)
	default:
		a.text("messaging.destination.name", s.Channel+"/"+host)
		address, port := endpoint(host)
		a.text("server.address", address)
		if port > 0 {
			a.number("server.port", port)
		}
	}
	a.number("zmailer.recipients", int64(max(len(s.Recipients), 1)))
	if s.Attempt > 0 {
		a.number("zmailer.attempt", int64(s.Attempt))
	}
	if t.Addresses {
		a.list("zmailer.recipient_addresses", s.Recipients)
	}
}

// mailbox reports whether the host of a step is none: for a mailbox, a file or a program the
// scheduler has the address in its place.
func mailbox(s *trace.Step) bool {
	return s.Channel == "local" || s.Channel == "virtual" || s.Channel == "file" || s.Channel == "pipe" || strings.Contains(s.Host, "@")
}

// endpoint returns a host as the scheduler has it, a name or [address], with or without a
// port.
func endpoint(host string) (address string, port int64) {
	address = host
	digits := ""
	if rest, ok := strings.CutPrefix(host, "["); ok {
		address, digits, _ = strings.Cut(rest, "]")
		digits = strings.TrimPrefix(digits, ":")
	} else if strings.Count(host, ":") == 1 { // more are an IPv6 address
		address, digits, _ = strings.Cut(host, ":")
	}
	if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
		port = int64(n)
	} else if digits != "" {
		address = host // unix:/path
	}
	if len(address) > 5 && strings.EqualFold(address[:5], "IPv6:") { // RFC 5321 §4.1.3
		address = address[5:]
	}
	return address, port
}

// span is one below the root. Its identifier depends on nothing that is left out without
// addresses: who guesses one could try whether it is right. Those that would be alike are
// counted, in the order of the steps.
func (t *teller) span(s *trace.Step, name string, kind int, start, end time.Time) span {
	host := s.Host
	if mailbox(s) {
		host = ""
	}
	key := fmt.Sprintf("%s %s %d %d %s", t.life.ID, name, s.Time.UnixMilli(), s.Attempt, host)
	n := t.alike[key]
	t.alike[key]++
	key = fmt.Sprintf("%s %d", key, n)
	x := span{TraceID: t.root.TraceID, SpanID: digest(key)[:16], ParentID: t.root.SpanID, Name: name, Kind: kind, Start: nanos{start}, End: nanos{end}}
	t.common(&x.Attributes)
	return x
}

func (t *teller) add(x span) {
	if len(t.spans) >= mostSpans {
		t.left++
		return
	}
	if x.Start.Before(t.root.Start.Time) {
		t.root.Start = x.Start // clocks of several programs
	}
	t.spans = append(t.spans, x)
}

// event is what happened to a message at one moment.
func (t *teller) event(s *trace.Step) {
	if len(t.root.Events) >= mostEvents {
		t.left++
		return
	}
	e := event{Time: nanos{s.Time}, Name: s.Event}
	e.Attributes.text("zmailer.who", s.Who)
	e.Attributes.text("zmailer.channel", s.Channel)
	if n := len(s.Recipients); n > 0 {
		e.Attributes.number("zmailer.recipients", int64(n))
	}
	if t.Addresses {
		e.Attributes.text("zmailer.text", s.Text)
		e.Attributes.list("zmailer.recipient_addresses", s.Recipients)
	}
	t.root.Events = append(t.root.Events, e)
}
