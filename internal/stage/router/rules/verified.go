package rules

import (
	"cmp"
	"context"

	"zmailer/internal/mail/address"
)

// VerifiedDomain is a domain whose recipients are to be verified at their next hop.
type VerifiedDomain struct {
	Domain        string
	File          string
	Line          int
	Channel, Host string // the next hop
}

// VerifiedDomains returns those of the text tables; other sources cannot be listed. One whose next
// hop is not known now is left out.
func (t *Tables) VerifiedDomains(ctx context.Context) (list []VerifiedDomain) {
	c := &t.classes
	for _, l := range t.relayDomains {
		for _, e := range domainsOf(l) {
			if c.verifies(&e.store, c.VerifyRelay) {
				// The one recipient that each domain has (RFC 5321 section 4.5.1).
				if to, err := t.Verify(ctx, address.Mailbox{Local: "postmaster", Domain: e.key}); err == nil && to.Channel != Error {
					list = append(list, VerifiedDomain{e.key, l.mem.file, e.line, to.Channel, to.Host})
				}
			}
		}
	}
	for _, l := range t.mailboxDomains {
		for _, e := range domainsOf(l) {
			to := cmp.Or(e.store.Transport, c.Transport)
			if to != nil && to.Channel != Virtual && c.verifies(&e.store, c.VerifyVirtual) {
				list = append(list, VerifiedDomain{e.key, l.mem.file, e.line, to.Channel, cmp.Or(to.Host, e.key)})
			}
		}
	}
	return list
}

func domainsOf(l layer) []entry {
	if l.mem == nil {
		return nil
	}
	var list []entry
	for _, e := range l.mem.sorted() {
		if e.key != "" && e.key[0] != '.' && e.key != "*" {
			list = append(list, e)
		}
	}
	return list
}
