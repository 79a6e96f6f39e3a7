package checks

import (
	"context"
	"net/netip"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/smtpserver/content/checks/spf"
)

// SPF is whether a domain lets a host send its mail. The zero value: not checked.
type SPF struct {
	Value  Value
	From   string // the sender's address; "": the greeting was checked
	Helo   string // with From "": the name that was checked
	Domain string // that was asked, ASCII; "": none
}

// SPF checks the sender's domain, for the null sender that of the greeting (RFC 7208
// §2.4).
func (c *Checker) SPF(ctx context.Context, client netip.Addr, helo string, from address.Mailbox) SPF {
	if !c.cfg.SPF {
		return SPF{}
	}
	r := SPF{Value: None, From: from.String()}
	who := address.Mailbox{Local: "postmaster", Domain: helo}
	if from.IsNull() || from.Domain == "" {
		r.From, r.Helo = "", helo
	} else {
		who = from
	}
	client = client.Unmap().WithZone("")
	domain, err := who.ASCIIDomain()
	if err != nil || !client.IsValid() || strings.HasPrefix(domain, "[") || !strings.Contains(domain, ".") {
		return r // RFC 7208 §4.3: nothing to ask
	}
	r.Domain = strings.ToLower(domain)
	r.Value = Value(spf.Check(ctx, c.dns, client, helo, who.Local+"@"+r.Domain))
	return r
}
