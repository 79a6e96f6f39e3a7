package session

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// xforwardOffer are the attributes of Postfix's XFORWARD.
const xforwardOffer = "XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE"

// Forwarded is where another mail system, or a content filter, has a message from, as XFORWARD
// names it. It is for logs and reports: no rule goes by it. What is not known is "", but for Addr.
type Forwarded struct {
	Addr     netip.AddrPort // UnknownClient: not known; the zero value: the message comes from that host itself
	Name     string         // a host name
	Helo     string
	Protocol string
	Ident    string // the message's ID there
	Source   string // LOCAL or REMOTE
}

// String returns the address and port for the log, as that of a Client.
func (f *Forwarded) String() string { return Client{Addr: f.Addr}.String() }

// mayXFORWARD reports whether the peer may say where its messages come from; its own address
// counts.
func (c *Conn) mayXFORWARD() bool { return Contains(c.config.XForwardNets, c.peer.Addr()) }

// xforward answers XFORWARD. It concerns one transaction: reset forgets it.
func (c *Conn) xforward(arg string) {
	if !c.mayXFORWARD() {
		c.reply(replyXCLIENT)
		return
	}
	next := Forwarded{Addr: UnknownClient()}
	if c.forwarded != nil {
		next = *c.forwarded
	}
	if err := next.parse(arg); err != nil {
		c.reply(NewReply(501, "5.5.4", "Bad XFORWARD syntax: "+err.Error()))
		return
	}
	c.forwarded = &next
	c.reply(replyOK)
}

// longestProtocol bounds PROTO.
const longestProtocol = 64

// parse applies the attributes of one XFORWARD. On an error f is not to be used.
func (f *Forwarded) parse(arg string) error {
	given, err := parseAttributes(arg)
	if err != nil {
		return err
	}
	addr, port := f.Addr.Addr(), f.Addr.Port()
	for name, value := range given {
		switch name {
		case "NAME":
			if strings.Trim(value, hostCharacters) != "" {
				return errors.New("NAME is not a host name")
			}
			f.Name = value
		case "ADDR":
			addr = UnknownClient().Addr()
			if value != "" {
				if addr, err = parseXCLIENTAddr(value); err != nil {
					return err
				}
			}
		case "PORT":
			port = 0
			if value != "" {
				n, err := strconv.ParseUint(value, 10, 16)
				if err != nil {
					return errors.New("PORT is not a port number")
				}
				port = uint16(n)
			}
		case "HELO":
			f.Helo = SafeName(value)
		case "PROTO":
			if len(value) > longestProtocol {
				return fmt.Errorf("PROTO is longer than %d bytes", longestProtocol)
			}
			f.Protocol = SafeName(value)
		case "IDENT":
			f.Ident = SafeName(value)
		case "SOURCE":
			if f.Source = strings.ToUpper(value); value != "" && f.Source != "LOCAL" && f.Source != "REMOTE" {
				return errors.New("SOURCE must be LOCAL or REMOTE")
			}
		default:
			return fmt.Errorf("unknown attribute %s", SafeName(name))
		}
	}
	if addr.IsUnspecified() || !addr.IsValid() {
		port = 0
		if addr = UnknownClient().Addr(); f.Source == "LOCAL" {
			addr = netip.Addr{}
		}
	}
	f.Addr = netip.AddrPort{}
	if addr.IsValid() {
		f.Addr = netip.AddrPortFrom(addr, port)
	}
	return nil
}
