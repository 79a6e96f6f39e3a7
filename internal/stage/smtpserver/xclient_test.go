package smtpserver

import (
	"net/netip"
	"strings"
	"testing"
)

func TestXCLIENTSpeaksForAnother(t *testing.T) {
	r := start(t, func(c *Config) { c.XClientNets = loopback })
	p := r.dial()
	if got := p.say("EHLO proxy", "250"); !strings.Contains(got, "XCLIENT NAME ADDR PORT PROTO HELO LOGIN") {
		t.Errorf("EHLO: %q", got)
	}
	p.say("MAIL FROM:<a@b>", "250")
	p.say("XCLIENT ADDR=203.0.113.9", "503 5.5.1")
	p.say("RSET", "250")
	p.say("XCLIENT", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 COLOUR=blue", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 NAME=mail.example.net PORT=40000 HELO=c.example.net", "220 mx.example.org")
	// All is as at the beginning, for the other client.
	p.say("MAIL FROM:<a@b>", "503")
	p.say("EHLO proxy", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@elsewhere.example>", "550 5.7.1")
	p.say("RCPT TO:<b@mx.example.org>", "250")
	p.say("DATA", "354")
	p.say("x\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "rcvdfrom c.example.net (mail.example.net [203.0.113.9]:40000)\n") {
		t.Errorf("got\n%s", got)
	}
	// The peer may still say so: it is asked for its own address.
	p.say("XCLIENT ADDR=IPV6:2001:db8::9 LOGIN=ann", "220")
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	if got := r.log.String(); !strings.Contains(got, `msg=xclient peer=127.0.0.1:`) || !strings.Contains(got, "user=ann") {
		t.Errorf("log:\n%s", got)
	}
}

func TestXCLIENTIsOffUnlessTold(t *testing.T) {
	r := start(t, func(c *Config) { c.XClientNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	p := r.dial()
	if got := p.say("EHLO c", "250"); strings.Contains(got, "XCLIENT") {
		t.Errorf("EHLO: %q", got)
	}
	p.say("XCLIENT ADDR=192.0.2.1", "550 5.7.0")
}
