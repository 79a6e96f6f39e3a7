package smtpclient

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
)

func TestReadReply(t *testing.T) {
	cases := map[string]struct {
		in   string
		want string // String of the reply, or the error's text
	}{
		"one line":                 {"250 2.1.0 Ok\r\n", "250 2.1.0 Ok"},
		"bare LF":                  {"250 Ok\n", "250 Ok"},
		"code alone":               {"250\r\n", "250 "},
		"code and blank":           {"250 \r\n", "250 "},
		"several lines":            {"250-one\r\n250-two\r\n250 three\r\n", "250 one two three"},
		"last line without text":   {"250-one\r\n250\r\n", "250 one "},
		"enhanced code repeated":   {"550-5.1.1 no such\r\n550 5.1.1 user\r\n", "550 5.1.1 no such user"},
		"control characters":       {"550 a\x01b\tc\x00d\re\r\n", "550 a b c d e"},
		"not UTF-8":                {"550 gr\xfc\xdfe\r\n", "550 gr?e"},
		"UTF-8":                    {"550 grüße\r\n", "550 grüße"},
		"codes differ":             {"250-one\r\n251 two\r\n", "not an SMTP reply: code 250, then 251"},
		"no digits":                {"hello\r\n", `not an SMTP reply: "hello"`},
		"empty line":               {"\r\n", `not an SMTP reply: ""`},
		"first digit out of range": {"150 x\r\n", `not an SMTP reply: "150 x"`},
		"no blank after the code":  {"2501\r\n", `not an SMTP reply: "2501"`},
		"ends in a line":           {"250 O", "unexpected EOF"},
		"ends between lines":       {"250-one\r\n", "unexpected EOF"},
		"endless line":             {"250 " + strings.Repeat("x", 5000) + "\r\n", "not an SMTP reply: a line of more than 4096 bytes"},
		"endless reply":            {strings.Repeat("250-x\r\n", 20000), "not an SMTP reply: more than 65536 bytes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := readReply(bufio.NewReaderSize(strings.NewReader(c.in), 4096))
			got := r.String()
			if err != nil {
				got = err.Error()
			}
			assert.Equal(t, got, c.want)
		})
	}
}

func TestReplyKeepsEnhancedCode(t *testing.T) {
	cases := map[string]string{
		"550 5.1.1 no such user": "5.1.1",
		"550 4.1.1 contradicts":  "5.0.0",
		"250 2.1.5 Ok":           "2.1.5",
		"451 later":              "4.0.0",
		"550 5.1 short":          "5.0.0",
	}
	for in, want := range cases {
		r, err := readReply(bufio.NewReader(strings.NewReader(in + "\r\n")))
		assert.Must(t, err)
		assert.Equal(t, r.Status().String(), want, in)
	}
}

// A server must not be able to fill our memory with one reply.
func TestReplyTextIsCapped(t *testing.T) {
	in := strings.Repeat("250-"+strings.Repeat("x", 100)+"\r\n", 500) + "250 end\r\n"
	r, err := readReply(bufio.NewReader(strings.NewReader(in)))
	assert.Must(t, err)
	if got := len(r.Text); got > maxReply {
		t.Errorf("got %d bytes of text, want at most %d", got, maxReply)
	}
}

func FuzzReply(f *testing.F) {
	for _, s := range []string{"250 ok\r\n", "250-a\r\n250 b\r\n", "550 5.1.1 x\n", "250", "999 x\r\n", "250-a\r\n251 b\r\n", "354\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := readReply(bufio.NewReader(strings.NewReader(string(in))))
		if err != nil {
			if !r.IsZero() {
				t.Errorf("got %v beside %v", r, err)
			}
			return
		}
		if r.Code < 200 || r.Code > 599 {
			t.Errorf("code %d", r.Code)
		}
		if s := r.String(); !utf8.ValidString(s) || strings.ContainsAny(s, "\r\n\x00\x01\t") {
			t.Errorf("unfit for a diagnostic: %q", s)
		}
		if r.Status().Class == 0 {
			t.Errorf("no status class in %v", r)
		}
		// What is written again as a reply is read as the same.
		var again strings.Builder
		lines := strings.Split(r.Text, "\n")
		for i, l := range lines {
			sep := "-"
			if i == len(lines)-1 {
				sep = " "
			}
			fmt.Fprintf(&again, "%d%s%s\r\n", r.Code, sep, l)
		}
		r2, err := readReply(bufio.NewReaderSize(strings.NewReader(again.String()), maxReplyBytes))
		if err != nil && !errors.Is(err, ErrNoReply) || err == nil && r2 != r {
			t.Errorf("got %#v, %v, want %#v", r2, err, r)
		}
	})
}

// trips returns how many round trips a time comes to.
func trips(since time.Time) int { return int((time.Since(since) + 2*way - 1) / (2 * way)) }

// RFC 2920: MAIL, RCPT and DATA cost one round trip, the content another one. The clock
// moves only while bytes are under way, so that the time is the number of round trips.
func TestRoundTripsOfAMessage(t *testing.T) {
	const messages = 50
	for name, c := range map[string]struct {
		extensions, ignore []string
		want               int
	}{
		"PIPELINING":          {pipelining, nil, 2 * messages},
		"PIPELINING, ignored": {pipelining, []string{"PIPELINING"}, 4 * messages},
		"none":                {[]string{"8BITMIME"}, nil, 4 * messages},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: c.extensions}
				conn, _ := farServer(t, n, Config{Ignore: c.ignore})
				begin := time.Now()
				for i, s := range sendAll(conn, several(messages)) {
					if s.err != nil || s.results[0].Outcome != status.Delivered {
						t.Fatalf("message %d: got %+v, %v", i, s.results, s.err)
					}
				}
				assert.Equal(t, trips(begin), c.want, "round trips for %d messages", messages)
				assert.Equal(t, len(n.taken()), messages, "messages arrived")
			})
		})
	}
}
