package listen

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"

	"zmailer/internal/stage/smtpserver/session"
)

const (
	// ProxyTimeout is how long a PROXY header may take.
	ProxyTimeout = 10 * time.Second
	// maxProxyLine is the longest header of version 1.
	maxProxyLine = 107
)

// ReadProxy takes the client's address from the PROXY header that a proxy begins a
// connection with. It reads the header and nothing behind it. from is the proxy's own
// address, which holds where the proxy speaks for itself.
func ReadProxy(r io.Reader, from netip.AddrPort) (netip.AddrPort, error) {
	head, err := readProxyHeader(r)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if head[0] == proxyproto.SIGV2[0] && head[12] == byte(proxyproto.PROXY) && head[13] == byte(proxyproto.UNSPEC) {
		return session.UnknownClient(), nil // the library does not take it
	}
	left := bytes.NewReader(head)
	h, err := proxyproto.Read(bufio.NewReaderSize(left, len(head)))
	switch {
	case err != nil:
		return netip.AddrPort{}, err
	case left.Len() > 0:
		return netip.AddrPort{}, errors.New("the PROXY header is cut short")
	case h.Command.IsLocal() && h.Version == 2:
		return from, nil // a health check of the proxy
	}
	switch a := h.SourceAddr.(type) {
	case nil, *net.UnixAddr:
		return session.UnknownClient(), nil
	case *net.TCPAddr:
		if p := a.AddrPort(); p.Addr().IsValid() {
			return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port()), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the client's address is not a TCP address: %v", h.SourceAddr)
}

// readProxyHeader reads as many bytes as the header has, however they come. The library
// wants it in one piece.
func readProxyHeader(r io.Reader) ([]byte, error) {
	const shortest = len("PROXY UNKNOWN\r\n")
	head := make([]byte, shortest, maxProxyLine)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read the PROXY header: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, proxyproto.SIGV1):
		var b [1]byte
		for head[len(head)-1] != '\n' {
			if len(head) == maxProxyLine {
				return nil, errors.New("the PROXY header is too long")
			}
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return nil, fmt.Errorf("read the PROXY header: %w", err)
			}
			head = append(head, b[0])
		}
		if bytes.IndexByte(head, '\n') != len(head)-1 {
			return nil, errors.New("the PROXY header is cut short")
		}
		return head, nil
	case bytes.HasPrefix(head, proxyproto.SIGV2):
		var low [1]byte
		if _, err := io.ReadFull(r, low[:]); err != nil {
			return nil, fmt.Errorf("read the PROXY header: %w", err)
		}
		head = append(head, low[0])
		rest := make([]byte, binary.BigEndian.Uint16(head[14:]))
		if _, err := io.ReadFull(r, rest); err != nil {
			return nil, fmt.Errorf("read the PROXY header: %w", err)
		}
		return append(head, rest...), nil
	}
	return nil, errors.New("no PROXY header")
}
