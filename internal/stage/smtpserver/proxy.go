package smtpserver

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
)

const (
	// proxyTimeout is how long a PROXY header may take.
	proxyTimeout = 10 * time.Second
	// maxProxyLine is the longest header of version 1.
	maxProxyLine = 107
)

// unknownClient is the address of a client that a proxy does not know, or does not
// tell: in no network, so that nothing is allowed for it.
var unknownClient = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)

// inNets tells an address that is in one of the networks; that of a Unix socket is in
// none.
func inNets(nets []netip.Prefix, a netip.AddrPort) bool {
	addr := a.Addr().Unmap().WithZone("")
	for _, n := range nets {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}

// readProxy takes the client's address from the PROXY header that a proxy begins the
// connection with, and logs if there is none.
func (w *wire) readProxy() error {
	if !w.limit(proxyTimeout) {
		return errStopping
	}
	addr, err := parseProxy(w.Conn, w.client.addr)
	if err != nil {
		w.srv.Log.Warn("proxy-refused", "client", w.client.String(), "reason", err,
			"advice", "connections from PROXYNETS have to begin with a PROXY header")
		return err
	}
	w.client.addr, w.peer = addr, addr
	return nil
}

// parseProxy reads a header and nothing behind it. from is the proxy's own address,
// which stands where it speaks for itself.
func parseProxy(r io.Reader, from netip.AddrPort) (netip.AddrPort, error) {
	head, err := readProxyHeader(r)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if head[0] == proxyproto.SIGV2[0] && head[12] == byte(proxyproto.PROXY) && head[13] == byte(proxyproto.UNSPEC) {
		return unknownClient, nil // the library does not take it
	}
	left := bytes.NewReader(head)
	h, err := proxyproto.Read(bufio.NewReaderSize(left, len(head)))
	switch {
	case err != nil:
		return netip.AddrPort{}, err
	case left.Len() > 0:
		return netip.AddrPort{}, errors.New("the header ends early")
	case h.Command.IsLocal() && h.Version == 2:
		return from, nil // as the proxy looks whether we live
	}
	switch a := h.SourceAddr.(type) {
	case nil, *net.UnixAddr:
		return unknownClient, nil
	case *net.TCPAddr:
		if p := a.AddrPort(); p.Addr().IsValid() {
			return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port()), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the client's address is no TCP address: %v", h.SourceAddr)
}

// readProxyHeader reads as many bytes as the header has, however they come. The library
// wants it in one piece.
func readProxyHeader(r io.Reader) ([]byte, error) {
	const shortest = len("PROXY UNKNOWN\r\n")
	head := make([]byte, shortest, maxProxyLine)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("the PROXY header: %w", err)
	}
	switch {
	case bytes.HasPrefix(head, proxyproto.SIGV1):
		var b [1]byte
		for head[len(head)-1] != '\n' {
			if len(head) == maxProxyLine {
				return nil, errors.New("the PROXY header is too long")
			}
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return nil, fmt.Errorf("the PROXY header: %w", err)
			}
			head = append(head, b[0])
		}
		if bytes.IndexByte(head, '\n') != len(head)-1 {
			return nil, errors.New("the PROXY header ends early")
		}
		return head, nil
	case bytes.HasPrefix(head, proxyproto.SIGV2):
		var low [1]byte
		if _, err := io.ReadFull(r, low[:]); err != nil {
			return nil, fmt.Errorf("the PROXY header: %w", err)
		}
		head = append(head, low[0])
		rest := make([]byte, binary.BigEndian.Uint16(head[14:]))
		if _, err := io.ReadFull(r, rest); err != nil {
			return nil, fmt.Errorf("the PROXY header: %w", err)
		}
		return append(head, rest...), nil
	}
	return nil, errors.New("there is no PROXY header")
}
