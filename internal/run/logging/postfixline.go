package logging

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// ours are the programs behind Postfix's names.
var ours = map[string]string{"smtpd": "smtpserver", "cleanup": "router", "pickup": "router", "qmgr": "scheduler", "bounce": "scheduler", "master": "zmctl",
	"smtp": "scheduler", "lmtp": "scheduler", "local": "scheduler", "virtual": "scheduler", "error": "scheduler", "pipe": "scheduler"}

// parsePostfix reads a line that the handler postfix has written; what a syslog has put before
// its time is passed over.
func parsePostfix(s string) (l Line, ok bool) {
	at := strings.Index(s, " postfix/")
	if at < 0 {
		return Line{}, false
	}
	stamp, _, _ := cutLast(s[:at], " ") // the host is behind it
	_, stamp, _ = cutLast(" "+stamp, " ")
	var err error
	if l.Time, err = time.Parse(time.RFC3339Nano, stamp); err != nil {
		return Line{}, false
	}
	name, rest, ok := strings.Cut(s[at+len(" postfix/"):], "[")
	_, text, found := strings.Cut(rest, "]: ")
	if !ok || !found {
		return Line{}, false
	}
	if l.Program = ours[name]; l.Program == "" {
		l.Program = name
	}
	if id, event, behind := strings.Cut(text, ": "); behind && IsSpoolID(id) {
		l.put("id", id)
		return l, l.postfixMessage(name, event)
	}
	for prefix, level := range map[string]slog.Level{"warning: ": slog.LevelWarn, "error: ": slog.LevelError} {
		if after, is := strings.CutPrefix(text, prefix); is {
			l.Level, text = level, after
		}
	}
	if refused, is := strings.CutPrefix(text, "NOQUEUE: reject: "); is {
		l.Event = "refused"
		l.put("text", refused)
		return l, true
	}
	if _, user, is := strings.Cut(text, "]: SASL "); is && name == "smtpd" && l.Level == slog.LevelWarn {
		l.Event = "auth-failed"
		l.put("text", user)
		return l, true
	}
	word, pairs, _ := strings.Cut(text, " ")
	if word == "" || strings.ContainsAny(word, `=":<[`) {
		return Line{}, false
	}
	l.Event = word
	return l, l.pairs(pairs)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// IsSpoolID reports whether a word has the form of a spool ID.
func IsSpoolID(s string) bool {
	return len(s) > 3 && s[0] == 'S' && strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// postfixMessage reads what is behind a spool ID.
func (l *Line) postfixMessage(program, s string) bool {
	switch {
	case strings.HasPrefix(s, "client="):
		l.Event = "accepted"
		client, more, _ := strings.Cut(strings.TrimPrefix(s, "client="), ", ")
		name, host, _ := strings.Cut(strings.TrimSuffix(client, "]"), "[")
		l.put("client", host)
		if name != "unknown" {
			l.put("client-name", name)
		}
		if _, original, is := strings.Cut(", "+more, ", orig_queue_id="); is {
			original, _, _ = strings.Cut(original, ", ")
			l.put("orig-id", original)
		}
		if _, user, is := strings.Cut(more, "sasl_username="); is {
			l.put("user", user)
		}
	case program == "cleanup" && strings.HasPrefix(s, "message-id="):
		l.Event = "queued"
		l.put("message-id", strings.TrimPrefix(s, "message-id="))
	case program == "pickup":
		l.Event = "submitted"
		uid, _, _ := strings.Cut(strings.TrimPrefix(s, "uid="), " ")
		l.put("uid", uid)
	case program == "qmgr" && strings.Contains(s, ", size="):
		l.Event = "routed"
		from, rest, _ := strings.Cut(strings.TrimPrefix(s, "from=<"), ">, size=")
		size, count, _ := strings.Cut(rest, ", nrcpt=")
		count, _, _ = strings.Cut(count, " ")
		l.put("from", from)
		l.put("size", size)
		l.put("rcpts", count)
	case strings.HasPrefix(s, "to=<"):
		return l.postfixDelivery(program, s)
	default:
		l.Event = program
		l.put("text", s)
	}
	return true
}

// postfixDelivery reads the line of an attempt. Its values have no comma; the addresses may.
func (l *Line) postfixDelivery(program, s string) bool {
	to, rest, ok := strings.Cut(strings.TrimPrefix(s, "to=<"), ">, ")
	if !ok {
		return false
	}
	l.put("rcpt", to)
	l.put("channel", program)
	if original, is := strings.CutPrefix(rest, "orig_to=<"); is {
		var address string
		address, rest, _ = strings.Cut(original, ">, ")
		l.put("orig-rcpt", address)
	}
	for {
		key, after, ok := strings.Cut(rest, "=")
		if !ok {
			return false
		}
		if key == "status" {
			word, reply, _ := strings.Cut(after, " (")
			l.Event = map[string]string{"sent": "delivered", "bounced": "failed", "deferred": "deferred"}[word]
			l.put("reply", strings.TrimSuffix(reply, ")"))
			return l.Event != ""
		}
		var value string
		value, rest, _ = strings.Cut(after, ", ")
		switch key {
		case "relay":
			if strings.Contains(value, "[") {
				l.put("relay", value)
			}
		case "dsn":
			l.put("status", value)
		case "delay":
			l.put("took", value+"s")
		case "delays":
			l.delays(value)
		}
	}
}

// delays reads a/b/c/d: before the queue, in it, opening the connection, sending.
func (l *Line) delays(s string) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return
	}
	for i, key := range map[int]string{0: "routing", 1: "queue", 3: "delivery"} {
		if _, err := strconv.ParseFloat(parts[i], 64); err == nil {
			l.put(key, parts[i]+"s")
		}
	}
}
