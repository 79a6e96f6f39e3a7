package checks

import (
	"context"
	"net/url"
	"strings"

	"github.com/emersion/go-msgauth/dmarc"
	"golang.org/x/net/publicsuffix"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// DMARC is whether SPF or DKIM speak for the author's domain. The zero value: not
// checked.
type DMARC struct {
	Value  Value
	Domain string // of the From field, ASCII; "": it has not exactly one
	Policy string // what the domain asks for: none, quarantine, reject; "": it has no policy
}

// DMARC evaluates the other results (RFC 7489 §6.6.2).
func (c *Checker) DMARC(ctx context.Context, header []envelope.Field, r *Results) DMARC {
	if !c.cfg.DMARC {
		return DMARC{}
	}
	domain, ok := author(header)
	if !ok {
		return DMARC{Value: PermError}
	}
	d := DMARC{Value: None, Domain: domain}
	record, from, value := c.record(ctx, domain)
	if record == nil {
		d.Value = value
		return d
	}
	d.Policy = c.policy(record, from != domain)
	switch {
	case r.speaks(domain, record):
		d.Value = Pass
	case r.SPF.Value == TempError || r.DKIMValue() == TempError:
		d.Value = TempError
	default:
		d.Value = Fail
	}
	return d
}

// speaks reports whether a check that passed is for the author's domain.
func (r *Results) speaks(domain string, record *dmarc.Record) bool {
	if r.SPF.Value == Pass && aligned(r.SPF.Domain, domain, record.SPFAlignment) {
		return true
	}
	for _, s := range r.DKIM {
		if s.Value == Pass && aligned(s.Domain, domain, record.DKIMAlignment) {
			return true
		}
	}
	return false
}

// aligned is RFC 7489 §3.1.
func aligned(checked, author string, mode dmarc.AlignmentMode) bool {
	if mode == dmarc.AlignmentStrict {
		return checked == author
	}
	return organisation(checked) == organisation(author)
}

// organisation returns the registered domain (RFC 7489 §3.2).
func organisation(domain string) string {
	if o, err := publicsuffix.EffectiveTLDPlusOne(domain); err == nil {
		return o
	}
	return domain // a public suffix itself
}

// record finds the policy of the domain or of its organisation, and that domain; without
// one, value is the reason.
func (c *Checker) record(ctx context.Context, domain string) (r *dmarc.Record, from string, value Value) {
	for _, from := range []string{domain, organisation(domain)} {
		texts, err := c.dns.LookupTXT(ctx, "_dmarc."+from)
		if err != nil && !missing(err) {
			return nil, "", TempError
		}
		var own []string
		for _, t := range texts {
			if version, _, _ := strings.Cut(t, ";"); strings.Join(strings.Fields(version), "") == "v=DMARC1" {
				own = append(own, t)
			}
		}
		switch {
		case len(own) > 1:
			return nil, "", None // RFC 7489 §6.6.3: as if there were none
		case len(own) == 1:
			r, err := dmarc.Parse(own[0])
			if err != nil {
				r, err = dmarc.Parse(monitored(own[0]))
			}
			if err != nil {
				return nil, "", PermError
			}
			return r, from, None
		case from == organisation(domain):
			return nil, "", None
		}
	}
	return nil, "", None
}

// monitored returns a record in which p= or sp= is missing or wrong as one with p=none, if it
// names an address for reports (RFC 7489 section 6.6.3); else as it is.
func monitored(record string) string {
	reports := false
	parts := []string{"v=DMARC1", "p=none"}
	for part := range strings.SplitSeq(record, ";") {
		name, value, _ := strings.Cut(part, "=")
		switch name = strings.TrimSpace(name); name {
		case "v", "p", "sp":
			continue
		case "rua":
			for uri := range strings.SplitSeq(value, ",") {
				u, err := url.Parse(strings.TrimSpace(uri))
				reports = reports || err == nil && u.Scheme != "" && u.Opaque+u.Host != ""
			}
		}
		parts = append(parts, part)
	}
	if !reports {
		return record
	}
	return strings.Join(parts, ";")
}

// policy returns what the domain asks for, for this message (RFC 7489 §6.6.4).
func (c *Checker) policy(r *dmarc.Record, sub bool) string {
	p := r.Policy
	if sub && r.SubdomainPolicy != "" {
		p = r.SubdomainPolicy
	}
	if r.Percent != nil && c.cfg.Percent() >= *r.Percent {
		switch p {
		case dmarc.PolicyReject:
			p = dmarc.PolicyQuarantine
		case dmarc.PolicyQuarantine:
			p = dmarc.PolicyNone
		}
	}
	return string(p)
}

// author returns the domain of the From field, which must be one (RFC 7489 §6.6.1).
func author(header []envelope.Field) (string, bool) {
	domain, fields := "", 0
	for _, f := range header {
		if !strings.EqualFold(f.Name, "From") {
			continue
		}
		if fields++; fields > 1 {
			return "", false
		}
		for _, a := range address.ParseList(f.Value()) {
			d, err := a.Mailbox.ASCIIDomain()
			if a.Err != nil || err != nil || d == "" || domain != "" && domain != strings.ToLower(d) {
				return "", false
			}
			domain = strings.ToLower(d)
		}
	}
	return domain, domain != "" && !strings.HasPrefix(domain, "[")
}
