package logging

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// postfix is a handler that writes lines as Postfix does (LOGFORMAT=postfix, docs/log.md): what
// programs like pflogsumm read of a message is spelled as there, everything else as
// "event key=value".
type postfix struct {
	level   slog.Leveler
	host    string
	pid     string
	program string
	attrs   []slog.Attr

	mu *sync.Mutex // of buf and of writing
	w  io.Writer
}

func newPostfix(w io.Writer, level slog.Leveler) *postfix {
	host, err := os.Hostname()
	if host, _, _ = strings.Cut(host, "."); err != nil || host == "" {
		host = "localhost"
	}
	return &postfix{level: level, host: host, pid: strconv.Itoa(os.Getpid()), mu: new(sync.Mutex), w: w}
}

// Enabled implements slog.Handler.
func (h *postfix) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// WithGroup implements slog.Handler; our programs have no groups.
func (h *postfix) WithGroup(string) slog.Handler { return h }

// WithAttrs implements slog.Handler.
func (h *postfix) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	for _, a := range attrs {
		if a.Key == "program" {
			more.program = a.Value.String()
			continue
		}
		more.attrs = append(more.attrs[:len(more.attrs):len(more.attrs)], a)
	}
	return &more
}

// daemon returns the Postfix program that does what one of ours does.
func daemon(program string) string {
	switch program {
	case "smtpserver":
		return "smtpd"
	case "router":
		return "cleanup"
	case "scheduler":
		return "qmgr"
	case "ta-smtp":
		return "smtp"
	case "ta-mailbox":
		return "local"
	case "zmctl":
		return "master"
	}
	return program
}

// agentOf returns the Postfix program that delivers over a channel.
func agentOf(channel string) string {
	name, _, _ := strings.Cut(channel, "-")
	switch name {
	case "smtp", "smtpx":
		return "smtp"
	case "lmtp", "local", "error", "virtual":
		return name
	}
	return "pipe"
}

// Handle implements slog.Handler. A record becomes one line or several, which are written
// together.
func (h *postfix) Handle(_ context.Context, r slog.Record) error {
	e := entry{h: h, r: &r}
	e.fields = append(e.fields, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		e.fields = append(e.fields, a)
		return true
	})
	e.write()
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.w.Write(e.out.Bytes())
	return err
}

// entry is one record while its lines are made.
type entry struct {
	h      *postfix
	r      *slog.Record
	fields []slog.Attr
	out    bytes.Buffer
}

// text returns a field's value on one line; "" if there is none.
func (e *entry) text(key string) string {
	for i := range e.fields {
		if e.fields[i].Key == key {
			return oneLine(valueText(e.fields[i].Value))
		}
	}
	return ""
}

// addr returns an address for < and >: a bracket in it would end it for who reads the line.
func (e *entry) addr(key string) string {
	return without(e.text(key), "<>")
}

func valueText(v slog.Value) string {
	v = v.Resolve()
	if v.Kind() == slog.KindTime {
		return v.Time().Format(time.RFC3339Nano)
	}
	return v.String()
}

// oneLine replaces what would end a line or change a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// line begins a line.
func (e *entry) line(program string) *bytes.Buffer {
	if e.out.Len() > 0 {
		e.out.WriteByte('\n')
	}
	var room [40]byte
	e.out.Write(e.r.Time.AppendFormat(room[:0], "2006-01-02T15:04:05.000000-07:00"))
	e.out.WriteString(" " + e.h.host + " postfix/" + program + "[" + e.h.pid + "]: ")
	return &e.out
}

func (e *entry) add(texts ...string) {
	for _, s := range texts {
		e.out.WriteString(s)
	}
}

func (e *entry) write() {
	defer func() { e.out.WriteByte('\n') }()
	id := e.text("id")
	switch e.r.Message {
	case "accepted":
		e.line("smtpd")
		e.add(id, ": client=", e.client("client"))
		if original := e.text("orig-id"); original != "" {
			e.add(", orig_queue_id=", without(original, ", =")) // another host chose it
		}
		if e.text("orig-client") != "" {
			e.add(", orig_client=", e.client("orig-client"))
		}
		if user := e.text("user"); user != "" {
			e.add(", sasl_method=PLAIN, sasl_username=", user)
		}
		e.queueActive(id)
		return
	case "routed":
		uid := e.text("uid")
		if uid != "" {
			e.line("pickup")
			e.add(id, ": uid=", uid, " from=<", e.addr("from"), ">")
		}
		e.line("cleanup")
		e.add(id, ": message-id=<", strings.Trim(e.addr("message-id"), "?"), ">")
		if uid != "" || e.text("origin") == "report" {
			e.queueActive(id)
		}
		return
	case "delivered":
		e.delivery(id, "sent")
		return
	case "deferred":
		if e.h.program == "scheduler" {
			e.delivery(id, "deferred")
			return
		}
	case "failed":
		e.delivery(id, "bounced")
		return
	case "expired":
		e.delivery(id, "bounced")
		e.line("qmgr")
		e.add(id, ": from=<>, status=expired, returned to sender")
		return
	case "report":
		e.line("bounce")
		e.add(id, ": sender ", map[string]string{"delayed": "delay", "delivered": "delivery status"}[e.text("kind")])
		if e.text("kind") == "failed" {
			e.add("non-delivery")
		}
		e.add(" notification: ", e.text("report"))
		return
	case "refused":
		if e.text("client") != "" {
			e.refused()
			return
		}
	case "auth-failed":
		e.line("smtpd")
		e.add("warning: ", e.client("client"), ": SASL ", e.text("mechanism"), " authentication failed: authentication failure, sasl_username=", e.text("user"))
		return
	case "discarded":
		e.line("cleanup")
		e.add(id, ": milter-discard: END-OF-MESSAGE from ", e.client("client"), ": milter triggers DISCARD action; from=<", e.addr("from"), "> proto=ESMTP")
		return
	}
	e.other()
}

// queueActive writes the line that has size and number of recipients.
func (e *entry) queueActive(id string) {
	e.line("qmgr")
	e.add(id, ": from=<", e.addr("from"), ">, size=", e.text("size"), ", nrcpt=", e.text("rcpts"), " (queue active)")
}

// client returns name[address] of a client whose keys begin so.
func (e *entry) client(key string) string {
	client := e.text(key)
	host := client
	if i := strings.LastIndexByte(client, ':'); i > 0 {
		host = strings.Trim(client[:i], "[]")
	}
	switch host {
	case "local":
		return "localhost[local]"
	case "":
		host = "unknown"
	}
	name := without(e.text(key+"-name"), "[]:, =")
	if name == "" {
		name = "unknown"
	}
	return name + "[" + without(host, "[], =") + "]"
}

// without replaces what would end a value for who reads the line.
func without(s, chars string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(chars, r) {
			return '?'
		}
		return r
	}, s)
}

// delivery writes the line of an attempt for one recipient.
func (e *entry) delivery(id, state string) {
	channel := e.text("channel")
	program := agentOf(channel)
	e.line(program)
	e.add(id, ": to=<", e.addr("rcpt"), ">")
	if original := e.addr("orig-rcpt"); original != "" {
		e.add(", orig_to=<", original, ">")
	}
	relay := strings.ReplaceAll(e.text("relay"), ",", "?")
	switch {
	case relay != "":
	case program == "smtp" || program == "lmtp":
		relay = "none"
	default:
		relay = program
	}
	e.add(", relay=", relay, ", delay=", e.seconds("took"), ", delays=", e.seconds("routing"), "/", e.seconds("queue"), "/0/", e.seconds("delivery"))
	if code := e.text("status"); code != "" {
		e.add(", dsn=", code)
	}
	reply := e.text("reply")
	if relay != "none" && relay != program && len(reply) > 3 && reply[0] >= '4' && reply[0] <= '5' && reply[3] == ' ' {
		host, _, _ := strings.Cut(relay, ":")
		reply = "host " + host + " said: " + reply
	}
	e.add(", status=", state, " (", reply, ")")
}

// seconds returns a time as Postfix has it: two digits that count.
func (e *entry) seconds(key string) string {
	for i := range e.fields {
		if e.fields[i].Key == key && e.fields[i].Value.Kind() == slog.KindDuration {
			d := e.fields[i].Value.Duration().Seconds()
			switch {
			case d < 0.005:
				return "0"
			case d < 1:
				return strings.TrimRight(strconv.FormatFloat(d, 'f', 2, 64), "0")
			case d < 10:
				return strings.TrimSuffix(strconv.FormatFloat(d, 'f', 1, 64), ".0")
			}
			return strconv.FormatFloat(d, 'f', 0, 64)
		}
	}
	return "0"
}

// refused writes the line of a command that was refused.
func (e *entry) refused() {
	stage := map[string]string{"connect": "CONNECT", "mail": "MAIL", "rcpt": "RCPT", "data": "END-OF-MESSAGE", "auth": "AUTH", "command": "CONNECT"}[e.text("stage")]
	if stage == "" {
		stage = "RCPT"
	}
	rcpt := e.addr("rcpt")
	e.line("smtpd")
	e.add("NOQUEUE: reject: ", stage, " from ", e.client("client"), ": ", e.text("code"), " ", e.text("status"), " ")
	reply := e.text("reply")
	if stage == "RCPT" && rcpt != "" && !strings.HasPrefix(reply, "<") {
		e.add("<", rcpt, ">: ")
	}
	e.add(reply, "; from=<", e.addr("from"), ">")
	if rcpt != "" {
		e.add(" to=<", rcpt, ">")
	}
	e.add(" proto=ESMTP")
	if helo := e.addr("helo"); helo != "" {
		e.add(" helo=<", helo, ">")
	}
}

// other writes what Postfix has no line for.
func (e *entry) other() {
	e.line(daemon(e.h.program))
	if e.r.Level >= slog.LevelError {
		e.add("error: ")
	} else if e.r.Level >= slog.LevelWarn {
		e.add("warning: ")
	}
	e.add(e.r.Message)
	for i := range e.fields {
		value := valueText(e.fields[i].Value)
		if value == "" || strings.ContainsAny(value, " =\"<>") || oneLine(value) != value {
			value = strconv.Quote(value)
		}
		e.add(" ", e.fields[i].Key, "=", value)
	}
}
