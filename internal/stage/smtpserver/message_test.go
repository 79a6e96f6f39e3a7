package smtpserver

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// M1: SMTP's form is undone and nothing else: golden message files.
func TestMessageFileHoldsTheMessagesBytes(t *testing.T) {
	for name, data := range map[string]string{
		"plain":             "Subject: x\r\n\r\nhi\r\n.\r\n",
		"empty":             ".\r\n",
		"empty body":        "Subject: x\r\n\r\n.\r\n",
		"dots":              "..\r\n...\r\n..x\r\na.\r\n.\r\n",
		"dot before CR":     "x\r\n..\rx\r\n.\r\n",
		"unstuffed dot":     "x\r\n.y\r\n.\ry\r\n.\r\n",
		"NULs and 8 bit":    "\x00\xff\x80\r\n\x00\r\n.\r\n",
		"bare LF":           "a\nb\r\n\n\r\n.\r\n",
		"bare CR":           "a\rb\r\r\n\r\r\n.\r\n",
		"CR before the end": "a\r\r\n.\r\n",
		"no header":         "just text\r\n.\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.greeted().from("a@example.net").to("b@example.org").data()
			p.send(data)
			p.expect("250 2.0.0")
			p.say("QUIT", "221")
			golden(t, "data "+name, r.only())
		})
	}
}

// No sequence depends on how it was cut: the same bytes, one write(2) each.
func TestContentDoesNotDependOnPieces(t *testing.T) {
	r := start(t, nil)
	p := r.greeted().begin().data()
	for _, b := range []byte("a\r\n..\r\r\n\n.\r\n.\n.\rx\r\n.\r\n") {
		p.send(string(b))
	}
	p.expect("250")
	assert.Equal(t, r.content(), "a\n.\r\n\n.\n\n.\rx\n")
}

func TestChunksHoldTheMessagesBytes(t *testing.T) {
	big := strings.Repeat("0123456789abcde\r\n", 8000)
	for name, tt := range map[string]struct {
		chunks []string
		want   string
	}{
		"one byte":            {[]string{"x"}, "x"},
		"nothing":             {[]string{""}, ""},
		"CRLF cut in two":     {[]string{"a\r", "\nb"}, "a\nb"},
		"CR at the end":       {[]string{"a\r"}, "a\r"},
		"dots mean nothing":   {[]string{"a\r\n.\r\n.", ".\r\n"}, "a\n.\n..\n"},
		"chunk of commands":   {[]string{"QUIT\r\nBDAT 5\r\n", "RSET\r\n"}, "QUIT\nBDAT 5\nRSET\n"},
		"any bytes":           {[]string{"\x00\xff\n\r\r\n", "\n"}, "\x00\xff\n\r\n\n"},
		"empty last chunk":    {[]string{"a\r\n", ""}, "a\n"},
		"large":               {[]string{big, big[:5], big[5:]}, strings.ReplaceAll(big+big, "\r\n", "\n")},
		"long line":           {[]string{strings.Repeat("x", 200<<10) + "\r\n"}, strings.Repeat("x", 200<<10) + "\n"},
		"a long header field": {[]string{"X: " + strings.Repeat("x", 200<<10) + "\r\n\r\nhi"}, "X: " + strings.Repeat("x", 200<<10) + "\n\nhi"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.greeted()
			// RFC 3030 section 2: chunks may follow their commands without waiting.
			all := "MAIL FROM:<a@example.net>\r\nRCPT TO:<b@example.org>\r\n"
			replies := []string{"250", "250"}
			for i, c := range tt.chunks {
				last := ""
				if i == len(tt.chunks)-1 {
					last = " LAST"
				}
				all += fmt.Sprintf("BDAT %d%s\r\n%s", len(c), last, c)
				replies = append(replies, "250 2.0.0")
			}
			p.send(all + "QUIT\r\n")
			p.end(append(replies, "221")...)
			assert.Equal(t, r.content(), tt.want)
		})
	}
}

// The parameters reach the envelope as the client wrote them; samples/04-dsn is
// ZMailer's file for the same transaction.
func TestEnvelopeHoldsParameters(t *testing.T) {
	for name, tt := range map[string]struct {
		greet, mail string
		rcpts       []string
	}{
		"plain":       {"EHLO client.example.net", "<sender@client.example.net>", []string{"<user@a.example.com>"}},
		"HELO":        {"HELO client.example.net", "<sender@client.example.net>", []string{"<user@a.example.com>"}},
		"null sender": {"EHLO client.example.net", "<>", []string{"<user@a.example.com>"}},
		"DSN": {"EHLO client.example.net", "<sender@client.example.net> RET=HDRS ENVID=QQ314159", []string{
			"<user@a.example.com> NOTIFY=SUCCESS,FAILURE,DELAY ORCPT=rfc822;Orig+2BUser@a.example.com",
			"<never@a.example.com> NOTIFY=NEVER",
			"<plain@a.example.com>"}},
		"xtext stays":   {"EHLO c", "<a@b> ENVID=+41b+3D+2B", []string{"<c@d> ORCPT=RFC822;+61@b"}},
		"8BITMIME":      {"EHLO c", "<a@b> BODY=8bitmime SIZE=100", []string{"<c@d>"}},
		"SMTPUTF8":      {"EHLO bücher.example", "<jö@bücher.example> SMTPUTF8 BODY=8BITMIME", []string{"<ü@d.example> ORCPT=utf-8;ü@d.example"}},
		"quoted":        {"EHLO c", `<"a b"@c>`, []string{`<"x@y"@c>`, `<"a>b \"c"@d> NOTIFY=NEVER`}},
		"source route":  {"EHLO c", "<@r.example:a@b>", []string{"<@x,@y:c@d>"}},
		"postmaster":    {"EHLO c", "<a@b>", []string{"<Postmaster>", "<postMASTER> NOTIFY=NEVER"}},
		"literal":       {"EHLO [192.0.2.1]", "<a@[192.0.2.1]>", []string{"<c@[IPv6:2001:db8::1]>"}},
		"hostile name":  {"EHLO a(b)\"c\\;\xff", "<a@b>", []string{"<c@d>"}},
		"no brackets":   {"EHLO c", "a@b BODY=7BIT", []string{"c@d NOTIFY=NEVER"}},
		"blank in FROM": {"EHLO c", " <a@b>", []string{" <c@d>"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.say(tt.greet, "250")
			p.say("MAIL FROM:"+tt.mail, "250 2.1.0")
			for _, rcpt := range tt.rcpts {
				p.say("RCPT TO:"+rcpt, "250 2.1.5")
			}
			p.content("Subject: x\n\nhi\n", "250")
			got := r.only()
			golden(t, "envelope "+name, got)
			if _, err := envelope.Read(strings.NewReader(got)); err != nil {
				t.Errorf("it cannot be read back: %v", err)
			}
		})
	}
}

// RFC 3848, RFC 6531 section 4.3: the protocol as Received lines name it.
func TestProtocolIsNamedAsRegistered(t *testing.T) {
	for want, test := range map[string]struct {
		with string
		tls  bool
		user string
		utf8 bool
	}{
		"SMTP": {with: "SMTP"}, "ESMTP": {with: "ESMTP"}, "ESMTPS": {with: "ESMTP", tls: true},
		"ESMTPA": {with: "ESMTP", user: "ann"}, "ESMTPSA": {with: "ESMTP", tls: true, user: "ann"},
		"LMTP": {with: "LMTP"}, "LMTPS": {with: "LMTP", tls: true}, "LMTPSA": {with: "LMTP", tls: true, user: "ann"},
		"UTF8SMTP": {with: "ESMTP", utf8: true}, "UTF8SMTPS": {with: "ESMTP", utf8: true, tls: true},
		"UTF8SMTPSA": {with: "ESMTP", utf8: true, tls: true, user: "ann"}, "UTF8SMTPA": {with: "ESMTP", utf8: true, user: "ann"},
		"UTF8LMTP": {with: "LMTP", utf8: true}, "UTF8LMTPS": {with: "LMTP", utf8: true, tls: true},
	} {
		c := session.Client{User: test.user}
		if test.tls {
			c.TLS = &tls.ConnectionState{}
		}
		assert.Equal(t, protocolName(&session.Mail{Protocol: test.with, UTF8: test.utf8}, &c), want)
	}
}

// smuggled is what follows a false end of a message.
const smuggled = "MAIL FROM:<evil@example.net>\r\nRCPT TO:<c@mx.example.org>\r\nDATA\r\nsmuggled\r\n"

// falseEnds are what some server takes for the end of a message, and whether there is an LF
// without CR in it.
var falseEnds = map[string]struct {
	text string
	bare bool
}{
	"LF dot LF":          {"\n.\n", true},
	"LF dot CRLF":        {"\n.\r\n", true},
	"CRLF dot LF":        {"\r\n.\n", true},
	"CR dot CR":          {"\r.\r", false},
	"CR dot CRLF":        {"\r.\r\n", false},
	"CRLF dot CR":        {"\r\n.\r", false},
	"CR dot LF":          {"\r.\n", true},
	"LF dot CR":          {"\n.\r", true},
	"CR CRLF dot CR":     {"\r\r\n.\r", false},
	"CRLF dot CR CRLF":   {"\r\n.\r\r\n", false},
	"CRLF dot NUL CRLF":  {"\r\n.\x00\r\n", false},
	"CRLF NUL dot CRLF":  {"\r\n\x00.\r\n", false},
	"CR NUL LF dot CRLF": {"\r\x00\n.\r\n", true},
	"CRLF dot CR NUL LF": {"\r\n.\r\x00\n", true},
	"CRLF dot blank":     {"\r\n. \r\n", false},
	"NEL dot NEL":        {"\u0085.\u0085", false},
	"line separators":    {"\u2028.\u2028", false},
	"VT dot FF":          {"\v.\f", false},
	"two dots":           {"\r\n..\r\n", false},
}

// Only CRLF dot CRLF ends a message, of any client; a remote client's bare LF has the
// message refused when it was read to its end (RFC 5321 section 2.3.8, CVE-2023-51764).
func TestFalseEndIsNoEnd(t *testing.T) {
	for name, end := range falseEnds {
		for _, by := range []string{"DATA", "BDAT", "BDAT in two"} {
			for _, who := range []string{"remote", "remote, accept", "our own"} {
				t.Run(name+" by "+by+" from "+who, func(t *testing.T) {
					smuggle(t, end.text, by, who, end.bare && who == "remote")
				})
			}
		}
	}
}

func smuggle(t *testing.T, end, by, who string, refused bool) {
	r := start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Limits.AcceptBareLF = who == "remote, accept"
	})
	p := r.greeted()
	if who != "our own" {
		p = r.as("203.0.113.9", "")
	}
	p.begin()
	content := "Subject: x\r\n\r\nfirst" + end + smuggled
	want := "250 2.0.0"
	if refused {
		want = "550 5.6.0"
	}
	switch by {
	case "DATA":
		p.data().send(content + ".\r\n")
	case "BDAT":
		p.chunk(content, " LAST")
	default: // cut in the middle of it
		cut := strings.Index(content, end) + 1
		p.chunk(content[:cut], "")
		p.chunk(content[cut:], " LAST")
		if first := p.reply(); refused && strings.HasPrefix(first, want) {
			want = "503" // the second chunk belongs to no message
		} else if !strings.HasPrefix(first, "250") {
			t.Fatalf("first chunk: %q", first)
		}
	}
	p.expect(want)
	p.say("NOOP", "250") // nothing else was taken for a command
	if refused {
		r.nothing()
	} else if got := r.only(); strings.Count(got, "\nfrom <") != 1 || !strings.Contains(got, "smuggled") {
		t.Errorf("got %q", got)
	}
}
