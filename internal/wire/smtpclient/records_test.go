package smtpclient

import (
	"bytes"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	testpeer "zmailer/test/peer"
)

// corked is a connection that sends what is written to it when it is told to.
type corked struct {
	net.Conn
	held  bytes.Buffer
	holds bool
}

func (c *corked) Write(b []byte) (int, error) {
	if c.holds {
		return c.held.Write(b)
	}
	return c.Conn.Write(b)
}

func (c *corked) flush() error {
	c.holds = false
	_, err := c.held.WriteTo(c.Conn)
	return err
}

// Del1: under TLS what a server says beyond its answers is seen too, if it comes with them:
// each in a record of its own.
func TestDel1AnswersInRecordsOfTheirOwn(t *testing.T) {
	for name, c := range map[string]struct {
		data, dot []string // records
		content   bool     // is sent
		want      string
		usable    bool
	}{
		"one answer each":         {[]string{"354 go"}, []string{"250 2.0.0 taken"}, true, "delivered 2.0.0 waiting for the answer to the final dot", true},
		"behind 354":              {[]string{"354 go", "552 5.3.4 too big"}, nil, false, "deferred 4.4.2 waiting for the answer to DATA", false},
		"354 in two records":      {[]string{"354 go", "354", " go"}, nil, false, "deferred 4.4.2 waiting for the answer to DATA", false},
		"behind the dot's answer": {[]string{"354 go"}, []string{"250 2.0.0 taken", "550 5.7.1 spam"}, true, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", false},
		"421 behind it":           {[]string{"354 go"}, []string{"250 2.0.0 taken", "421 4.4.2", " bye"}, true, "delivered 2.0.0 waiting for the answer to the final dot", false},
	} {
		t.Run(name, func(t *testing.T) {
			ca := testpeer.NewCA(t, "test")
			nc, server := pair(t)
			done := make(chan []byte, 1)
			go func() {
				cork := &corked{Conn: server}
				secure := tls.Server(cork, &tls.Config{Certificates: []tls.Certificate{ca.Issue("mx.test")}})
				s := newLines(secure)
				say := func(records []string) {
					cork.holds = true
					for i, r := range records {
						if i == len(records)-1 || records[i+1][0] != ' ' {
							r += "\r\n"
						}
						if _, err := secure.Write([]byte(r)); err != nil {
							s.err = err
						}
					}
					if err := cork.flush(); err != nil {
						s.err = err
					}
				}
				s.say("220 mx.test ESMTP")
				s.hear() // EHLO
				s.say("250-mx.test\r\n250 PIPELINING")
				for range 3 {
					s.hear()
				}
				s.say("250 2.1.0 ok\r\n250 2.1.5 ok")
				say(c.data)
				var got bytes.Buffer
				for s.err == nil && !strings.HasSuffix(got.String(), ".\r\n") {
					line, err := s.r.ReadString('\n')
					got.WriteString(line)
					s.err = err
				}
				if s.err == nil {
					say(c.dot)
				}
				done <- got.Bytes()
				s.hear()
			}()
			conn := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
			t.Cleanup(func() { conn.Close() })
			if err := conn.BeginTLS(&tls.Config{ServerName: "mx.test", RootCAs: ca.Pool()}); err != nil {
				t.Fatal(err)
			}
			if err := conn.Hello(); err != nil {
				t.Fatal(err)
			}
			res, err := conn.Send(message("to@test"))
			if got := outcomes(res); err != nil || !slices.Equal(got, []string{c.want}) || conn.Usable() != c.usable {
				t.Errorf("got %q, %v, usable %v, want %q, %v", got, err, conn.Usable(), c.want, c.usable)
			}
			conn.Close()
			if content := <-done; (len(content) > 0) != c.content {
				t.Errorf("got content %q", content)
			}
		})
	}
}
