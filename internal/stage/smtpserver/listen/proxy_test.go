package listen

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

// FuzzProxyHeader: a header takes no byte behind it, and an address is one that rules can
// compare.
func FuzzProxyHeader(f *testing.F) {
	const v2 = "\r\n\r\n\x00\r\nQUIT\n"
	from := netip.MustParseAddrPort("192.0.2.1:1")
	for _, seed := range []string{
		"PROXY TCP4 203.0.113.9 192.0.2.25 40000 25\r\n", v2 + "\x20\x00\x00\x00", v2 + "\x21\x00\x00\x03\x04\x00\x00",
		v2 + "\x21\x11\x00\x0c\xcb\x00\x71\x09\xc0\x00\x02\x19\x9c\x40\x00\x19", "PROXY UNKNOWN\r\n",
		"PROXY TCP6 ::ffff:1.2.3.4 ::1 0 65535\r\n", v2 + "\x21\x31\x00\xd8" + strings.Repeat("a", 216),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(append(b, "EHLO rest\r\n"...))
		before := in.Len()
		addr, err := ReadProxy(in, from)
		if err != nil {
			return
		}
		used := before - in.Len()
		if used > len(b)+len("EHLO rest\r\n") || used < 15 {
			t.Errorf("%d bytes used of %d", used, len(b))
		}
		if !addr.IsValid() || addr.Addr().Zone() != "" || addr.Addr().Is4In6() {
			t.Errorf("address %v", addr)
		}
		if b[0] == 'P' && (used > maxProxyLine || b[used-1] != '\n') {
			t.Errorf("version 1, %d bytes: %q", used, b[:used])
		}
	})
}
