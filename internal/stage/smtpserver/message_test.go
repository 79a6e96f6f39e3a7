package smtpserver

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/envelope"
)

// M1: SMTP's form is undone and nothing else: golden message files.
func TestMessageFileHoldsTheMessagesBytes(t *testing.T) {
	for name, data := range map[string]string{
		"plain":              "Subject: x\r\n\r\nhi\r\n.\r\n",
		"empty":              ".\r\n",
		"empty body":         "Subject: x\r\n\r\n.\r\n",
		"dots":               "..\r\n...\r\n..x\r\na.\r\n.\r\n",
		"dot before CR":      "x\r\n..\rx\r\n.\r\n",
		"unstuffed dot":      "x\r\n.y\r\n.\ry\r\n.\r\n",
		"NULs and 8 bit":     "\x00\xff\x80\r\n\x00\r\n.\r\n",
		"bare LF":            "a\nb\r\n\n\r\n.\r\n",
		"bare CR":            "a\rb\r\r\n\r\r\n.\r\n",
		"smuggled LF dot LF": "a\n.\nMAIL FROM:<c@d>\r\n.\r\n",
		"smuggled CR dot CR": "a\r.\rMAIL FROM:<c@d>\r\n.\r\n",
		"smuggled LF dot":    "a\n.\r\nMAIL FROM:<c@d>\r\n.\r\n",
		"smuggled dot LF":    "a\r\n.\nMAIL FROM:<c@d>\r\n.\r\n",
		"CR before the end":  "a\r\r\n.\r\n",
		"no header":          "just text\r\n.\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.transaction()
			p.send(data)
			p.expect("250 2.0.0")
			p.say("QUIT", "221")
			golden(t, "data "+name, r.only())
		})
	}
}

// The same bytes, one write(2) each: no sequence depends on how it was cut.
func TestContentDoesNotDependOnPieces(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.transaction()
	for _, b := range []byte("a\r\n..\r\r\n\n.\r\n.\n.\rx\r\n.\r\n") {
		p.send(string(b))
	}
	p.expect("250")
	if got, want := r.content(), "a\n.\r\n\n.\n\n.\rx\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
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
		"chunk that commands": {[]string{"QUIT\r\nBDAT 5\r\n", "RSET\r\n"}, "QUIT\nBDAT 5\nRSET\n"},
		"any bytes":           {[]string{"\x00\xff\n\r\r\n", "\n"}, "\x00\xff\n\r\n\n"},
		"empty last chunk":    {[]string{"a\r\n", ""}, "a\n"},
		"large":               {[]string{big, big[:5], big[5:]}, strings.ReplaceAll(big+big, "\r\n", "\n")},
		"long line":           {[]string{strings.Repeat("x", 200<<10) + "\r\n"}, strings.Repeat("x", 200<<10) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.say("EHLO client.example.net", "250")
			// RFC 3030 §2: chunks may follow their commands without waiting.
			all := "MAIL FROM:<a@example.net>\r\nRCPT TO:<b@example.org>\r\n"
			replies := []string{"250", "250"}
			for i, c := range tt.chunks {
				last := ""
				if i == len(tt.chunks)-1 {
					last = " LAST"
				}
				all += fmt.Sprintf("BDAT %d%s\r\n%s", len(c), last, c)
				replies = append(replies, "250")
			}
			p.send(all + "QUIT\r\n")
			if got := p.expect(replies...); !strings.HasPrefix(got, "250 2.0.0") {
				t.Errorf("last reply %q", got)
			}
			p.expect("221")
			p.end()
			if got := r.content(); got != tt.want {
				t.Errorf("got %.100q (%d bytes), want %.100q (%d bytes)", got, len(got), tt.want, len(tt.want))
			}
		})
	}
}

func TestLongHeaderLinePasses(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.transaction()
	header := "X-Long: " + strings.Repeat("x", 200<<10)
	p.send(header + "\r\n\r\nhi\r\n.\r\n")
	p.expect("250")
	if got, want := r.content(), header+"\n\nhi\n"; got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
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
		"hostile name":  {"EHLO a(b)\"c\\\x00\x7f;\xff", "<a@b>", []string{"<c@d>"}},
		"no brackets":   {"EHLO c", "a@b BODY=7BIT", []string{"c@d NOTIFY=NEVER"}},
		"blank in FROM": {"EHLO c", " <a@b>", []string{" <c@d>"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil)
			p := r.dial()
			p.say(tt.greet, "250")
			p.say("MAIL FROM:"+tt.mail, "250")
			for _, rcpt := range tt.rcpts {
				p.say("RCPT TO:"+rcpt, "250")
			}
			p.say("DATA", "354")
			p.say("Subject: x\r\n\r\nhi\r\n.", "250")
			got := r.only()
			golden(t, "envelope "+name, got)
			if _, err := envelope.Read(strings.NewReader(got)); err != nil {
				t.Errorf("it cannot be read back: %v", err)
			}
		})
	}
}

func TestOneConnectionTakesManyMessages(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	for range 3 {
		// RFC 2920 §3.1: the commands of one message at once, and after its end those of
		// the next.
		p.send("MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n")
		p.expect("250", "250", "354")
		p.send("Subject: x\r\n\r\nfirst\r\n.\r\nRSET\r\nMAIL FROM:<e@f>\r\nRCPT TO:<g@h>\r\nBDAT 6 LAST\r\nsecond")
		p.expect("250 2.0.0", "250", "250", "250", "250 2.0.0")
	}
	p.say("QUIT", "221")
	var first, second int
	for _, name := range r.names("router") {
		switch m := r.message(name); {
		case strings.HasSuffix(m, "from <a@b>\nto <c@d>\nenv-end\nSubject: x\n\nfirst\n"):
			first++
		case strings.HasSuffix(m, "from <e@f>\nto <g@h>\nenv-end\nsecond"):
			second++
		default:
			t.Errorf("message %q", m)
		}
	}
	if first != 3 || second != 3 {
		t.Errorf("%d and %d messages, want 3 of each", first, second)
	}
}

// RFC 3030 §2: what is none of a message in chunks is refused and does not end it.
func TestCommandsBetweenChunksLeaveTheMessageAlone(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@d>", "250")
	p.send("BDAT 3\r\none")
	p.expect("250 2.0.0")
	p.say("NOOP", "250")
	p.say("DATA", "503")
	p.say("MAIL FROM:<e@f>", "503")
	p.say("RCPT TO:<g@h>", "503")
	p.say("BDAT x", "501")
	p.say("RSETTLE", "503")
	p.send("BDAT 3 last\r\ntwo")
	p.expect("250 2.0.0")
	if got := r.only(); !strings.HasSuffix(got, "from <a@b>\nto <c@d>\nenv-end\nonetwo") {
		t.Errorf("got %q", got)
	}
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@d>", "250")
	p.say("BDAT 0", "250")
	for range 10 {
		p.say("NOOP", "250")
	}
	p.say("NOOP", "250")
	p.expect("421")
	p.end()
}

// Everything at once, the content of DATA too, as a client may not but some do.
func TestContentSentWithItsCommandsIsTaken(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.send("EHLO c\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhi\r\n.\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nho\r\n.\r\nQUIT\r\n")
	p.expect("250", "250", "250", "354", "250 2.0.0", "250", "250", "354", "250 2.0.0", "221")
	if got := len(r.names("router")); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

func TestPipelinedRepliesComeTogether(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	p.send("MAIL FROM:<a@b>\r\n" + strings.Repeat("RCPT TO:<c@d>\r\n", 20) + "DATA\r\n")
	b := make([]byte, 64<<10)
	n, err := p.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(b[:n]), "\r\n"); got != 22 {
		t.Errorf("the first segment holds %d replies, want 22", got)
	}
}

func TestExtensionsAreAnnounced(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	got := p.say("EHLO c", "250")
	for _, want := range []string{"PIPELINING", "8BITMIME", "SIZE 209715200", "DSN", "SMTPUTF8", "CHUNKING", "ENHANCEDSTATUSCODES"} {
		if !strings.Contains(got, want+"\r\n") {
			t.Errorf("%q does not offer %s", got, want)
		}
	}
	if strings.Contains(got, "BINARYMIME") {
		t.Errorf("%q offers BINARYMIME", got)
	}
	p.say("MAIL FROM:<a@b> BODY=BINARYMIME", "504")
}

func TestLibraryClientIsServed(t *testing.T) {
	r := start(t, nil)
	c, err := smtp.Dial(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Mail("a@b", &smtp.MailOptions{UTF8: true, Return: smtp.DSNReturnFull, EnvelopeID: "x=y"}); err != nil {
		t.Fatal(err)
	}
	o := &smtp.RcptOptions{Notify: []smtp.DSNNotify{smtp.DSNNotifyNever}, OriginalRecipientType: smtp.DSNAddressTypeRFC822, OriginalRecipient: "o+p@q"}
	if err := c.Rcpt("c@d", o); err != nil {
		t.Fatal(err)
	}
	w, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("Subject: x\r\n\r\n.dot\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	golden(t, "library client", r.only())
	if err := c.Quit(); err != nil {
		t.Error(err)
	}
}

func TestPythonClientIsServed(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: smtplib was not tried")
	}
	r := start(t, nil)
	host, port, _ := strings.Cut(r.addr, ":")
	cmd := exec.Command(python, "-c", `
import smtplib, sys
s = smtplib.SMTP(sys.argv[1], int(sys.argv[2]), local_hostname="py.example")
refused = s.sendmail("a@b", ["c@d", "e@f"], b"Subject: x\r\n\r\n.\r\n..dot\r\n\xe4\r\n",
    mail_options=["BODY=8BITMIME", "RET=HDRS", "ENVID=id"], rcpt_options=["NOTIFY=SUCCESS,DELAY"])
assert refused == {}, refused
s.quit()`, host, port)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	golden(t, "python client", r.only())
}

// RFC 3463 §3.2: sender and recipient have codes of their own, each.
func TestRepliesHaveTheirEnhancedCode(t *testing.T) {
	p := start(t, nil).dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250 2.1.0 ")
	p.say("RCPT TO:<b@mta.example>", "250 2.1.5 ")
	p.say("RSET", "250")
	p.say("QUIT", "221 2.0.0 ")
}
