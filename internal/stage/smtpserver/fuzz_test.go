package smtpserver

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
	unsynced := &troubled{before: func(op, _ string) error { return nil }, noSync: true}
	s := startSecured(f, func(c *Config) {
		c.FS, c.XClientNets, c.LMTPListen = unsynced, loopback, []string{"127.0.0.1:0"}
	})
	f.Fuzz(func(t *testing.T, said []byte, lmtp bool) {
		s.t = t
		addr := s.addr
		if lmtp {
			addr = s.addrs[3].String()
		}
		p := s.connectTo("tcp", addr)
		p.expect("220")
		// The server may have closed the connection in the middle.
		_, _ = p.Write(said)
		if err := p.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			return
		}
		all, _ := io.ReadAll(p.r)
		accepted := strings.Count(string(all), "queued as S")
		if lmtp {
			accepted = min(accepted, 1) // a reply for each recipient
		}
		if got := len(s.names("router")); got < accepted {
			t.Fatalf("%q: %d messages are accepted, router/ has %d", said, accepted, got)
		}
		if strings.Contains(s.log.String(), "level=ERROR") {
			t.Fatalf("%q:\n%s", said, s.log.String())
		}
		for _, name := range s.names("router") {
			s.message(name)
			if err := os.Remove(filepath.Join(s.dir, "router", name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
