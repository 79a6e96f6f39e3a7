package session

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

// mayXCLIENT reports whether the peer may name another client; its own address counts,
// not one that it named before.
func (c *Conn) mayXCLIENT() bool { return Contains(c.config.XClientNets, c.peer.Addr()) }

// xclient answers XCLIENT: the connection begins anew as that of another client.
func (c *Conn) xclient(arg string) {
	if !c.mayXCLIENT() {
		c.reply(replyXCLIENT)
		return
	}
	next, err := parseXCLIENT(arg, c.client)
	if err != nil {
		c.reply(NewReply(501, "5.5.4", "Bad XCLIENT syntax: "+err.Error()))
		return
	}
	c.client, c.trusted = next, false
	c.config.Log.Info("xclient", "peer", c.peer.String(), "client", next.String(), "name", next.Name, "user", next.User)
	if next.User != "" {
		c.loggedIn()
	}
	c.restart()
	c.greet()
}

// parseXCLIENT applies the attributes to a client. With
// another address everything known before is dropped.
func parseXCLIENT(arg string, c Client) (Client, error) {
	given, err := parseAttributes(arg)
	if err != nil {
		return c, err
	}
	addr, port := c.Addr.Addr(), c.Addr.Port()
	if text, ok := given["ADDR"]; ok {
		c.Name, c.User, c.Mechanism, c.Helo, addr, port = "", "", "", "", UnknownClient().Addr(), 0
		if c.TLS != nil && len(c.TLS.PeerCertificates) > 0 {
			// The certificate is that of the peer: rules that admit it do not admit its clients.
			t := *c.TLS
			t.PeerCertificates, t.VerifiedChains = nil, nil
			c.TLS = &t
		}
		if text != "" {
			if addr, err = parseXCLIENTAddr(text); err != nil {
				return c, err
			}
		}
	}
	for name, value := range given {
		switch name {
		case "NAME":
			if strings.Trim(value, hostCharacters) != "" {
				return c, errors.New("NAME is not a host name")
			}
			c.Name = value
		case "PORT":
			port = 0
			if value != "" {
				n, err := strconv.ParseUint(value, 10, 16)
				if err != nil {
					return c, errors.New("PORT is not a port number")
				}
				port = uint16(n)
			}
		case "HELO":
			c.Helo = value
		case "LOGIN":
			c.User, c.Mechanism = value, ""
			if value != "" {
				c.Mechanism = "XCLIENT"
			}
		case "PROTO":
			if value != "" && !strings.EqualFold(value, "SMTP") && !strings.EqualFold(value, "ESMTP") {
				return c, errors.New("PROTO must be SMTP or ESMTP")
			}
		case "ADDR", "DESTADDR", "DESTPORT":
			// ADDR was read above; the address that the client connected to is not used.
		default:
			return c, fmt.Errorf("unknown attribute %s", name)
		}
	}
	c.Addr = netip.AddrPortFrom(addr, port)
	return c, nil
}

// hostCharacters are allowed in a host name, also in one that is an address.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"

// parseAttributes reads NAME=value words; a value that is not known is "".
func parseAttributes(arg string) (map[string]string, error) {
	given := map[string]string{}
	for _, word := range strings.Fields(arg) {
		name, text, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("%s: want NAME=VALUE", word)
		}
		value, err := unquoteXtext(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if strings.EqualFold(value, "[UNAVAILABLE]") || strings.EqualFold(value, "[TEMPUNAVAIL]") {
			value = ""
		}
		given[strings.ToUpper(name)] = value
	}
	if len(given) == 0 {
		return nil, errors.New("no attributes")
	}
	return given, nil
}

// parseXCLIENTAddr reads 192.0.2.1 or IPV6:2001:db8::1.
func parseXCLIENTAddr(text string) (netip.Addr, error) {
	if len(text) > 5 && strings.EqualFold(text[:5], "IPV6:") {
		text = text[5:]
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, errors.New("ADDR is not an IP address")
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
				return "", errors.New("+ without two hexadecimal digits")
			}
			n, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
			if err != nil {
				return "", errors.New("+ without two hexadecimal digits")
			}
			ch = byte(n)
			i += 2
		}
		if ch < ' ' || ch == 0x7f {
			return "", errors.New("control character")
		}
		b.WriteByte(ch)
	}
	if b.Len() > maxAttribute {
		return "", fmt.Errorf("longer than %d bytes", maxAttribute)
	}
	return b.String(), nil
}
