package tasmtp

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// notary of a deferred answer, in short: status and remote without ports.
func notary(a taproto.Answer) string {
	n := workspec.ParseNotary(a.Notary)
	remote, _, _ := strings.Cut(n.Remote, " (")
	return n.Status + " " + remote
}

// S19: the name server's answer decides between failed and deferred; Host trouble
// holds the thread.
func TestNameServerAnswers(t *testing.T) {
	const zone = `
null.test.      300 IN MX    0 .
txt.test.       300 IN TXT   "neither MX nor address"
dangling.test.  300 IN MX    10 gone.test.
mxtxt.test.     300 IN MX    10 txt.test.
self.test.      300 IN MX    10 HERE.test.
self.test.      300 IN MX    10 equal.test.
self.test.      300 IN MX    20 worse.test.
half.test.      300 IN MX    10 gone.test.
half.test.      300 IN MX    20 broken.test.
here.test.      300 IN A     127.0.0.1
equal.test.     300 IN A     127.0.0.1
worse.test.     300 IN A     127.0.0.1
`
	server := mxtest.Start(t, zone)
	server.Fail("broken.test", dns.RcodeServerFailure, 999)
	sink := new(Sink).Start(t, "", "") // must stay alone
	s := newStation(t, sink.Port(), server.Addr)
	cases := map[string]struct {
		channel, host string
		word          taproto.Word
		code, text    string
	}{
		"no such domain":             {"smtp", "gone.test", taproto.Error2, "5.1.2", "no such domain"},
		"no such host, smtpx":        {"smtpx", "gone.test", taproto.Error2, "5.1.2", "no such domain"},
		"null MX":                    {"smtp", "null.test", taproto.Error2, "5.1.10", "takes no mail"},
		"neither MX nor address":     {"smtp", "txt.test", taproto.Error2, "5.4.4", "none"},
		"MX that does not exist":     {"smtp", "dangling.test", taproto.Error2, "5.4.4", "no such domain"},
		"MX without address":         {"smtp", "mxtxt.test", taproto.Error2, "5.4.4", "none"},
		"best MX is ourselves":       {"smtp", "self.test", taproto.Error2, "5.4.6", "loops back to here.test"},
		"our own name without MX":    {"smtp", "here.test", taproto.Error2, "5.4.6", "loops back to here.test"},
		"SERVFAIL":                   {"smtp", "broken.test", taproto.DeferAll, "4.4.3", "SERVFAIL"},
		"one MX cannot be looked up": {"smtp", "half.test", taproto.DeferAll, "4.4.3", "SERVFAIL"},
		"domain that cannot exist":   {"smtp", "a..b", taproto.Error2, "5.1.2", "empty label"},
		"fault of the routing table": {"smtpx", "here.test:0", taproto.DeferAll, "4.3.5", "no port"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := s.Queue(Message{Rcpts: Rcpts(c.channel, c.host, "a@x", "b@x")})
			answers := s.deliver(file, c.host)
			if len(answers) != 2 {
				t.Fatalf("got %+v", answers)
			}
			for _, a := range answers {
				Only(t, []taproto.Answer{a}, c.word, c.text)
			}
			assert.Equal(t, s.status(file, answers[0]), c.code)
		})
	}
	assert.Equal(t, sink.Connects(), 0, "connections were made")
}

// S19: a server that is better than ourselves is used, those behind us are not.
func TestLoopToSelfKeepsBetterServers(t *testing.T) {
	server := mxtest.Start(t, `
there.test.  300 IN MX 5  better.test.
there.test.  300 IN MX 10 here.test.
there.test.  300 IN MX 20 worse.test.
better.test. 300 IN A  127.0.0.2
worse.test.  300 IN A  127.0.0.1
`)
	sink := new(Sink).Start(t, "", "") // on 127.0.0.1: where worse.test is
	s := newStation(t, sink.Port(), server.Addr)
	a := s.one("smtp", "there.test")
	if got, want := notary(a), "4.4.1 dns; better.test"; a.Word != taproto.DeferAll || got != want {
		t.Errorf("got %s %s, want %s", a.Word, got, want)
	}
	if sink.Connects() != 0 {
		t.Error("a server behind ourselves was used")
	}
}

// S19: by preference, to the next address when one does not answer, to the next
// server when one does not want us; an alias is followed.
func TestNextServerIsTried(t *testing.T) {
	server := mxtest.Start(t, `
alias.test.  300 IN CNAME there.test.
there.test.  300 IN MX 30 good.test.
there.test.  300 IN MX 20 refusing.test.
there.test.  300 IN MX 10 dead.test.
there.test.  300 IN MX 15 gone.test.
dead.test.   300 IN A  127.0.0.3
dead.test.   300 IN A  127.0.0.4
refusing.test. 300 IN A 127.0.0.2
good.test.   300 IN A  127.0.0.1
`)
	for _, greeting := range []string{"554 5.7.1 go away", "421 4.3.2 busy", "450 4.3.2 later", "HANGUP", "what?"} {
		t.Run(greeting, func(t *testing.T) {
			good := new(Sink).Start(t, "", "")
			refusing := (&Sink{Answer: On("", greeting)}).Start(t, "tcp", fmt.Sprint("127.0.0.2:", good.Port()))
			s := newStation(t, good.Port(), server.Addr)
			s.want(taproto.OK3, "smtp", "alias.test")
			if refusing.Connects() != 1 || good.Connects() != 1 {
				t.Errorf("connections: %d to the better, %d to the worse", refusing.Connects(), good.Connects())
			}
		})
	}
}

// The result when no server accepts us: never a failure, always the host's trouble.
func TestNoServerAccepts(t *testing.T) {
	closed := closedPort(t)
	refusing := func(answer func(string) string) int {
		return (&Sink{Answer: answer}).Start(t, "", "").Port()
	}
	greet := func(text string) int { return refusing(func(string) string { return text }) }
	on := func(verb, text string) int {
		return refusing(func(c string) string {
			if strings.HasPrefix(c, verb) {
				return text
			}
			return ""
		})
	}
	cases := map[string]struct {
		port       int
		code, text string
	}{
		"connection refused":  {closed, "4.4.1", fmt.Sprintf("connect to 127.0.0.1:%d: connection refused", closed)},
		"greeting 554":        {greet("554 5.7.1 go away"), "4.7.1", "554 5.7.1 go away"},
		"greeting 554, bare":  {greet("554 no"), "4.3.2", "554 no"},
		"greeting 421":        {greet("421 4.3.2 busy"), "4.3.2", "421 4.3.2 busy"},
		"hangs up at once":    {greet("HANGUP"), "4.4.2", "waiting for the greeting: unexpected EOF"},
		"EHLO and HELO no":    {on("", "550 5.7.1 no"), "4.7.1", "550 5.7.1 no"},
		"EHLO 421":            {on("EHLO", "421 4.7.0 enough"), "4.7.0", "421 4.7.0 enough"},
		"MAIL 450":            {on("MAIL", "450 4.7.1 slow down"), "4.7.1", "450 4.7.1 slow down"},
		"MAIL 421":            {on("MAIL", "421 4.7.1 slow down"), "4.7.1", "421 4.7.1 slow down"},
		"hangs up after MAIL": {on("MAIL", "HANGUP"), "4.4.2", "waiting for the answer to MAIL: unexpected EOF"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStation(t, c.port, "")
			a := s.one("smtp", "[127.0.0.1]")
			if a.Word != taproto.DeferAll || !strings.HasSuffix(a.Text, c.text) {
				t.Errorf("got %s %s, want %s", a.Word, a.Text, c.text)
			}
			assert.Equal(t, notary(a), c.code+" X-IP-addr; [127.0.0.1]")
		})
	}
}

// K14: what one message or mailbox meets does not hold the thread.
func TestWhatConcernsOneMessageDoesNotHoldTheThread(t *testing.T) {
	cases := map[string]struct{ command, answer string }{
		"mailbox full":            {"RCPT", "452 4.2.2 full"},
		"greylisted":              {"RCPT", "451 4.7.1 later"},
		"421 to RCPT":             {"RCPT", "421 4.7.0 enough"},
		"hangs up at RCPT":        {"RCPT", "HANGUP"},
		"sender not known now":    {"MAIL", "450 4.1.8 sender's domain cannot be looked up"},
		"no space for this size":  {"MAIL", "452 4.3.1 no space"},
		"DATA refused":            {"DATA", "451 4.3.0 later"},
		"message refused":         {".", "451 4.6.0 later"},
		"421 to the dot":          {".", "421 4.3.0 closing"},
		"hangs up on the message": {".", "HANGUP"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, s := newPair(t, &Sink{Answer: On(c.command, c.answer)})
			s.want(taproto.Deferred, "smtp", "[127.0.0.1]")
		})
	}
}

// A connection that is lost after the final dot: the message may have arrived, and
// that is said.
func TestLostAfterTheDotIsInDoubt(t *testing.T) {
	sink := (&Sink{Answer: On(".", "HANGUP")}).Start(t, "", "")
	var log strings.Builder
	s := newStation(t, sink.Port(), "", func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	a := s.one("smtp", "[127.0.0.1]")
	assert.Equal(t, a.Text, "waiting for the answer to the final dot: unexpected EOF; in doubt, the server may have taken the message")
	if got := log.String(); !strings.Contains(got, "msg=in-doubt") || !strings.Contains(got, "rcpt=to@there.test") {
		t.Errorf("logged %q", got)
	}
}

// A destination that is down is looked at once per message, not once per transaction.
func TestDeadHostIsTriedOncePerMessage(t *testing.T) {
	var tries atomic.Int32
	sink, s := newPair(t, &Sink{Answer: func(string) string { tries.Add(1); return "554 no" }})
	list := Rcpts("smtp", "[127.0.0.1]", "a@x", "b@x", "c@x")
	list[1].Ret, list[2].EnvID = "FULL", "other"
	if answers := s.deliver(s.Queue(Message{Rcpts: list}), "[127.0.0.1]"); len(answers) != 3 {
		t.Errorf("got %+v", answers)
	}
	assert.Equal(t, sink.Connects(), 1, "connections")
}

// The search for a server ends in time, however many addresses there are.
func TestSearchHasADeadline(t *testing.T) {
	var zone strings.Builder
	for i := range 50 {
		fmt.Fprintf(&zone, "there.test. 300 IN MX %d mx%d.test.\nmx%d.test. 300 IN A 127.0.0.1\n", i, i, i)
	}
	server := mxtest.Start(t, zone.String())
	sink := (&Sink{Answer: On("", "SILENCE")}).Start(t, "", "")
	s := newStation(t, sink.Port(), server.Addr, func(c *Config) {
		c.Search = 100 * time.Millisecond
		c.Timeouts.Greeting = 60 * time.Millisecond
	})
	a := s.one("smtp", "there.test")
	Only(t, []taproto.Answer{a}, taproto.DeferAll, "waiting for the greeting: ")
	if got := sink.Connects(); got > 5 {
		t.Errorf("%d servers were tried", got)
	}
}

// K15
func TestConnectTimeout(t *testing.T) {
	addr := fullListener(t, "127.0.0.1:0")
	s := newStation(t, addr.Port, "", func(c *Config) { c.Timeouts.Connect = 50 * time.Millisecond })
	a := s.one("smtp", "[127.0.0.1]")
	if got, want := a.Text, "connect to "+addr.String()+": i/o timeout"; a.Word != taproto.DeferAll || got != want {
		t.Errorf("got %s %s, want %s", a.Word, got, want)
	}
	assert.Equal(t, notary(a), "4.4.1 X-IP-addr; [127.0.0.1]")
}

// A socket that is not there yet is a server that is down.
func TestMissingSocketIsDeferred(t *testing.T) {
	s := newStation(t, 1, "")
	path := filepath.Join(t.TempDir(), "lmtp.sock")
	a := s.one("lmtp", "unix:"+path)
	Only(t, []taproto.Answer{a}, taproto.DeferAll, "no such file")
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket was made")
	}
}

func TestHostForms(t *testing.T) {
	cases := map[string]struct{ channel, host, want string }{
		"name":                     {"smtp", "Example.TEST", "mx example.test 25"},
		"final dot":                {"smtp", "example.test.", "mx example.test 25"},
		"name and port":            {"smtp", "example.test:2525", "example.test 2525"},
		"name in brackets":         {"smtp", "[example.test]", "example.test 25"},
		"name in brackets, port":   {"smtp", "[example.test]:26", "example.test 26"},
		"IPv4":                     {"smtp", "[192.0.2.1]", "192.0.2.1 25"},
		"IPv4 and port":            {"smtp", "[192.0.2.1]:26", "192.0.2.1 26"},
		"IPv4 without brackets":    {"smtp", "192.0.2.1", "192.0.2.1 25"},
		"IPv6":                     {"smtp", "[2001:db8::1]", "2001:db8::1 25"},
		"IPv6 with RFC 5321's tag": {"smtp", "[IPv6:2001:db8::1]:26", "2001:db8::1 26"},
		"IPv6 without brackets":    {"smtp", "2001:db8::1", "2001:db8::1 25"},
		"mapped IPv4":              {"smtp", "[::ffff:192.0.2.1]", "192.0.2.1 25"},
		"smtpx":                    {"smtpx", "example.test", "example.test 25"},
		"a channel like smtp":      {"smtp-slow", "example.test", "mx example.test 25"},
		"IDN":                      {"smtp", "bücher.example", "mx xn--bcher-kva.example 25"},
		"lmtp":                     {"lmtp", "example.test:2003", "lmtp example.test 2003"},
		"lmtp, no port":            {"lmtp", "example.test", "lmtp example.test 24"},
		"lmtp, socket":             {"lmtp", "unix:/run/Lmtp.sock", "lmtp unix /run/Lmtp.sock"},
		"lmtp, relative path":      {"lmtp", "unix:lmtp.sock", `the routing table has an invalid host: "unix:lmtp.sock": a socket's path begins with /`},
		"name that cannot exist":   {"smtp", "a..b", `domain "a..b": empty label in the domain`},
		"brackets in brackets":     {"smtp", "[[::1]]", `the routing table has an invalid host: "[[::1]]": neither port nor end after ]`},
		"empty":                    {"smtp", "", `the routing table has an invalid host: "": no name`},
		"bracket open":             {"smtp", "[192.0.2.1", `the routing table has an invalid host: "[192.0.2.1": [ without ]`},
		"text after bracket":       {"smtp", "[192.0.2.1]x", `the routing table has an invalid host: "[192.0.2.1]x": neither port nor end after ]`},
		"port zero":                {"smtp", "example.test:0", `the routing table has an invalid host: "example.test:0": no port: "0"`},
		"port too big":             {"smtp", "example.test:65536", `the routing table has an invalid host: "example.test:65536": no port: "65536"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := parseDestination(c.channel, c.host, 25)
			got := d.words()
			if err != nil {
				got = err.Error()
			}
			assert.Equal(t, got, c.want)
		})
	}
}

func (d destination) words() string {
	s := ""
	if d.lmtp {
		s = "lmtp "
	}
	if d.mx {
		s += "mx "
	}
	switch {
	case d.unix != "":
		return s + "unix " + d.unix
	case d.addr.IsValid():
		s += d.addr.String()
	}
	return s + d.name + fmt.Sprintf(" %d", d.port)
}

func FuzzDestination(f *testing.F) {
	for _, s := range []string{"a.test", "[::1]:25", "a:1", "unix:/x", "[", "]", ":", "[]:1"} {
		f.Add("smtp", s)
		f.Add("lmtp", s)
	}
	f.Fuzz(func(t *testing.T, channel, host string) {
		d, err := parseDestination(channel, host, 25)
		if err != nil {
			return
		}
		n := 0
		for _, set := range []bool{d.name != "", d.addr.IsValid(), d.unix != ""} {
			if set {
				n++
			}
		}
		if n != 1 || d.mx && d.name == "" || d.port < 1 || d.port > 65535 {
			t.Errorf("%q: got %+v", host, d)
		}
	})
}

func TestRemoteIsNamedAsInReports(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 40000}
	cases := map[string]struct {
		t     target
		local net.Addr
		want  string
	}{
		"address":       {target{"tcp", "192.0.2.1:25", ""}, local, "X-IP-addr; [192.0.2.1] (192.0.2.1|25|192.0.2.9|40000)"},
		"name":          {target{"tcp", "192.0.2.1:25", "mx.test"}, local, "dns; mx.test (192.0.2.1|25|192.0.2.9|40000)"},
		"not connected": {target{"tcp", "[2001:db8::1]:25", "mx.test"}, nil, "dns; mx.test (2001:db8::1|25)"},
		"unix":          {target{"unix", "/run/lmtp.sock", ""}, local, "x-unix; /run/lmtp.sock"},
	}
	for name, c := range cases {
		assert.Equal(t, c.t.remote(c.local), c.want, name)
	}
}

// Net3: what reaches a listener of ours, whatever its address looks like.
func TestNet3OwnAddresses(t *testing.T) {
	cases := map[string]struct {
		listen   string
		port     int
		ours     string
		notOurs  string
		settings string
	}{
		"one address":  {listen: "192.0.2.1:25", port: 25, ours: "192.0.2.1 ::ffff:192.0.2.1", notOurs: "192.0.2.2 127.0.0.1 0.0.0.0 ::1"},
		"another port": {listen: "192.0.2.1:2525", port: 25, notOurs: "192.0.2.1 127.0.0.1"},
		"any, IPv4":    {listen: "0.0.0.0:25", port: 25, ours: "127.0.0.1 127.9.9.9 ::ffff:127.0.0.1 0.0.0.0 ::ffff:0.0.0.0 :: 192.0.2.1", notOurs: "192.0.2.2 2001:db8::1 ::1"},
		"any, IPv6":    {listen: "[::]:25", port: 25, ours: "127.0.0.1 127.9.9.9 ::1 :: 0.0.0.0 192.0.2.1 2001:db8::1", notOurs: "192.0.2.2 2001:db8::2"},
		"no host":      {listen: ":25", port: 25, ours: "127.0.0.1 ::1 192.0.2.1 2001:db8::1", notOurs: "192.0.2.2"},
		"loopback":     {listen: "127.0.0.1:25", port: 25, ours: "127.0.0.1 ::ffff:127.0.0.1 0.0.0.0 ::", notOurs: "127.0.0.2 192.0.2.1"},
		"mapped":       {listen: "[::ffff:127.0.0.1]:25", port: 25, ours: "127.0.0.1 0.0.0.0", notOurs: "127.0.0.2"},
		"by name":      {listen: "localhost:25", port: 25, ours: "127.0.0.1 ::1", notOurs: "192.0.2.1"},
		"submission":   {settings: "SUBMISSIONLISTEN=0.0.0.0:587\nSUBMISSIONSLISTEN=192.0.2.1:465\n", listen: "off", port: 587, ours: "192.0.2.1 127.0.0.1", notOurs: "192.0.2.2"},
		"none":         {listen: "off", port: 25, notOurs: "127.0.0.1 0.0.0.0 192.0.2.1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := selfAddrs{listeners: ownListeners(settings(t, map[string]string{"zmailer.conf": "SMTPLISTEN=" + c.listen + "\n" + c.settings})), now: time.Now, interfaces: func() ([]net.Addr, error) {
				_, a, _ := net.ParseCIDR("192.0.2.1/24")
				_, b, _ := net.ParseCIDR("2001:db8::1/64")
				a.IP, b.IP = net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")
				return []net.Addr{a, b}, nil
			}}
			for list, want := range map[string]bool{c.ours: true, c.notOurs: false} {
				for _, text := range strings.Fields(list) {
					assert.Equal(t, o.has(netip.MustParseAddr(text), c.port), want, text)
				}
			}
		})
	}
}

// Net3: a domain whose MX leads to our own listener fails before anything is connected to,
// and a server that is not better than we are is not tried.
func TestNet3DomainThatLeadsToOurselves(t *testing.T) {
	server := mxtest.Start(t, `
zero.test.    300 IN MX 10 zero.mx.test.
loop.test.    300 IN MX 10 loop.mx.test.
bare.test.    300 IN A  127.0.0.7
behind.test.  300 IN MX 10 loop.mx.test.
behind.test.  300 IN MX 20 good.mx.test.
better.test.  300 IN MX 10 good.mx.test.
better.test.  300 IN MX 20 loop.mx.test.
zero.mx.test. 300 IN A  0.0.0.0
loop.mx.test. 300 IN A  127.0.0.7
good.mx.test. 300 IN A  127.0.0.1
`)
	sink := new(Sink).Start(t, "", "")
	_, port, _ := net.SplitHostPort(sink.Addr())
	text := fmt.Sprintf("SMTPPORT=%s\nSMTPLISTEN=127.0.0.7:%s\nHOSTNAME=here.test\nRESOLVER=%s\n", port, port, server.Addr)
	cfg, err := ConfigFrom(settings(t, map[string]string{"zmailer.conf": text}))
	assert.Must(t, err)
	s := newStation(t, sink.Port(), server.Addr, func(c *Config) { c.Listeners = cfg.Listeners })
	for _, host := range []string{"zero.test", "loop.test", "bare.test", "behind.test"} {
		a := s.one("smtp", host)
		Only(t, []taproto.Answer{a}, taproto.Error2, "loops back to")
	}
	assert.Equal(t, sink.Connects(), 0, "connections")
	s.want(taproto.OK3, "smtp", "better.test")
	// The postmaster's own routes are as they are.
	s.want(taproto.OK3, "smtp", "[127.0.0.1]")
}
