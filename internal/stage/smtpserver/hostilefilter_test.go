package smtpserver

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/wire/milter/miltertest"
)

// A reply of several lines goes to the client with all its lines, at each step (smfi_setmlreply).
func TestFilterRepliesWithSeveralLines(t *testing.T) {
	for _, code := range []string{"451 4.7.9", "550 5.7.9"} {
		number, status, _ := strings.Cut(code, " ")
		want := number + "-" + status + " first\r\n" + number + "-" + status + " second 100%\r\n" + number + " " + status + " third\r\n"
		given := number + "-" + status + " first\r\n" + number + "-" + status + " second 100%%\r\n" + number + " " + status + " third\x00"
		for step, talk := range map[byte]func(p *client, want string) string{
			'C': func(p *client, want string) string { return p.say("MAIL FROM:<a@b.example>", want) },
			'H': func(p *client, want string) string { return p.say("MAIL FROM:<a@b.example>", want) },
			'M': func(p *client, want string) string { return p.say("MAIL FROM:<a@b.example>", want) },
			'R': func(p *client, want string) string { return p.from("a@b.example").say("RCPT TO:<"+toUs+">", want) },
			'T': func(p *client, want string) string { return p.begin().say("DATA", want) },
			'L': func(p *client, want string) string { return p.begin().content(plain, want) },
			'N': func(p *client, want string) string { return p.begin().content(plain, want) },
			'B': func(p *client, want string) string { return p.begin().content(plain, want) },
			'E': func(p *client, want string) string { return p.begin().content(plain, want) },
			'U': func(p *client, want string) string { return p.say("WHAT is this", want) },
		} {
			t.Run(string(step)+" "+number, func(t *testing.T) {
				r := start(t, filterOf(t, &miltertest.Script{Answers: map[byte]string{step: miltertest.Packet('y', given)}}))
				assert.Equal(t, talk(r.greeted(), number), want)
				r.nothing()
				r.log.Expect(t, 1, "first second 100% third")
			})
		}
	}
}

// broken are filters in trouble: each is made anew for a case.
func broken(t *testing.T) map[string]func() *miltertest.Script {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it never answers: nobody accepts
	assert.Must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	return map[string]func() *miltertest.Script{
		"away": func() *miltertest.Script { return &miltertest.Script{Address: "127.0.0.1:1"} },
		"slow": func() *miltertest.Script { return &miltertest.Script{Address: silent.Addr().String()} },
		"garbage": func() *miltertest.Script {
			return (&miltertest.Script{Version: 6, Answers: map[byte]string{'R': "HTTP/1.1 400 Bad Request\r\n\r\n"}}).Serve(t)
		},
		"closing": func() *miltertest.Script {
			return (&miltertest.Script{Version: 6, Closes: "E", Answers: map[byte]string{'E': ""}}).Serve(t)
		},
		"too slow": func() *miltertest.Script { return (&miltertest.Script{Version: 6, Silent: "E"}).Serve(t) },
	}
}

// The default action of each filter is its own: what becomes of mail while it is away, slow, or
// answers garbage.
func TestDefaultActionDecidesWhileAFilterIsInTrouble(t *testing.T) {
	for name, makeFilter := range broken(t) {
		for action, want := range map[content.Trouble]string{
			content.TroubleDefer: "451 4.7.1", content.TroubleAccept: "250 2.0.0", content.TroubleReject: "550 5.5.0", content.TroubleQuarantine: "250 2.0.0",
		} {
			t.Run(name+" "+action.String(), func(t *testing.T) {
				f := makeFilter()
				good := (&miltertest.Script{Version: 6, Answers: map[byte]string{'E': miltertest.Packet('h', "X-Good\x00yes\x00") + miltertest.Packet('c', "")}}).Serve(t)
				r := start(t, func(c *Config) {
					m := content.Milter{Trouble: action}
					m.Network, m.Address, m.Timeout, m.ContentTimeout = "tcp", f.Address, 200*time.Millisecond, 200*time.Millisecond
					// The action of the other filter is not that of this one.
					other := patient(good.Address)
					other.Trouble = content.TroubleReject
					c.Filters.Milters = []content.Milter{m, other}
				})
				p := r.greeted()
				assert.Equal(t, p.tryMail(), want)
				r.log.Expect(t, 1, "msg=filter-trouble", "action="+action.String())
				switch action {
				case content.TroubleAccept:
					if text := r.content(); !strings.Contains(text, "X-Good: yes\n") {
						t.Errorf("the other filter was not asked: %q", text)
					}
				case content.TroubleQuarantine:
					if message, _ := r.frozen("filter"); !strings.Contains(message, "X-Good: yes\n") {
						t.Errorf("the other filter was not asked: %q", message)
					}
				default:
					r.nothing()
				}
				p.say("NOOP", "250")
			})
		}
	}
}

// tryMail sends a message and returns code and status of the reply that decides.
func (p *client) tryMail() string {
	p.t.Helper()
	for _, line := range []string{"MAIL FROM:<a@b.example>", "RCPT TO:<" + toUs + ">", "DATA"} {
		if got := p.say(line, ""); got[0] != '2' && got[0] != '3' {
			p.say("RSET", "250")
			return got[:9]
		}
	}
	p.send(strings.ReplaceAll(plain, "\n", "\r\n") + ".\r\n")
	return p.reply()[:9]
}

// many repeats a packet.
func many(n int, packet func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(packet(i))
	}
	return b.String()
}

// A hostile filter never gets more than a refusal, a bounded change or its default action, in
// bounded time and memory; the connection and the next message go on.
func TestHostileFilterIsContained(t *testing.T) {
	packet := miltertest.Packet
	number := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	good := packet('c', "")
	for name, tt := range map[string]struct {
		script *miltertest.Script
		want   string // 451 4.7.1: trouble
	}{
		"answers of another step":          {&miltertest.Script{Answers: map[byte]string{'R': packet('O', strings.Repeat("\x00", 12))}}, "451 4.7.1"},
		"a change where there is nothing":  {&miltertest.Script{Answers: map[byte]string{'M': packet('h', "X\x00y\x00")}}, "451 4.7.1"},
		"skip at the sender":               {&miltertest.Script{Answers: map[byte]string{'M': packet('s', "")}}, "451 4.7.1"},
		"skip at the end":                  {&miltertest.Script{Answers: map[byte]string{'E': packet('s', "")}}, "451 4.7.1"},
		"two answers to one step":          {&miltertest.Script{Answers: map[byte]string{'M': good + packet('r', "")}}, "550 5.7.1"},
		"a packet of a gigabyte":           {&miltertest.Script{Answers: map[byte]string{'E': "\x40\x00\x00\x00h" + strings.Repeat("x", 1<<20)}}, "451 4.7.1"},
		"a packet of four gigabytes":       {&miltertest.Script{Answers: map[byte]string{'C': "\xff\xff\xff\xffc"}}, "451 4.7.1"},
		"a packet of no bytes":             {&miltertest.Script{Answers: map[byte]string{'H': "\x00\x00\x00\x00"}}, "451 4.7.1"},
		"half a packet, then silence":      {&miltertest.Script{Answers: map[byte]string{'R': "\x00\x00\x00\x09y55"}}, "451 4.7.1"},
		"half a packet, then the end":      {&miltertest.Script{Answers: map[byte]string{'R': "\x00\x00\x00\x09y55"}, Closes: "R"}, "451 4.7.1"},
		"the end at the sender":            {&miltertest.Script{Answers: map[byte]string{'M': ""}, Closes: "M"}, "451 4.7.1"},
		"the end in the header":            {&miltertest.Script{Answers: map[byte]string{'L': ""}, Closes: "L"}, "451 4.7.1"},
		"the end in the body":              {&miltertest.Script{Answers: map[byte]string{'B': ""}, Closes: "B"}, "451 4.7.1"},
		"the end between changes":          {&miltertest.Script{Answers: map[byte]string{'E': packet('h', "X\x00y\x00") + packet('b', "new")}, Closes: "E"}, "451 4.7.1"},
		"progress for ever at a recipient": {&miltertest.Script{Answers: map[byte]string{'R': many(1000, func(int) string { return packet('p', "") })}}, "451 4.7.1"},
		"progress for ever at the end":     {&miltertest.Script{Answers: map[byte]string{'E': ""}, Endless: packet('p', "")}, "451 4.7.1"},
		"a body for ever":                  {&miltertest.Script{Answers: map[byte]string{'E': ""}, Endless: packet('b', strings.Repeat("x", 60000))}, "451 4.7.1"},
		"empty pieces of a body for ever":  {&miltertest.Script{Answers: map[byte]string{'E': ""}, Endless: packet('b', "")}, "451 4.7.1"},
		"fields for ever":                  {&miltertest.Script{Answers: map[byte]string{'E': ""}, Endless: packet('h', "X\x00y\x00")}, "451 4.7.1"},
		"recipients for ever":              {&miltertest.Script{Answers: map[byte]string{'E': ""}, Endless: packet('+', "<x@example.org>\x00")}, "451 4.7.1"},
		"a reply of 250":                   {&miltertest.Script{Answers: map[byte]string{'E': packet('y', "250 2.0.0 Ok\x00")}}, "451 4.7.1"},
		"a reply of 354":                   {&miltertest.Script{Answers: map[byte]string{'T': packet('y', "354 go\x00")}}, "451 4.7.1"},
		"a reply of 999":                   {&miltertest.Script{Answers: map[byte]string{'M': packet('y', "999 x\x00")}}, "451 4.7.1"},
		"a reply of four digits":           {&miltertest.Script{Answers: map[byte]string{'M': packet('y', "5500 x\x00")}}, "451 4.7.1"},
		"a reply of nothing":               {&miltertest.Script{Answers: map[byte]string{'M': packet('y', "")}}, "451 4.7.1"},
		"a reply with another in it":       {&miltertest.Script{Answers: map[byte]string{'M': packet('y', "550 5.7.9 no\r\n250 2.1.0 Ok\r\n\x00")}}, "550-5.7.9"},
		"a reply of a megabyte":            {&miltertest.Script{Answers: map[byte]string{'M': packet('y', "550 5.7.9 "+strings.Repeat("x", 1<<20-20)+"\x00")}}, "550 5.7.9"},
		"a reply of 100,000 lines":         {&miltertest.Script{Answers: map[byte]string{'M': packet('y', strings.Repeat("550-5.7.9 x\r\n", 80000)+"550 5.7.9 x\x00")}}, "550-5.7.9"},
		"20,000 recipients": {&miltertest.Script{Answers: map[byte]string{'E': many(20000, func(i int) string {
			return packet('+', fmt.Sprintf("<r%d@example.org>\x00", i))
		}) + good}}, "250 2.0.0"},
		"20,000 deletions of recipients": {&miltertest.Script{Answers: map[byte]string{'E': many(20000, func(i int) string {
			return packet('-', fmt.Sprintf("<r%d@example.org>\x00", i))
		}) + good}}, "250 2.0.0"},
		"20,000 fields on top": {&miltertest.Script{Answers: map[byte]string{'E': many(20000, func(i int) string {
			return packet('i', number(0)+"X-A\x00y\x00")
		}) + good}}, "250 2.0.0"},
		"20,000 changes of a field":     {&miltertest.Script{Answers: map[byte]string{'E': many(20000, func(i int) string { return packet('m', number(uint32(i))+"To\x00y\x00") }) + good}}, "250 2.0.0"},
		"positions outside of a header": {&miltertest.Script{Answers: map[byte]string{'E': packet('i', number(1<<31)+"X-A\x00y\x00") + packet('m', number(1<<31)+"To\x00y\x00") + packet('i', number(1<<31-1)+"X-B\x00y\x00") + good}}, "250 2.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.script.Version = 6
			f := tt.script.Serve(t)
			r := start(t, func(c *Config) {
				m := patient(f.Address)
				if strings.Contains(name, "silence") || strings.Contains(name, "ever") {
					m.ConnectTimeout, m.Timeout, m.ContentTimeout = logtest.Patience, 50*time.Millisecond, 50*time.Millisecond
				}
				c.Filters.Milters = []content.Milter{m}
				c.Limits.MaxSize = 1 << 20
			})
			p := r.greeted()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			assert.Equal(t, p.tryMail(), tt.want)
			if runtime.ReadMemStats(&after); after.HeapSys > before.HeapSys+256<<20 {
				t.Errorf("%d bytes of memory", after.HeapSys-before.HeapSys)
			}
			if tt.want[0] != '2' {
				r.nothing()
			}
			r.clear()
			f.Behave()
			p.say("NOOP", "250")
			// The next message of the connection. Where the time limit is short the machine may need
			// more than one try.
			for deadline := time.Now().Add(logtest.Patience); p.tryMail() != "250 2.0.0"; {
				if time.Now().After(deadline) {
					t.Fatal("the connection does not go on")
				}
			}
		})
	}
}
