package tasmtp

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// oldServer is one that takes 7-bit content alone.
func oldServer(t *testing.T, extensions ...string) *Sink {
	return (&Sink{Extensions: append([]string{"PIPELINING", "ENHANCEDSTATUSCODES"}, extensions...)}).Start(t, "", "")
}

// RFC 6152 §3: a server without 8BITMIME gets 7-bit content, one with it the bytes as they are;
// 7-bit content is the same for both.
func TestContentIsWhatTheServerTakes(t *testing.T) {
	const mime = "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n"
	const plain = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\nContent-Transfer-Encoding: 8bit\n"
	const binary = "MIME-Version: 1.0\nContent-Type: application/x\nContent-Transfer-Encoding: binary\n"
	cases := map[string]struct {
		extension            string
		header, stored, want string
	}{
		"8-bit text, 8BITMIME":  {"8BITMIME", mime, "\nGrüße\n", mime + "\nGrüße\n.\n"},
		"8-bit text, old":       {"", mime, "\nGrüße an alle\n", strings.Replace(mime, "8bit", "quoted-printable", 1) + "\nGr=C3=BC=C3=9Fe an alle\n.\n"},
		"7-bit text, old":       {"", plain, "\n--b\n\n.x\n--b--\n", plain + "\n--b\n\n..x\n--b--\n.\n"},
		"8-bit header, old":     {"", "Subject: Grüße\n", "\nx\n", "Subject: Grüße\n\nx\n.\n"},
		"binary part, 8BITMIME": {"8BITMIME", binary, "\n\x00\xff\n\r.\r\n", strings.Replace(binary, "binary", "base64", 1) + "\nAP8KDS4NCg==\n.\n"},
		"no body at all, old":   {"", "Subject: x\n", "", "Subject: x\n.\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := oldServer(t, c.extension)
			s := newStation(t, sink.Port(), "")
			file := s.NewName()
			s.Write("queue/"+file, []byte(Envelope()+c.stored))
			s.Specify(file, Message{Header: c.header, Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}, int64(len(Envelope())))
			Only(t, s.deliver(file, "[127.0.0.1]"), taproto.OK3, "")
			assert.Equal(t, strings.ReplaceAll(sink.Messages()[0].Data, "\r\n", "\n"), c.want)
		})
	}
}

// RFC 6531 §3.5: a message that came with SMTPUTF8 and needs it in its header goes to
// servers that offer it; an older message with octets in its header goes to all.
func TestHeaderThatNeedsSMTPUTF8(t *testing.T) {
	cases := map[string]struct {
		with, extension, header string
		mail                    string
		answer                  string
	}{
		"declared, offered":     {"UTF8SMTPS", "SMTPUTF8", "Subject: Grüße\n", "MAIL From:<sender@here.test> SMTPUTF8", "ok3"},
		"declared, not offered": {"UTF8SMTP", "8BITMIME", "Subject: Grüße\n", "", "error2"},
		"declared, not needed":  {"UTF8SMTP", "8BITMIME", "Subject: plain\n", "MAIL From:<sender@here.test> BODY=8BITMIME", "ok3"},
		"never declared":        {"ESMTP", "SMTPUTF8", "Subject: Grüße\n", "MAIL From:<sender@here.test>", "ok3"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := oldServer(t, c.extension)
			s := newStation(t, sink.Port(), "")
			file := s.NewName()
			head := fmt.Sprintf("with %s\nfrom <sender@here.test>\nto <to@there.test>\nenv-end\n%s", c.with, c.header)
			s.Write("queue/"+file, []byte(head+"\nbody\n"))
			s.Specify(file, Message{Header: c.header, Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")}, int64(len(head)+1))
			a := s.deliver(file, "[127.0.0.1]")
			if len(a) != 1 || string(a[0].Word) != c.answer {
				t.Fatalf("got %+v", a)
			}
			if c.mail == "" {
				if got := s.Spec(file).Diagnostics[0].Notary.Status; got != "5.6.7" || len(sink.Messages()) > 0 {
					t.Errorf("got %s %s", got, a[0].Text)
				}
				return
			}
			assert.Equal(t, sink.Messages()[0].Mail, c.mail)
		})
	}
}

// What cannot be converted fails for good, the connection serves the next message.
func TestMessageThatCannotBeConverted(t *testing.T) {
	sink := oldServer(t)
	var log strings.Builder
	s := newStation(t, sink.Port(), "", func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	const signed = "MIME-Version: 1.0\nContent-Type: multipart/signed; boundary=s\n"
	queue := func(header, stored string) []taproto.Answer {
		return s.deliver(s.Queue(Message{Header: header, Stored: stored, Rcpts: Rcpts("smtp", "[127.0.0.1]", "a@there.test", "b@there.test")}), "[127.0.0.1]")
	}
	queue("Subject: first\n", "")
	for _, a := range queue(signed, "\n--s\n\nä\n--s\n\nsig\n--s--\n") {
		Only(t, []taproto.Answer{a}, taproto.Error2, "a signed part would change")
	}
	queue("DKIM-Signature: v=1\n", "\nä\n")
	assert.Equal(t, fmt.Sprint(len(sink.Messages()), sink.Connects()), "2 1", "messages and connections")
	if got := log.String(); !strings.Contains(got, "msg=converted") || !strings.Contains(got, "parts=1 signed=true") {
		t.Errorf("logged %s", got)
	}
}

func TestBareCRAndNULAtALineBecomeBlanks(t *testing.T) {
	for name, tt := range map[string]struct{ header, body, wantHeader, wantBody string }{
		"none":          {"Subject: x\n", "a\n.\n", "Subject: x\n", "a\n.\n"},
		"in the body":   {"Subject: x\n", "a\r.\rMAIL\r\n", "Subject: x\n", "a . MAIL\n"},
		"all header":    {"Subject: x\r\n\r\na\r\n\x00.\r\nb\r\n", "", "Subject: x\n\na\n .\nb\n", ""},
		"in the header": {"Subject: a\rBcc: b\n", "", "Subject: a Bcc: b\n", ""},
		"nothing else":  {"A: \r\n", "\r\r\nx\x00\r", "A: \n", " \nx\x00 "},
		"NUL and a dot": {"A: b\n", "\x00.\n\x00\x00.\nx\x00.\n\n\x00", "A: b\n", " .\n\x00 .\nx\x00.\n\n\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			header := []byte(tt.header)
			c := content{header: header, size: int64(len(tt.header) + len(tt.body)), body: func() io.Reader { return iotest.OneByteReader(strings.NewReader(tt.body)) }}
			if err := c.replaceBare(); err != nil || c.size != int64(len(tt.wantHeader)+len(tt.wantBody)) {
				t.Errorf("size %d, %v, want %d", c.size, err, len(tt.wantHeader)+len(tt.wantBody))
			}
			for range 2 { // a message is read again for a second attempt
				body, err := io.ReadAll(c.body())
				if err != nil || string(c.header) != tt.wantHeader || string(body) != tt.wantBody {
					t.Errorf("got %q and %q, %v", c.header, body, err)
				}
			}
			if string(header) != tt.header {
				t.Error("the header is changed where others use it")
			}
		})
	}
}

func FuzzTame(f *testing.F) {
	f.Add("a\r.\r\nb\r\r\n", 3)
	f.Add("\r", 1)
	f.Add("\x00.\r\n\x00\r\x00.", 2)
	f.Fuzz(func(t *testing.T, text string, piece int) {
		c := content{size: int64(len(text)), body: func() io.Reader { return strings.NewReader(text) }}
		assert.Must(t, c.replaceBare())
		var got strings.Builder
		r := c.body()
		buf := make([]byte, max(1, piece%100))
		for {
			n, err := r.Read(buf)
			got.Write(buf[:n])
			if err == io.EOF {
				break
			}
			assert.Must(t, err)
		}
		want := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", " ")
		want = regexp.MustCompile(`(?m)^(\x00*)\x00\.`).ReplaceAllString(want, "${1} .")
		if got.String() != want || c.size != int64(len(want)) {
			t.Errorf("got %q, %d, want %q", got.String(), c.size, want)
		}
	})
}
