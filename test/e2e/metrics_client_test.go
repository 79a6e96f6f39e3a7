package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"zmailer/test/suite"
)

// client speaks SMTP to a system.
type client struct {
	conn net.Conn
}

func dialSMTP(t *testing.T, s *suite.Suite) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.SMTPAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &client{conn}
	c.expect(t, "220")
	c.say(t, "EHLO client.example", "250")
	return c
}

// say sends a line and wants the answer's code.
func (c *client) say(t *testing.T, line, code string) {
	t.Helper()
	if _, err := fmt.Fprintf(c.conn, "%s\r\n", line); err != nil {
		t.Fatal(err)
	}
	c.expect(t, code)
}

func (c *client) expect(t *testing.T, code string) {
	t.Helper()
	var got []byte
	for {
		b := make([]byte, 4096)
		n, err := c.conn.Read(b)
		if err != nil {
			t.Fatalf("%v behind %q", err, got)
		}
		got = append(got, b[:n]...)
		lines := strings.Split(strings.TrimSuffix(string(got), "\r\n"), "\r\n")
		last := lines[len(lines)-1]
		if !strings.HasSuffix(string(got), "\r\n") || len(last) < 4 || last[3] != ' ' {
			continue
		}
		if !strings.HasPrefix(last, code) {
			t.Fatalf("got %q, want %s", got, code)
		}
		return
	}
}

func (c *client) send(t *testing.T, from string, to []string) {
	t.Helper()
	c.say(t, "MAIL FROM:<"+from+">", "250")
	for _, rcpt := range to {
		c.say(t, "RCPT TO:<"+rcpt+">", "250")
	}
	c.say(t, "DATA", "354")
	c.say(t, "Subject: x\r\n\r\nx\r\n.", "250")
}

// refused names a recipient that cannot be one.
func (c *client) refused(t *testing.T) {
	t.Helper()
	c.say(t, "MAIL FROM:<a@mta.example>", "250")
	c.say(t, "RCPT TO:<alice@mta.example> NOTIFY=NEVER NOTIFY=NEVER", "501")
	c.say(t, "RSET", "250")
}
