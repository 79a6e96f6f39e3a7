package tasmtp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/agent"
	"zmailer/internal/stage/tasmtp/sign"
)

// noKey is RFC 3463 §3.8: cryptographic failure; of ours, so it passes.
var noKey = status.Code{Class: 4, Subject: 7, Detail: 5}

// signer signs the mail of this host's users.
type signer struct {
	keys *sign.Table    // nil: mail is not signed
	nets []netip.Prefix // of clients whose mail is signed
	log  *slog.Logger
}

// sign adds our signatures to a message of ours from a domain that has keys. It is the last
// step, since the signature covers the bytes that are sent.
func (s *signer) sign(d *agent.Delivery, c *content) error {
	if s.keys.Empty() {
		return nil
	}
	keys := s.keys.For(author(c.header))
	if len(keys) == 0 {
		return nil
	}
	ours, err := s.ours(d)
	if err != nil || !ours {
		return err
	}
	fields, err := sign.Sign(keys, c.header, c.body(), time.Now())
	trouble := (*sign.Error)(nil)
	switch {
	case errors.As(err, &trouble):
		return &messageError{status.Deferred, noKey, errors.New("our signature for " + trouble.Domain + " cannot be made now; the reason is in the log of this host")}
	case errors.Is(err, sign.ErrShape):
		s.log.Warn("not-signed", "id", d.ID(), "domain", keys[0].Domain, "reason", err)
		return nil
	case err != nil:
		return fmt.Errorf("sign the message: %w", err)
	}
	c.header = slices.Concat(fields, c.header)
	c.size += int64(len(fields))
	return nil
}

// author returns the domain of the From field; "" unless it is unambiguous.
func author(header []byte) string {
	domain := ""
	for _, f := range envelope.Fields(header) {
		if !strings.EqualFold(f.Name, "From") {
			continue
		}
		list := address.ParseList(f.Value())
		if domain != "" || len(list) == 0 || list[0].Err != nil {
			return ""
		}
		var err error
		if domain, err = list[0].Mailbox.ASCIIDomain(); err != nil {
			return ""
		}
	}
	return domain
}

// ours reports whether a message came from this machine, from an authenticated client, or
// from a client in SIGNNETS. Mail from elsewhere that is only forwarded is not signed,
// whatever its From field is.
func (s *signer) ours(d *agent.Delivery) (bool, error) {
	m, err := readEnvelope(d)
	if m == nil || err != nil {
		return false, err
	}
	if m.Filtered {
		return false, nil // signed on the way to the content filter; here its client is the filter
	}
	if m.RcvdFrom == "" || strings.HasSuffix(strings.ToUpper(m.With), "A") {
		return true, nil // RFC 3848: ESMTPA, ESMTPSA
	}
	client, ok := clientAddr(m.RcvdFrom)
	return ok && slices.ContainsFunc(s.nets, func(net netip.Prefix) bool { return net.Contains(client) }), nil
}

// clientAddr finds the client's address in "greeting (name [192.0.2.1])". It is last:
// the client chooses the text before it.
func clientAddr(rcvdFrom string) (netip.Addr, bool) {
	text := rcvdFrom[strings.LastIndexByte(rcvdFrom, '[')+1:]
	text, rest, _ := strings.Cut(text, "]")
	a, err := netip.ParseAddr(strings.TrimPrefix(text, "IPv6:"))
	return a.Unmap(), err == nil && strings.HasPrefix(rest, ")")
}

// signNets returns the networks of SIGNNETS, or without it of RELAYNETS.
func signNets(s *config.Reader) []netip.Prefix {
	name := "SIGNNETS"
	words := s.List(name)
	if len(words) == 0 {
		name = "RELAYNETS"
		words = s.List(name)
	}
	if len(words) == 0 {
		words = []string{"127.0.0.0/8", "::1/128"}
	}
	var nets []netip.Prefix
	for _, word := range words {
		net, err := config.ParseNet(word)
		s.Use(name, err)
		if err == nil {
			nets = append(nets, net)
		}
	}
	return nets
}
