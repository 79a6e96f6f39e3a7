package smtpserver

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pieces is an input that comes cut into pieces.
type pieces struct {
	rest [][]byte
	buf  []byte
	end  error
}

func (p *pieces) peek() []byte { return p.buf }
func (p *pieces) skip(n int)   { p.buf = p.buf[n:] }

func (p *pieces) more() error {
	if len(p.rest) == 0 {
		return p.end
	}
	p.buf = append(bytes.Clone(p.buf), p.rest[0]...)
	p.rest = p.rest[1:]
	return nil
}

func cut(b []byte, size int, end error) *pieces {
	p := &pieces{end: end}
	for len(b) > size {
		p.rest = append(p.rest, b[:size:size])
		b = b[size:]
	}
	p.rest = append(p.rest, b)
	return p
}

var (
	lastLine = regexp.MustCompile(`(?s)^(.*?)(^|\r\n)\.\r\n`)
	dotLine  = regexp.MustCompile(`(^|\r\n)\.`)
)

// reference decodes as RFC 5321 §4.5.2 says, without a thought of memory.
func reference(b []byte) (content []byte, used int, ok bool) {
	m := lastLine.FindSubmatchIndex(b)
	if m == nil {
		return nil, 0, false
	}
	b = b[:m[5]]
	b = dotLine.ReplaceAll(b, []byte("$1"))
	return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")), m[1], true
}

// FuzzContent: whatever the pieces, DATA's content is what the RFC makes of it, and
// what follows it is left alone.
func FuzzContent(f *testing.F) {
	for _, s := range []string{"a\r\n.\r\nQUIT", ".\r\n", "..\r\n.\r\n", "a\n.\n\r.\r\r\n.\r\n", "\r\n.\rx\r\n.\r\n", "\r\r\n.\r\n", ".\r\r\n.\r\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		want, used, ok := reference(data)
		in := cut(bytes.Clone(data), int(size)+1, io.EOF)
		c := content{in: in, dots: true}
		var got bytes.Buffer
		end, err := c.copyTo(&got)
		if end != ok || ok != (err == nil) {
			t.Fatalf("%q: end %v, %v; want %v", data, end, err, ok)
		}
		if !ok {
			return
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q in %d: got %q, want %q", data, size, got.Bytes(), want)
		}
		left := append(bytes.Clone(in.buf), bytes.Join(in.rest, nil)...)
		if !bytes.Equal(left, data[used:]) {
			t.Fatalf("%q: %q is left, want %q", data, left, data[used:])
		}
		if wantSize := int64(len(want) + bytes.Count(data[:used], []byte("\r\n")) - 1); c.size != wantSize {
			t.Fatalf("%q: size %d, want %d", data, c.size, wantSize)
		}
	})
}

// FuzzChunks: BDAT's content is the same with LF for CRLF, whatever the pieces.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"a\r\n.\r\n", "\r", "a\r\r\n", "\n.\n"} {
		f.Add([]byte(s), uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		c := content{in: cut(bytes.Clone(data), int(size)+1, errEnd)}
		var got bytes.Buffer
		end, err := c.copyTo(&got)
		if want := bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")); !end || err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q in %d: got %q, %v, %v; want %q", data, size, got.Bytes(), end, err, want)
		}
		if c.size != int64(len(data)) {
			t.Fatalf("%q: size %d, want %d", data, c.size, len(data))
		}
	})
}

func TestPathsAndParametersAreParted(t *testing.T) {
	for line, want := range map[string][2]string{
		"MAIL FROM:<a@b>":                       {"<a@b>", ""},
		"MAIL FROM:<>":                          {"<>", ""},
		"MAIL FROM:<a@b> SIZE=1 BODY=7BIT":      {"<a@b>", " SIZE=1 BODY=7BIT"},
		"mail from: \t<a@b>  RET=FULL":          {"<a@b>", "  RET=FULL"},
		"RCPT TO:a@b NOTIFY=NEVER":              {"a@b", " NOTIFY=NEVER"},
		"RCPT TO:a@b":                           {"a@b", ""},
		`RCPT TO:<"> x"@b> ORCPT=rfc822;x`:      {`<"> x"@b>`, " ORCPT=rfc822;x"},
		`RCPT TO:<"\"> x"@b> X`:                 {`<"\"> x"@b>`, " X"},
		`RCPT TO:"a b"@c X=1`:                   {`"a b"@c`, " X=1"},
		"RCPT TO:<@x,@y:a@b>X":                  {"<@x,@y:a@b>", "X"},
		"RCPT TO:<c@[IPv6:2001:db8::1]> N=1":    {"<c@[IPv6:2001:db8::1]>", " N=1"},
		"RCPT TO:<unfinished":                   {"<unfinished", ""},
		"RCPT TO:":                              {"", ""},
		"RCPT TO:<a@b> ORCPT=rfc822;x:y NOTIFY": {"<a@b>", " ORCPT=rfc822;x:y NOTIFY"},
	} {
		path, params := splitPath(line)
		if got := [2]string{path, params}; got != want {
			t.Errorf("%q gives %q, want %q", line, got, want)
		}
	}
	if got := param(" SIZE=1 envid=a=b X", "ENVID"); got != "a=b" {
		t.Errorf("ENVID %q", got)
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
