package filters

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
	"zmailer/test/rig"
)

// sequence is a whole session with two filters, one behind the other.
type sequence struct {
	first, second map[string][][]string // what each does, as in Case.Acts
	// say is what the client sends: commands, and "message" for a content, "tls" for STARTTLS and the
	// handshake, "drop" for an end without QUIT.
	say []string
	// lost are the messages, counted from 0, that are accepted and go nowhere.
	lost []int
}

func acts(list ...string) map[string][][]string {
	m := map[string][][]string{}
	for _, one := range list {
		words := strings.Fields(one)
		m[words[0]] = append(m[words[0]], words[1:])
	}
	return m
}

// sequences are compared in what each filter hears, in each reply and in what is delivered.
var sequences = map[string]sequence{
	"three messages": {acts("eom addheader X-First 1"), acts("eom addheader X-Second 2"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message",
		"MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "RCPT TO:<d@sink.example>", "DATA", "message",
		"MAIL FROM:<>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first deletes all recipients": {acts("eom delrcpt <b@sink.example>"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, []int{0}},
	"the second deletes all recipients": {nil, acts("eom delrcpt <b@sink.example>"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, []int{0}},
	"TLS": {nil, nil, []string{
		"EHLO", "tls", "EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"TLS after a message": {nil, nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "tls", "EHLO",
		"MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the second sees the first's changes": {acts("eom addheader X-First 1", "eom chgheader 1 X-T new", "eom replacebody changed", "eom addrcpt <d@sink.example>", "eom insheader 0 X-Top 1"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the second rejects the content": {acts("eom addheader X-First 1"), acts("eom reject"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message",
		"MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first rejects the content": {acts("eoh reject"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first rejects a recipient": {acts("envrcpt only d@", "envrcpt reject"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<d@sink.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the second rejects a recipient": {nil, acts("envrcpt only d@", "envrcpt reject"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<d@sink.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the second rejects the sender": {nil, acts("envfrom only c@", "envfrom reject"), []string{
		"EHLO", "MAIL FROM:<c@client.example>", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first rejects the sender": {acts("envfrom only c@", "envfrom reject"), nil, []string{
		"EHLO", "MAIL FROM:<c@client.example>", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first accepts the sender": {acts("envfrom accept"), acts("eom addheader X-Second 2"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message",
		"MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first accepts the client": {acts("connect accept"), acts("eom addheader X-Second 2"), []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message",
		"MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first discards": {acts("envrcpt discard"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"the first discards at the end": {acts("eom discard"), nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"RSET": {nil, nil, []string{
		"EHLO", "RSET", "MAIL FROM:<a@client.example>", "RSET", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "RSET", "RSET",
		"MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "RSET", "QUIT"}, nil},
	"EHLO again": {nil, nil, []string{
		"EHLO", "EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "EHLO", "MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"other commands": {nil, nil, []string{
		"EHLO", "NOOP", "VRFY x", "XYZZY 1", "MAIL FROM:<a@client.example>", "XYZZY 2", "NOOP", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"a second MAIL":      {nil, nil, []string{"EHLO", "MAIL FROM:<a@client.example>", "MAIL FROM:<c@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "QUIT"}, nil},
	"QUIT after RCPT":    {nil, nil, []string{"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "QUIT"}, nil},
	"dropped":            {nil, nil, []string{"EHLO", "drop"}, nil},
	"dropped after MAIL": {nil, nil, []string{"EHLO", "MAIL FROM:<a@client.example>", "drop"}, nil},
	"dropped after RCPT": {nil, nil, []string{"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "drop"}, nil},
	"dropped at DATA":    {nil, nil, []string{"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "drop"}, nil},
	"dropped after a message": {nil, nil, []string{
		"EHLO", "MAIL FROM:<a@client.example>", "RCPT TO:<b@sink.example>", "DATA", "message", "drop"}, nil},
	"no mail": {nil, nil, []string{"EHLO", "QUIT"}, nil},
}

// differences are the sequences in which filters hear something else from us, and why. Replies and what is
// delivered are the same.
var differences = map[string]string{
	"TLS":                                 atMail,
	"TLS after a message":                 "a client that has begun TLS is introduced anew, in a session of its own; Postfix repeats HELO in the same one",
	"EHLO again":                          atMail,
	"dropped":                             atMail,
	"no mail":                             atMail,
	"other commands":                      "the whole line of an unknown command is passed on, as libmilter's documentation has it; Postfix passes its first word",
	"the second sees the first's changes": "a new body without a line end is passed on as it is; Postfix ends the line",
}

const atMail = "filters are asked from MAIL on, and hear the last HELO; Postfix connects to them with the client"

// run runs a sequence and returns its replies, what the filters hear, and what is delivered.
func (q sequence) run(t *testing.T, s *server, name string, filters [2]*filter) (replies, heard, delivered []string) {
	t.Helper()
	for i, what := range []map[string][][]string{q.first, q.second} {
		if what == nil {
			what = acts()
		}
		filters[i].do(&Case{Acts: what})
		filters[i].log()
	}
	helo := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, name) + ".client.example"
	conn := assert.Get(net.Dial("tcp", s.addr))(t)
	defer conn.Close()
	assert.Must(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	k := &client{conn, bufio.NewReader(conn)}
	_, _ = k.reply()
	s.begin(helo)
	var accepted []string
	for _, line := range q.say {
		id := ""
		switch line {
		case "EHLO":
			line += " " + helo
		case "message":
			id = fmt.Sprintf("<%d.%s.%s>", len(accepted), s.name, helo)
			line = "From: a@client.example\r\nDate: Mon, 2 Jan 2006 15:04:05 -0700\r\nMessage-ID: " + id + "\r\n" + strings.ReplaceAll(defaultMessage, "\n", "\r\n") + "."
		case "tls":
			line = "STARTTLS"
		case "drop":
			_ = conn.Close()
			continue
		}
		code, text := k.say(line + "\r\n")
		replies = append(replies, strings.Fields(line)[0]+" "+code+" "+enhanced.FindString(text))
		switch {
		case line == "STARTTLS":
			secure := tls.Client(conn, s.tls)
			assert.Must(t, secure.Handshake())
			k.c, k.r = secure, bufio.NewReader(secure)
		case id != "" && code == "250":
			accepted = append(accepted, id)
		}
	}
	_ = conn.Close()
	for i, f := range filters {
		rig.Await(t, "end of the filter's sessions", func() bool {
			b := string(assert.Get(os.ReadFile(filepath.Join(f.dir, "heard")))(t)[f.heard:])
			// The end of the look whether the filter listens may come late.
			_, after, begun := strings.Cut(b, `["offered"`)
			return !begun || 1+strings.Count(after, `["offered"`) <= strings.Count(after, `["close"`)
		})
		for _, words := range f.log() {
			switch words[0] {
			case "offered", "close":
				continue
			case "connect":
				words[1] = "(client)"
			}
			end := slices.Index(words, "|")
			if end < 0 {
				end = len(words)
			}
			if words[0] == "header" && words[1] == "Message-ID" {
				continue
			}
			heard = append(heard, fmt.Sprintf("%d %q", i+1, words[:end]))
		}
	}
	for i, id := range accepted {
		if !slices.Contains(q.lost, i) {
			delivered = append(delivered, s.fate(t, id)...)
		}
	}
	return replies, heard, delivered
}

// Peer4, Peer5: a session's events come to two filters, one behind the other, as with Postfix, which is
// the judge: what each hears, in which order, what the client is answered and what is delivered.
func TestTwoFiltersHearWholeSessionsAsBehindPostfix(t *testing.T) {
	filters := [2]*filter{startFilter(t), startFilter(t)}
	milters := "inet:" + filters[0].addr + ", inet:" + filters[1].addr
	ours, theirs := startOurs(t, milters, nil), startPostfix(t, milters)
	if theirs == nil {
		t.Skip("Postfix is not installed, or not root")
	}
	for name, q := range sequences {
		t.Run(name, func(t *testing.T) {
			r1, h1, d1 := q.run(t, theirs, name, filters)
			r2, h2, d2 := q.run(t, ours, name, filters)
			if why := differences[name]; why != "" {
				if cmp.Equal(h1, h2) {
					t.Errorf("there is no difference: %s", why)
				}
				h1, h2 = nil, nil
			}
			for what, diff := range map[string]string{"replies": cmp.Diff(r1, r2), "heard": cmp.Diff(h1, h2), "delivered": cmp.Diff(d1, d2)} {
				if diff != "" {
					t.Errorf("%s, Postfix (-) and we (+): %s", what, diff)
				}
			}
		})
	}
	count := func(s *server) string {
		var ids []string
		for _, m := range s.sink.Messages() {
			ids = append(ids, strings.Join(m.Recipients, " "))
		}
		slices.Sort(ids)
		return strings.Join(ids, "\n")
	}
	assert.Equal(t, count(ours), count(theirs))
}
