package smtpserver

import (
	"io"
	"net"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

func TestOneConnectionTakesManyMessages(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	for range 3 {
		// RFC 2920 section 3.1: the commands of one message at once, and after its end those
		// of the next.
		p.send("MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n")
		p.expect("250", "250", "354")
		p.send("Subject: x\r\n\r\nfirst\r\n.\r\nRSET\r\nMAIL FROM:<e@f>\r\nRCPT TO:<g@h>\r\nBDAT 6 LAST\r\nsecond")
		p.expect("250 2.0.0", "250", "250", "250", "250 2.0.0")
	}
	// The content of DATA too, as a client may not but some do.
	p.send("MAIL FROM:<e@f>\r\nRCPT TO:<g@h>\r\nDATA\r\nthird\r\n.\r\nQUIT\r\n")
	p.end("250 2.1.0 ", "250 2.1.5 ", "354", "250 2.0.0", "221 2.0.0 ")
	seen := map[string]int{}
	for _, name := range r.names("router") {
		_, rest, _ := strings.Cut(r.message(name), "\nfrom ")
		seen[rest]++
	}
	for text, want := range map[string]int{
		"<a@b>\nto <c@d>\nenv-end\nSubject: x\n\nfirst\n": 3, "<e@f>\nto <g@h>\nenv-end\nsecond": 3, "<e@f>\nto <g@h>\nenv-end\nthird\n": 1,
	} {
		assert.Equal(t, seen[text], want)
	}
}

// RFC 3030 section 2: a command that does not belong to a message in chunks is refused and
// does not end the message.
func TestCommandsBetweenChunksLeaveTheMessageAlone(t *testing.T) {
	r := start(t, nil)
	p := r.greeted().begin()
	p.chunk("one", "")
	p.expect("250 2.0.0")
	p.say("NOOP", "250")
	for _, line := range []string{"DATA", "MAIL FROM:<e@f>", "RCPT TO:<g@h>", "RSETTLE"} {
		p.say(line, "503")
	}
	p.say("BDAT x", "501")
	p.chunk("two", " last")
	p.expect("250 2.0.0")
	assert.Equal(t, r.content(), "onetwo")
	p.begin().say("BDAT 0", "250")
	for range 11 {
		p.say("NOOP", "250")
	}
	p.end("421")
}

func TestChunkRefusedByItsSyntaxIsNotAMessage(t *testing.T) {
	r := start(t, nil)
	p := r.greeted().begin()
	// What follows a BDAT that cannot be read is taken for commands.
	p.send("BDAT 18 LAST x\r\nDATA\r\nhi\r\n.\r\nNOOP\r\n")
	p.expect("501", "354", "250 2.0.0", "250")
	assert.Equal(t, r.content(), "hi\n")
}

func TestPipelinedRepliesComeTogether(t *testing.T) {
	p := start(t, nil).greeted()
	p.send("MAIL FROM:<a@b>\r\n" + strings.Repeat("RCPT TO:<c@d>\r\n", 20) + "DATA\r\n")
	b := make([]byte, 64<<10)
	n, err := p.Read(b)
	if got := strings.Count(string(b[:n]), "\r\n"); err != nil || got != 22 {
		t.Errorf("the first segment holds %d replies, %v; want 22", got, err)
	}
}

// RFC 5321 section 4.1.1.1: each greeting begins with our name. EHLO offers what there is.
func TestGreetings(t *testing.T) {
	p := start(t, nil).dial()
	p.say("HELO c", "250 mx.example.org")
	p.say("EHLO <script>", "250-mx.example.org")
	p.say("EHLO", "501")
	p.say("LHLO c", "500")
	got := p.say("EHLO c", "250-mx.example.org")
	for _, word := range []string{"PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING", "SMTPUTF8", "DSN", "SIZE 209715200", "LIMITS RCPTMAX=100"} {
		assert.Contains(t, got, word+"\r\n")
	}
	for _, word := range []string{"BINARYMIME", "<script>", "STARTTLS", "AUTH", "XCLIENT"} {
		if strings.Contains(got, word) {
			t.Errorf("%s in %q", word, got)
		}
	}
	p.say("MAIL FROM:<a@b> BODY=BINARYMIME", "504")
	p.say("HELP", "214 2.0.0")
	p.say("help me", "214 2.0.0")
	p.say("HELPX", "500")
}

func TestBadCommandsAreRefused(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Errors = 0 })
	for name, tt := range map[string]struct{ lines, want string }{
		"bad sender":             {"MAIL FROM:<a@@b>", "501"},
		"bad sender's domain":    {"MAIL FROM:<a@b_.-c>", "501"},
		"null recipient":         {"MAIL FROM:<a@b>|RCPT TO:<>", "501"},
		"two at":                 {"MAIL FROM:<a@b>|RCPT TO:<c@d@e>", "501"},
		"control character":      {"MAIL FROM:<a@b>|RCPT TO:<c\x01@d>", "501"},
		"UTF-8 without SMTPUTF8": {"MAIL FROM:<ä@b>", "553 5.6.7"},
		"UTF-8 recipient":        {"MAIL FROM:<a@b>|RCPT TO:<ä@b>", "553 5.6.7"},
		"no UTF-8":               {"MAIL FROM:<\xff@b> SMTPUTF8", "501"},
		"RCPT first":             {"RCPT TO:<c@d>", "50"},
		"DATA without recipient": {"MAIL FROM:<a@b>|DATA", "50"},
		"MAIL twice":             {"MAIL FROM:<a@b>|MAIL FROM:<e@f>", "503 5.5.1"},
		"bad ENVID":              {"MAIL FROM:<a@b> ENVID=+4", "501"},
		"ENVID twice":            {"MAIL FROM:<a@b> ENVID=one ENVID=two", "501 5.5.4"},
		"bad NOTIFY":             {"MAIL FROM:<a@b>|RCPT TO:<c@d> NOTIFY=NEVER,DELAY", "501"},
		"ORCPT twice":            {"MAIL FROM:<a@b>|RCPT TO:<c@d> ORCPT=rfc822;x@y orcpt=rfc822;z@y", "501 5.5.4"},
		"bad chunk":              {"MAIL FROM:<a@b>|RCPT TO:<c@d>|BDAT x LAST", "501"},
		"chunk with extra":       {"MAIL FROM:<a@b>|RCPT TO:<c@d>|BDAT 9 LAST x", "501"},
		"PROXY":                  {"PROXY TCP4 203.0.113.9 192.0.2.25 40000 25", "50"},
		"XCLIENT":                {"XCLIENT ADDR=192.0.2.1", "550 5.7.0"},
		"AUTH":                   {"AUTH PLAIN " + b64("\x00jane\x00secret"), "502 5.5.1"},
		"STARTTLS":               {"STARTTLS", "502 5.5.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.greeted()
			lines := strings.Split(tt.lines, "|")
			for _, l := range lines[:len(lines)-1] {
				p.say(l, "250")
			}
			if got := p.say(lines[len(lines)-1], tt.want); strings.Count(got, "\n") != 1 {
				t.Errorf("reply %q", got)
			}
			p.say("NOOP", "250")
			r.nothing()
		})
	}
}

func TestCommandLinesAreLimited(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	p.say("NOOP "+strings.Repeat("x", 4096-7), "250")
	p.say("NOOP "+strings.Repeat("x", 4096), "500 5.5.2")
	p.say("NOOP "+strings.Repeat("x", 30000), "500 5.5.2")
	p.say("NOOP", "250")
	p.send("NOOP " + strings.Repeat("x", 70000))
	p.end("500 5.5.2")
}

func TestResetDropsTheTransaction(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	for _, between := range []string{"RSET", "EHLO again", "HELO again"} {
		p.from("dropped@b").to("c@d").chunk("ha\r\n", "")
		p.expect("250")
		p.say(between, "250")
		p.say("BDAT 0 LAST", "503")
		p.say("DATA", "503")
	}
	p.mail("a@b", "c@d", plain, "250")
	r.only("from <a@b>")
}

// RFC 1870 section 5: the size may have twenty digits, and too large is 552, not 501.
func TestDeclaredSizes(t *testing.T) {
	for name, test := range map[string]struct {
		limit int64
		param string
		want  string
	}{
		"more than 4 GB, no limit":      {0, "SIZE=5000000000", "250"},
		"more than 4 GB, below limit":   {6 << 30, "BODY=8BITMIME SIZE=5000000000 RET=HDRS", "250"},
		"more than 4 GB, above limit":   {1 << 20, "size=5000000000", "552 5.3.4"},
		"the limit":                     {1000, "SIZE=1000", "250"},
		"more than the limit":           {1000, "SIZE=1001", "552 5.3.4"},
		"twenty digits":                 {1 << 20, "SIZE=99999999999999999999", "552 5.3.4"},
		"more digits than that":         {1 << 20, "SIZE=999999999999999999999", "501"},
		"no number":                     {1 << 20, "SIZE=1x1111111111", "501"},
		"4 GB less one":                 {0, "SIZE=4294967295", "250"},
		"another parameter with digits": {1 << 20, "ENVID=5000000000 SIZE=5", "250"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, func(c *Config) { c.Limits.MaxSize = test.limit }).greeted()
			p.say(`MAIL FROM:<"x SIZE=1"@example.net> `+test.param, test.want)
		})
	}
}

// M46: sizes that were not declared. RFC 1870 section 4: line ends are counted, stuffed dots
// are not.
func TestMessageAboveTheSizeIsRefused(t *testing.T) {
	const size = 100 << 10
	exact := "." + strings.Repeat("0123456789abcd\r\n", size/16)[1:]
	r := start(t, func(c *Config) { c.Limits.MaxSize = size })
	p := r.greeted()
	for _, data := range []string{exact + "x\r\n", strings.Repeat(exact, 5)} {
		p.begin().data().send("." + data + ".\r\n")
		p.expect("552 5.3.4")
	}
	for _, last := range []string{"", " LAST"} {
		p.begin().chunk("x\r\n", "")
		p.chunk(exact, last)
		p.expect("250", "552 5.3.4")
		p.say("RSET", "250")
	}
	r.nothing()
	p.begin().data().send("." + exact + ".\r\n")
	p.expect("250")
	if got := r.content(); len(got) != size-size/16 {
		t.Errorf("%d bytes", len(got))
	}
}

// FuzzSession: whatever a client says, by SMTP or LMTP, the server neither panics nor
// waits for a client that has gone, and files are whole messages.
func FuzzSession(f *testing.F) {
	for _, s := range []string{
		"EHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n.\r\nQUIT\r\n",
		"EHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 3\r\nabcBDAT 2 LAST\r\nde",
		"HELO c\r\nRCPT TO:<postmaster>\r\nBDAT 99999999999\r\nAUTH PLAIN x\r\nSTARTTLS\r\n\r\n",
		"EHLO c\r\nXCLIENT ADDR=127.0.0.2 LOGIN=ann\r\nEHLO d\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n.\r\nXCLIENT X\r\n",
		"EHLO c\r\nMAIL FROM:<a@b>\r\nSTARTTLS\r\n",
		"LHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<postmaster>\r\nRCPT TO:<c@mx.example.org>\r\nBDAT 1\r\nxRSET\r\nMAIL FROM:<> REQUIRETLS\r\nHELP\r\n",
		"LHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nRCPT TO:<c@mx.example.org>\r\nDATA\r\nx\r\n.\r\nLHLO d\r\n",
	} {
		f.Add([]byte(s), strings.HasPrefix(s, "L"))
	}
	r := startSecured(f, func(c *Config) { c.XClientNets, c.Listen[session.RoleLMTP] = loopback, []string{"127.0.0.1:0"} })
	f.Fuzz(func(t *testing.T, said []byte, lmtp bool) {
		r.t = t
		port := 0
		if lmtp {
			port = 3
		}
		p := r.connect(port)
		p.expect("220")
		// The server may have closed the connection in the middle.
		_, _ = p.Write(said)
		if err := p.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			return
		}
		all, _ := io.ReadAll(p.r)
		n := len(accepted.FindAll(all, -1))
		if lmtp {
			n = min(n, 1) // a reply for each recipient
		}
		if got := len(r.names("router")); got < n {
			t.Fatalf("%q: %d messages are accepted, router/ has %d", said, n, got)
		}
		if r.log.Count("level=ERROR") > 0 {
			t.Fatalf("%q:\n%s", said, r.log)
		}
		for _, name := range r.names("router") {
			r.message(name)
		}
		r.clear()
	})
}
