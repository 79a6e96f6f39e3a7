package view

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
)

// logged is one message of a log that a test writes.
type logged struct {
	id, from, rcpt, original, messageID, user, client string
	at                                                time.Time
}

// writeMail writes the lines of messages with a program's own logger.
func writeMail(log *slog.Logger, list []logged) {
	for i := range list {
		m := &list[i]
		line := func(word string, args ...any) {
			r := slog.NewRecord(m.at, slog.LevelInfo, word, 0)
			r.Add(append([]any{"program", "x", "id", m.id}, args...)...)
			_ = log.Handler().Handle(context.Background(), r)
		}
		line("accepted", "from", m.from, "size", 9, "rcpts", 1, "client", net.JoinHostPort(m.client, "25"), "user", m.user)
		line("routed", "name", "1-2", "from", m.from, "rcpts", 1, "message-id", m.messageID)
		line("delivered", "rcpt", m.rcpt, "channel", "smtp", "host", "h", "status", "2.0.0", "reply", "250 for alice@example.test", "attempt", 1, "orig-rcpt", m.original)
	}
}

// Op7: a search finds exactly the messages whose sender, recipients, Message-ID, user or client
// is the word, over rotated and compressed files, in text and in JSON.
func TestOp7SearchFindsExactlyTheMessagesOfAWord(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var all []logged
	begin := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for i := range 3000 {
		at := begin.Add(time.Duration(i) * time.Second)
		all = append(all, logged{id: postoffice.SpoolID{Ino: uint64(1000 + i), MTime: at.UnixNano()}.String(), at: at,
			from:     pick("", "alice@example.test", "bob@example.test", "malice@example.test", `"a b=c"@example.test`, fmt.Sprintf("u%d@x.example", i)),
			rcpt:     pick("Alice@Example.Test", "carol@far.example", "alice@example.test.example", "é@far.example", fmt.Sprintf("r%d@y.example", i)),
			original: pick("", "", "sales@example.test"), messageID: fmt.Sprintf("<%d.%s@client.example>", i, pick("a", "b")), user: pick("", "alice", "jane&joe"), client: pick("192.0.2.7", "192.0.2.70", "2001:db8::1")})
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	for i, name := range []string{"log.2.gz", "log.1", "log"} {
		var b bytes.Buffer
		log := slog.New(slog.NewTextHandler(&b, nil))
		if name == "log.1" {
			log = slog.New(slog.NewJSONHandler(&b, nil))
		}
		writeMail(log, all[i*1000:(i+1)*1000])
		text := b.Bytes()
		if strings.HasSuffix(name, ".gz") {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			assert.Get(w.Write(text))(t)
			assert.Must(t, w.Close())
			text = z.Bytes()
		}
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		at := time.Now().Add(time.Duration(i-3) * time.Hour)
		assert.Must(t, os.Chtimes(filepath.Join(dir, name), at, at))
	}
	source := &logread.Source{File: path}
	for _, word := range []string{"alice@example.test", "ALICE@example.TEST", "bob@example.test", `"a b=c"@example.test`, "é@far.example", "sales@example.test", "<7.a@client.example>", "7.a@client.example",
		"7.b@client.example", "alice", "jane&joe", "192.0.2.7", "2001:db8::1", "@far.example", "nobody@example.test", "r2999@y.example"} {
		// The judge compares each message by itself.
		var want []string
		for _, m := range all {
			has := func(s string) bool { return strings.EqualFold(strings.Trim(s, "<>"), strings.Trim(word, "<>")) }
			inDomain := func(s string) bool {
				return strings.HasPrefix(word, "@") && strings.HasSuffix(strings.ToLower(s), word) && s != word
			}
			if has(m.from) || has(m.rcpt) || has(m.original) || has(m.messageID) || has(m.user) || has(m.client) || inDomain(m.from) || inDomain(m.rcpt) || inDomain(m.original) {
				want = append(want, m.id)
			}
		}
		most := 1000
		left := max(len(want)-most, 0)
		want = want[left:]
		tracer := &Tracer{Now: begin.Add(24 * time.Hour), Scan: source.Scan, Log: source.Each}
		found, err := tracer.Find(context.Background(), Search{Word: word})
		assert.Must(t, err)
		var got []string
		for _, l := range found.Lives {
			got = append(got, l.ID)
			assert.Equal(t, len(l.Steps), 3, "steps of %s", l.ID)
		}
		if !slices.Equal(got, want) || found.More != left {
			t.Errorf("%s: found %d and %d more, want %d and %d", word, len(got), found.More, len(want), left)
		}
	}
	tracer := &Tracer{Now: begin, Scan: source.Scan}
	found := assert.Get(tracer.Find(context.Background(), Search{Word: "alice", Since: begin.Add(2999 * time.Second), Until: begin.Add(3000 * time.Second)}))(t)
	if len(found.Lives) > 1 {
		t.Errorf("%d messages of the last second", len(found.Lives))
	}
	if _, err := tracer.Find(context.Background(), Search{Word: "@"}); err == nil {
		t.Error("a search for what each line has was made")
	}
}

// Op7: mail that was refused, and has no ID, is found by its sender, by each recipient and by its client,
// the newest.
func TestOp7SearchFindsWhatWasRefused(t *testing.T) {
	var b bytes.Buffer
	for format, handler := range map[string]slog.Handler{"text": slog.NewTextHandler(&b, nil), "json": slog.NewJSONHandler(&b, nil)} {
		b.Reset()
		log := slog.New(handler)
		for _, rcpt := range []string{"alice@example.test", "bob@example.test,Alice@example.test,carol@far.example", "malice@example.test", ""} {
			log.Info("refused", "program", "smtpserver", "from", "ann@partner.example", "rcpt", rcpt, "client", "192.0.2.7:25", "stage", "rcpt", "code", 550, "status", "5.7.1", "reply", "for alice@example.test", "by", "dnsbl")
		}
		log.Info("refused", "program", "router", "rcpt", "alice@example.test")
		source := &logread.Source{File: filepath.Join(t.TempDir(), "log")}
		assert.Must(t, os.WriteFile(source.File, b.Bytes(), 0o600))
		for word, want := range map[string]int{"alice@example.test": 2, "BOB@example.test": 1, "@far.example": 1, "@example.test": 3, "ann@partner.example": 4, "192.0.2.7": 4, "lice@example.test": 0} {
			tracer := &Tracer{Now: time.Now(), Scan: source.Scan, Log: source.Each}
			found := assert.Get(tracer.Find(context.Background(), Search{Word: word}))(t)
			assert.Equal(t, [2]int{len(found.Refused), len(found.Lives)}, [2]int{want, 0}, format, word)
			last := assert.Get(tracer.Find(context.Background(), Search{Word: word, Most: 1}))(t).Refused
			assert.Equal(t, len(last), min(want, 1), format, word)
			if want > 0 {
				assert.Equal(t, last[0].Get("rcpt"), found.Refused[want-1].Get("rcpt"), format, word)
			}
		}
	}
}

// Op7: what the content filter has given back is found as one with the message that it was before, by
// what either of them has, in each format of the log. An ID that another mail system has named and IDs
// that name each other change nothing else.
func TestOp7SearchFollowsMailThroughTheContentFilter(t *testing.T) {
	begin := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	id := func(i int) string {
		return postoffice.SpoolID{Ino: uint64(1000 + i), MTime: begin.Add(time.Duration(i) * time.Second).UnixNano()}.String()
	}
	for _, format := range []string{"text", "json", "postfix"} {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			var b bytes.Buffer
			line := func(program, word string, args ...any) {
				r := slog.NewRecord(begin.Add(time.Minute), slog.LevelInfo, word, 0)
				r.Add(args...)
				assert.Must(t, assert.Get(logging.New(&b, format, "", program))(t).Handler().Handle(context.Background(), r))
			}
			accepted := func(of string, before ...any) {
				line("smtpserver", "accepted", append([]any{"id", of, "from", "ann@far.example", "size", 9, "rcpts", 1, "client", "192.0.2.7:25"}, before...)...)
			}
			delivered := func(of, rcpt, original, channel string) {
				line("scheduler", "delivered", "id", of, "name", "1-2", "rcpt", rcpt, "channel", channel, "host", "h", "status", "2.0.0", "reply", "250 Ok", "attempt", 1, "orig-rcpt", original)
			}
			accepted(id(0))
			line("router", "routed", "id", id(0), "name", "1-2", "from", "ann@far.example", "rcpts", 2, "size", 9)
			accepted(id(1), "orig-client", "192.0.2.7:25", "orig-id", id(0))
			line("router", "routed", "id", id(1), "name", "1-2", "from", "ann@far.example", "rcpts", 1, "size", 9, "orig-id", id(0))
			delivered(id(0), "sales@mx.example", "", "smtpx")
			delivered(id(0), "lost@mx.example", "", "smtpx")
			delivered(id(1), "carol@mx.example", "sales@mx.example", "local")
			accepted(id(2), "orig-client", "192.0.2.9:25", "orig-id", "4cXyz01")
			delivered(id(2), "dan@mx.example", "", "local")
			accepted(id(3), "orig-client", "192.0.2.9:25", "orig-id", id(4))
			accepted(id(4), "orig-client", "192.0.2.9:25", "orig-id", id(3))
			delivered(id(4), "eve@mx.example", "", "local")
			assert.Must(t, os.WriteFile(path, b.Bytes(), 0o600))
			for word, want := range map[string]string{"carol@mx.example": "carol", "sales@mx.example": "carol", "lost@mx.example": "lost", "dan@mx.example": "dan", "eve@mx.example": "eve"} {
				tracer := Tracer{Now: begin.Add(time.Hour)}
				tracer.Read(&logread.Source{File: path})
				q := Search{Word: word}
				found := assert.Get(tracer.Find(context.Background(), q))(t)
				if len(found.Lives) != 1 {
					t.Fatalf("%s: %d messages", word, len(found.Lives))
				}
				l := found.Lives[0]
				var rows []string
				for _, row := range q.Rows(l, 10) {
					if row.Recipient != nil {
						rows = append(rows, row.Recipient.Address)
					}
				}
				if want == "eve" { // what names each other is shown, in some order, and ends
					continue
				}
				assert.Equal(t, strings.Join(rows, " "), want+"@mx.example", word)
				if filtered := want == "carol" || want == "lost"; filtered != (len(l.Caused) == 1 && l.Caused[0].ID == id(1) && l.Caused[0].Life != nil) || filtered && l.ID != id(0) {
					t.Errorf("%s: %s has %+v", word, l.ID, l.Caused)
				}
			}
			tracer := Tracer{Now: begin.Add(time.Hour)}
			tracer.Read(&logread.Source{File: path})
			lives := assert.Get(tracer.Trace(context.Background(), []postoffice.SpoolID{assert.Get(postoffice.ParseSpoolID(id(0)))(t), assert.Get(postoffice.ParseSpoolID(id(3)))(t)}))(t)
			if len(lives) != 2 || len(lives[0].Caused) != 1 || lives[0].Caused[0].Life == nil || lives[0].Caused[0].Life.Origin.ID != id(0) {
				t.Errorf("got %+v", lives)
			}
		})
	}
}
