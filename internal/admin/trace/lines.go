package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/logging"
)

// FromLog makes a step of a line of the log. ok: it is about this message, or about one
// of which this is a report or copy.
func FromLog(l *logging.Line, id string) (s Step, ok bool) {
	of := l.Get("id")
	if of != id && l.Get("orig-id") == id && (l.Event == "accepted" || l.Event == "routed") {
		return Step{Time: l.Time, Event: Filtered, Told: []string{Log}, Program: l.Program, Other: of, Kind: Filtered,
			Text: "the content filter has given it back, as " + of}, true
	}
	if of != id {
		if l.Get("report") != id && l.Get("copy") != id {
			return Step{}, false
		}
		s = Step{Time: l.Time, Event: "caused", Told: []string{Log}, Program: l.Program, Other: of, Kind: l.Get("kind")}
		if s.Kind == "" {
			s.Kind = "copy"
		}
		s.Text = "it is a report (" + s.Kind + ") on " + of
		if s.Kind == "copy" {
			s.Text = "it is a copy of " + of + ", made for recipients that are routed again"
		}
		return s, true
	}
	s = Step{Time: l.Time, Event: l.Event, Told: []string{Log}, Program: l.Program, Channel: l.Get("channel"), Host: l.Get("host"),
		Status: l.Get("status"), Reply: l.Get("reply"), Who: l.Get("who"), from: l.Get("from"), size: l.Get("size")}
	s.Relay, s.Original = l.Get("relay"), l.Get("orig-rcpt")
	switch l.Event {
	case "accepted":
		s.in = In{Client: l.Get("client"), ClientName: l.Get("client-name"), Helo: l.Get("helo"), User: l.Get("user"), Protocol: l.Get("protocol"),
			TLS: l.Get("tls"), Cipher: l.Get("cipher"), Verified: l.Get("verified")}
		if client := l.Get("orig-client"); client != "" {
			s.in.Through, s.in.Client, s.in.ClientName, s.in.Helo = s.in.Client, client, l.Get("orig-client-name"), l.Get("orig-helo")
		}
		s.in.OriginalID = l.Get("orig-id")
	case "routed", "queued":
		s.in.OriginalID = l.Get("orig-id")
		s.in.MessageID = l.Get("message-id")
	default:
		s.TLS, s.Cipher, s.Verified = l.Get("tls"), l.Get("cipher"), l.Get("verified")
	}
	s.Attempt, _ = strconv.Atoi(l.Get("attempt"))
	s.count, _ = strconv.Atoi(l.Get("rcpts"))
	s.Next, _ = time.Parse(time.RFC3339Nano, l.Get("next"))
	s.Until, _ = time.Parse(time.RFC3339Nano, l.Get("until"))
	s.Fresh = l.Get("fresh") == "true" || l.Event == "thawed"
	for key, d := range map[string]*time.Duration{"routing": &s.Routing, "queue": &s.Queue, "delivery": &s.Delivery} {
		if spent, known := l.Duration(key); known {
			*d, s.timed = spent, true
		}
	}
	switch l.Event {
	case "routed":
		s.Took, _ = l.Duration("took")
	case "report":
		s.Other, s.Kind = l.Get("report"), l.Get("kind")
	case "rerouted":
		s.Other, s.Kind = l.Get("copy"), "copy"
	}
	if r := l.Get("rcpt"); r != "" && l.Event != "report" {
		s.Recipients = []string{r}
	}
	s.Text = words(l, &s)
	return s, true
}

func words(l *logging.Line, s *Step) string {
	who := ""
	if len(s.Recipients) > 0 {
		who = "<" + s.Recipients[0] + ">"
		if s.Host != "" && s.Channel != "" {
			who += " over " + s.Channel + "/" + s.Host
		}
	}
	by := ""
	if s.Who != "" {
		by = " by " + s.Who
	}
	if reason := l.Get("reason"); reason != "" {
		by += ": " + reason
	}
	if order := l.Get("order"); order != "" {
		by += " (order " + order + ")"
	}
	switch l.Event {
	case "accepted":
		if s.size == "" { // of a log of Postfix's form
			return "accepted from client " + origin(&s.in)
		}
		return "accepted from <" + s.from + ">, " + s.size + " bytes, to " + recipients(s.count) + " in the envelope, from client " + origin(&s.in)
	case "routed":
		text := "routed to " + recipients(s.count) + ", in the queue as " + l.Get("name")
		if s.in.MessageID != "" {
			text += ", Message-ID " + s.in.MessageID
		}
		return text
	case "delivered", "failed", "deferred":
		text := l.Event + " " + who
		if s.Original != "" {
			text += ", for <" + s.Original + ">"
		}
		if s.Attempt > 0 {
			text += fmt.Sprintf(", attempt %d", s.Attempt)
		}
		if s.Relay != "" {
			text += ", by " + s.Relay + protection(s.TLS, s.Verified, "the server")
		}
		text += ": " + strings.TrimSpace(s.Status+" "+s.Reply)
		if !s.Next.IsZero() {
			text += "; next " + s.Next.Local().Format(clock)
		}
		return text
	case "expired":
		if s.Who != "" {
			return "given up " + who + by
		}
		return "given up " + who + ", its time is over: " + strings.TrimSpace(s.Status+" "+s.Reply)
	case "held", "released", "thawed", "retry", "removed", "restored":
		text := map[string]string{"retry": "to be tried now", "restored": "put back"}[l.Event]
		if text == "" {
			text = l.Event
		}
		if who == "" {
			who = "the message, its last open recipients"
		}
		if !s.Until.IsZero() {
			by = " until " + s.Until.Local().Format(clock) + by
		}
		return text + " " + who + by
	case "frozen":
		if who == "" {
			who = "the message, before it was routed"
		}
		if cause := l.Get("cause"); cause != "" {
			who += ", cause " + cause
		}
		return "frozen " + who + by
	case "rerouted":
		return "routed again " + who + ", in the message " + s.Other + by
	case "report":
		return "a report that it is " + s.Kind + " goes to <" + l.Get("rcpt") + ">, about " + recipients(number(l.Get("recipients"))) + ": " + s.Other
	}
	return plain(l)
}

// origin returns where a message came from.
func origin(in *In) string {
	text := in.Client
	if in.ClientName != "" {
		text += " (" + in.ClientName + ")"
	}
	if in.User != "" {
		text += ", user " + in.User
	}
	if in.Through != "" {
		text += ", through " + in.Through
		if in.OriginalID != "" {
			text += ", which has it as " + in.OriginalID
		}
	}
	if in.Protocol != "" {
		text += ", by " + in.Protocol
	}
	return text + protection(in.TLS, in.Verified, "the client")
}

// protection returns what protected a connection.
func protection(version, verified, side string) string {
	switch {
	case version == "":
		return ""
	case verified == "true":
		return ", " + version + ", " + side + " verified"
	}
	return ", " + version
}

const clock = "2006-01-02 15:04:05"

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func recipients(n int) string {
	if n == 1 {
		return "1 recipient"
	}
	return strconv.Itoa(n) + " recipients"
}

// plain returns a line without the fields that every line has.
func plain(l *logging.Line) string {
	var b strings.Builder
	b.WriteString(l.Event)
	for _, f := range l.Fields {
		if slices.Contains([]string{"id", "name"}, f.Key) {
			continue
		}
		b.WriteString(" " + f.Key + "=")
		if strings.ContainsAny(f.Value, " \n\t") || f.Value == "" {
			b.WriteString(strconv.Quote(f.Value))
		} else {
			b.WriteString(f.Value)
		}
	}
	return b.String()
}
