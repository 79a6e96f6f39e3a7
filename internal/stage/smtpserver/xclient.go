package smtpserver

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// xclientOffer are the attributes of Postfix's XCLIENT that are understood.
const xclientOffer = "XCLIENT NAME ADDR PORT PROTO HELO LOGIN DESTADDR DESTPORT"

// maxAttribute bounds a value of XCLIENT. Bytes.
const maxAttribute = 255

// mayXCLIENT tells a peer that may say for whom it speaks. It is asked for its own
// address, whatever it has said before.
func (w *wire) mayXCLIENT() bool { return inNets(w.srv.XClientNets, w.peer) }

// xclient answers XCLIENT: the connection begins anew as that of another client.
func xclient(w *wire, s *session, arg string) bool {
	switch {
	case !w.mayXCLIENT():
		w.say(550, "5.7.0", "XCLIENT is not for you")
		return true
	case s != nil && s.transaction != nil:
		w.say(503, "5.5.1", "a transaction is open; RSET ends it")
		return true
	}
	next, err := parseXCLIENT(arg, w.client)
	if err != nil {
		w.say(501, "5.5.4", err.Error())
		return true
	}
	w.client = next
	w.srv.Log.Info("xclient", "peer", w.peer.String(), "client", next.String(), "name", next.name, "user", next.user)
	w.restart(false)
	return true
}

// parseXCLIENT reads the attributes over what is known of the client. Of one with
// another address nothing is known but what they say.
func parseXCLIENT(arg string, c client) (client, error) {
	said, err := parseAttributes(arg)
	if err != nil {
		return c, err
	}
	addr, port := c.addr.Addr(), c.addr.Port()
	if text, ok := said["ADDR"]; ok {
		c.name, c.user, c.helo, addr, port = "", "", "", unknownClient.Addr(), 0
		if text != "" {
			if addr, err = parseXCLIENTAddr(text); err != nil {
				return c, err
			}
		}
	}
	for name, value := range said {
		switch name {
		case "NAME":
			if strings.Trim(value, hostCharacters) != "" {
				return c, errors.New("NAME is no host name")
			}
			c.name = value
		case "PORT":
			port = 0
			if value != "" {
				n, err := strconv.ParseUint(value, 10, 16)
				if err != nil {
					return c, errors.New("PORT is no port")
				}
				port = uint16(n)
			}
		case "HELO":
			c.helo = value
		case "LOGIN":
			c.user = value
		case "PROTO":
			if value != "" && !strings.EqualFold(value, "SMTP") && !strings.EqualFold(value, "ESMTP") {
				return c, errors.New("PROTO is SMTP or ESMTP")
			}
		case "ADDR", "DESTADDR", "DESTPORT":
			// ADDR was taken; where the client came to is not asked for.
		default:
			return c, fmt.Errorf("the attribute %s is not known here", name)
		}
	}
	c.addr = netip.AddrPortFrom(addr, port)
	return c, nil
}

// hostCharacters may stand in a host name, also in one that is an address.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"

// parseAttributes reads NAME=value words; a value that is not known is "".
func parseAttributes(arg string) (map[string]string, error) {
	said := map[string]string{}
	for _, word := range strings.Fields(arg) {
		name, text, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%s is no attribute with a value", word)
		}
		value, err := unquoteXtext(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if strings.EqualFold(value, "[UNAVAILABLE]") || strings.EqualFold(value, "[TEMPUNAVAIL]") {
			value = ""
		}
		said[strings.ToUpper(name)] = value
	}
	if len(said) == 0 {
		return nil, errors.New("XCLIENT needs attributes, like ADDR=192.0.2.1")
	}
	return said, nil
}

// parseXCLIENTAddr reads 192.0.2.1 or IPV6:2001:db8::1.
func parseXCLIENTAddr(text string) (netip.Addr, error) {
	if len(text) > 5 && strings.EqualFold(text[:5], "IPV6:") {
		text = text[5:]
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, errors.New("ADDR is no address")
	}
	return a.Unmap(), nil
}

// unquoteXtext undoes +XX (RFC 3461 §4). No control character comes out of it.
func unquoteXtext(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		ch := text[i]
		if ch == '+' {
			if i+2 >= len(text) {
				return "", errors.New("a + without two digits")
			}
			n, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
			if err != nil {
				return "", errors.New("a + without two digits")
			}
			ch = byte(n)
			i += 2
		}
		if ch < ' ' || ch == 0x7f {
			return "", errors.New("a control character")
		}
		b.WriteByte(ch)
	}
	if b.Len() > maxAttribute {
		return "", fmt.Errorf("longer than %d bytes", maxAttribute)
	}
	return b.String(), nil
}
