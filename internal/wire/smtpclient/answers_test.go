package smtpclient

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/mail/status"
)

// Answers mean the same however they come: in single bytes, all in one segment, with LF
// alone, over several lines.
func TestAnswersInAnyForm(t *testing.T) {
	forms := map[string]func(nc net.Conn, command, text string) error{
		"byte by byte": func(nc net.Conn, _, text string) error {
			for _, b := range []byte(text + "\r\n") {
				if _, err := nc.Write([]byte{b}); err != nil {
					return err
				}
			}
			return nil
		},
		"a byte in a second": func(nc net.Conn, _, text string) error {
			for _, b := range []byte(text + "\r\n") {
				<-time.After(time.Second)
				if _, err := nc.Write([]byte{b}); err != nil {
					return err
				}
			}
			return nil
		},
		"LF alone": raw(func(_, text string) string { return strings.ReplaceAll(text, "\r\n", "\n") + "\n" }),
		"several lines": raw(func(command, text string) string {
			code, rest, _ := strings.Cut(text, " ")
			if len(code) != 3 {
				return text + "\r\n"
			}
			enhanced, _, _ := strings.Cut(rest, " ")
			return fmt.Sprintf("%s-%s\r\n%s-%s about %.10s\r\n%s %s\r\n", code, rest, code, enhanced, command, code, enhanced)
		}),
	}
	inSegment := false       // the server has PIPELINING
	var held strings.Builder // answers that wait for the last one of a group
	forms["in one segment"] = raw(func(command, text string) string {
		held.WriteString(text + "\r\n")
		if verb, _, _ := strings.Cut(command, " "); inSegment && (verb == "RSET" || verb == "MAIL" || verb == "RCPT") {
			return ""
		}
		defer held.Reset()
		return held.String()
	})
	for name, write := range forms {
		for _, extensions := range [][]string{pipelining, {"8BITMIME"}} {
			t.Run(name+", "+strings.Join(extensions, " "), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inSegment = extensions[0] == "PIPELINING"
					n := &naive{extensions: extensions, write: write, answer: answers("RCPT To:<to2@", "550 5.1.1 no such user")}
					c, _ := farServer(t, n, Config{})
					for i, s := range sendAll(c, several(5)) {
						want := "2.6.0"
						if i == 2 {
							want = "5.1.1"
						}
						if r := s.results[0]; s.err != nil || r.Code.String() != want {
							t.Errorf("message %d: got %+v, %v, want %s", i, r, s.err, want)
						}
					}
					if !c.Usable() {
						t.Error("the connection is lost")
					}
				})
			})
		}
	}
}

// Servers whose answers are out of step: what is called delivered is there, what is called
// failed is not, and the session ends.
func TestAnswersOutOfStep(t *testing.T) {
	extra := func(at string) func(net.Conn, string, string) error {
		return rawAt(at, func(text string) string { return text + "\r\n250 2.0.0 and one more\r\n" })
	}
	missing := func(at string) func(net.Conn, string, string) error {
		return rawAt(at, func(string) string { return "" })
	}
	data := pipelining
	cases := map[string]struct {
		extensions []string
		answer     func(string) string
		write      func(net.Conn, string, string) error
	}{
		"DATA: an extra answer to EHLO":           {data, nil, extra("EHLO")},
		"DATA: an extra answer to MAIL":           {data, nil, extra("MAIL")},
		"DATA: an extra answer to RCPT":           {data, nil, extra("RCPT")},
		"DATA: an extra answer to DATA":           {data, nil, extra("DATA")},
		"DATA: an extra answer to the dot":        {data, nil, extra(".")},
		"DATA: no answer to MAIL":                 {data, nil, missing("MAIL")},
		"DATA: no answer to RCPT":                 {data, nil, missing("RCPT")},
		"DATA: no answer to DATA":                 {data, nil, missing("DATA")},
		"DATA: no answer to the dot":              {data, nil, missing(".")},
		"DATA: no answer to RSET":                 {data, answers("RCPT To:<to2@", "550 5.1.1 no"), missing("RSET")},
		"DATA: 250 instead of 354":                {data, answers("DATA", "250 2.0.0 done already"), nil},
		"in turn: an extra answer to MAIL":        {[]string{"8BITMIME"}, nil, extra("MAIL")},
		"in turn: an extra answer to the message": {[]string{"8BITMIME"}, nil, extra(".")},
		"in turn: no answer to the message":       {[]string{"8BITMIME"}, nil, missing(".")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: c.extensions, answer: c.answer, write: c.write}
				conn, _ := farServer(t, n, Config{})
				got := sendAll(conn, several(4))
				all := strings.Join(n.taken(), "")
				for i, s := range got {
					r := s.results[0]
					here := strings.Contains(all, fmt.Sprintf("Subject: %d\r\n", i))
					switch {
					case r.Outcome == status.Delivered && !here,
						r.Outcome == status.Failed && here,
						here && r.Outcome == status.Deferred && !r.InDoubt:
						t.Errorf("message %d: there %v, got %+v, %v", i, here, r, s.err)
					}
				}
				if ends(got)[3] != "delivered 2.6.0 waiting for the answer to the final dot" && conn.Usable() {
					t.Errorf("usable after %q", ends(got))
				}
			})
		})
	}
}

// What is no answer, or never ends, ends the session and not the message: 100 kB, an
// endless line, no code.
func TestAnswersThatAreNone(t *testing.T) {
	cases := map[string]string{
		"no code":         "hello there",
		"an empty line":   "",
		"a code of two":   "25 ok",
		"100 kB in lines": strings.Repeat("250-a line of an answer\r\n", 4000) + "250 end",
		"100 kB line":     "250 " + strings.Repeat("x", 100_000),
		"two codes":       "250-ok\r\n550 no",
		"binary":          "\x00\xff\xfe\x01",
	}
	for name, text := range cases {
		for _, at := range []string{"GREETING", "EHLO", "MAIL", "RCPT", "DATA", "."} {
			t.Run(name+" to "+at, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := &naive{extensions: pipelining, end: make(chan struct{}), write: rawAt(at, func(string) string { return text + "\r\n" })}
					client, server := far(t)
					go n.serve(server)
					c := New(client, Config{Hostname: "client.test"})
					err := c.Hello()
					if at == "GREETING" || at == "EHLO" {
						if !errors.Is(err, ErrNoReply) {
							t.Errorf("got %v", err)
						}
						return
					}
					res, err := c.Send(numbered(1, "to@test"))
					if r := res[0]; err != nil || r.Outcome != status.Deferred || !errors.Is(r.Err, ErrNoReply) || r.InDoubt != (at == ".") {
						t.Errorf("got %+v, %v", r, err)
					}
					if c.Usable() {
						t.Error("the connection is still in use")
					}
				})
			})
		}
	}
}

// K15, RFC 5321 §4.5.3.2: each answer has its time, all of it, however it drips.
func TestEachAnswerHasItsTime(t *testing.T) {
	limits := []struct {
		at   string
		want time.Duration
	}{
		{"GREETING", 5 * time.Minute}, {"EHLO", 5 * time.Minute}, {"MAIL", 5 * time.Minute},
		{"RCPT", 5 * time.Minute}, {"DATA", 2 * time.Minute}, {".", 10 * time.Minute},
	}
	for _, l := range limits {
		for _, drips := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, drips %v", l.at, drips), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					over := make(chan struct{})
					defer close(over)
					n := &naive{extensions: pipelining, end: over, write: func(nc net.Conn, command, text string) error {
						if !strings.HasPrefix(command, l.at) {
							_, err := io.WriteString(nc, text+"\r\n")
							return err
						}
						for i := 0; ; i++ {
							select {
							case <-time.After(20 * time.Second):
							case <-over:
								return errHangUp
							}
							if drips {
								if _, err := io.WriteString(nc, ("250-" + strings.Repeat("x\r\n250-", 1000))[i:i+1]); err != nil {
									return err
								}
							}
						}
					}}
					client, server := far(t)
					go n.serve(server)
					c := New(client, Config{Hostname: "client.test"})
					begin := time.Now()
					err := c.Hello()
					if err == nil {
						begin = time.Now()
						var res []Result
						res, _ = c.Send(numbered(1, "to@test"))
						err = res[0].Err
					}
					var broke *ConnError
					if !errors.As(err, &broke) || !broke.Timeout() {
						t.Errorf("got %v, want a time-out", err)
					}
					// A few round trips come before.
					if got := time.Since(begin); got < l.want || got > l.want+time.Second {
						t.Errorf("waited %v, want %v", got, l.want)
					}
				})
			})
		}
	}
}

// Del1: after anything that arrives with 354 it is uncertain what the answers before it
// were about: no content is sent.
func TestAnswerBehindTheGoAhead(t *testing.T) {
	cases := map[string]string{
		"250":          "354 go\r\n250 2.0.0 taken already",
		"552":          "354 go\r\n552 5.3.4 too big",
		"421":          "354 go\r\n421 4.3.2 bye",
		"354 twice":    "354 go\r\n354 go",
		"half a reply": "354 go\r\n250-2.0.0 taken already\r\n250 2.0.0 really",
	}
	const want = "deferred 4.4.2 waiting for the answer to DATA"
	for name, answer := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: pipelining, answer: answers("DATA", answer)}
				conn, rec := farServer(t, n, Config{})
				res, err := conn.Send(numbered(1, "to@test"))
				if got := outcomes(res); err != nil || !slices.Equal(got, []string{want}) {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
				if all := strings.Join(rec.writes, ""); !strings.HasSuffix(all, "\r\nDATA\r\n") || conn.Usable() {
					t.Errorf("content was sent; usable %v", conn.Usable())
				}
			})
		})
	}
}

// 354 and then nothing but the end: the outcome is unknown.
func TestServerClosesBehindItsGoAhead(t *testing.T) {
	c, _, p := open(t, Config{}, hello+mail+"C: RCPT To:<a@test>\nC: DATA\nS: 250 ok\nS: 250 ok\nS: 354 go\nCLOSE")
	m := message("a@test")
	m.Sent = func([]int) error { p.end(t); return nil }
	res, err := c.Send(m)
	if r := res[0]; err != nil || r.Outcome != status.Deferred || c.Usable() {
		t.Errorf("got %+v, %v", r, err)
	}
}

// FuzzHello takes anything for the answer to EHLO: no limit of the server's is negative,
// and what is not offered is not used.
func FuzzHello(f *testing.F) {
	for _, s := range []string{"250-x\r\n250-PIPELINING\r\n250 SIZE 1000\r\n", "250 x\n", "250-x\r\n250-SIZE -1\r\n250 CHUNKING\r\n",
		"250-x\r\n250-AUTH PLAIN LOGIN\r\n250 auth=LOGIN\r\n", "250-x\r\n250-SIZE 99999999999999999999\r\n250 \r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, err := readReply(bufio.NewReader(strings.NewReader(string(answer))))
		if err != nil {
			return
		}
		e := parseExtensions(r.Text, nil)
		if e.MaxSize < 0 || e.MaxSize > 0 && !e.Size {
			t.Errorf("got %+v", e)
		}
		upper := strings.ToUpper(r.Text)
		for keyword, has := range map[string]bool{"PIPELINING": e.Pipelining, "SIZE": e.Size, "DSN": e.DSN,
			"STARTTLS": e.StartTLS, "REQUIRETLS": e.RequireTLS, "SMTPUTF8": e.SMTPUTF8, "8BITMIME": e.EightBitMIME} {
			if has && !strings.Contains(upper, "\n"+keyword) {
				t.Errorf("%s was not offered in %q", keyword, r.Text)
			}
		}
	})
}

// said is a connection whose server sends some bytes, whatever it receives, and hangs up.
type said struct {
	net.Conn
	*bytes.Reader
}

func (s said) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s said) Write(b []byte) (int, error)      { return len(b), nil }
func (s said) Close() error                     { return nil }
func (s said) SetDeadline(time.Time) error      { return nil }
func (s said) SetReadDeadline(time.Time) error  { return nil }
func (s said) SetWriteDeadline(time.Time) error { return nil }

// FuzzSession has a server say anything while messages share the connection: each ends,
// and has an outcome that some answer gave it.
func FuzzSession(f *testing.F) {
	for _, extensions := range []string{"250-PIPELINING\r\n250 CHUNKING\r\n", "250 PIPELINING\r\n", "250 SIZE\r\n"} {
		for _, rest := range []string{"", "250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n", "250 a\r\n250 a\r\n354 go\r\n250 taken\r\n421 bye\r\n",
			"250 a\r\n550 5.1.1 a\r\n503 a\r\n250 reset\r\n452 4.3.1 full\r\n"} {
			f.Add([]byte("220 x\r\n250-x\r\n" + extensions + rest))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := New(said{Reader: bytes.NewReader(b)}, Config{Hostname: "client.test"})
		if c.Hello() != nil {
			return
		}
		list := several(4)
		for round := range 2 {
			for i, s := range sendAll(c, list) {
				r := s.results[0]
				if r.Outcome != status.Deferred && (r.Reply.IsZero() || r.InDoubt) || r.Text == "" || r.Code.Class == 0 {
					t.Errorf("round %d, message %d: got %+v, %v", round, i, r, s.err)
				}
				if r.Outcome == status.Delivered && !bytes.Contains(b, []byte("2")) {
					t.Errorf("round %d, message %d: delivered by nothing", round, i)
				}
			}
			list = several(4)
		}
	})
}
