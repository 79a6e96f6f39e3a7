package smtpserver

import (
	"context"
	"net/netip"

	"zmailer/internal/mail/address"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// relay decides who may send where if no rule does: clients in our networks anywhere,
// others to local domains only.
type relay struct {
	nets []netip.Prefix
	host string // HOSTNAME as ASCIIDomain gives it; is ours without standing in a table
	// names are the sources of LOCALNAMES, asked in their order.
	names []nameSource
}

// nameSource tells domains that are ours, as ASCIIDomain gives them. An error means that
// nobody knows now.
type nameSource interface {
	has(ctx context.Context, domain string) (bool, error)
}

func newRelay(nets []netip.Prefix, host string) *relay {
	r := &relay{nets: nets}
	if ascii, err := (address.Mailbox{Local: "x", Domain: host}).ASCIIDomain(); err == nil {
		r.host = ascii
	}
	return r
}

// ask has the sources of a setting asked, or without any the file localnames.
func (r *relay) ask(sources []string, file string, o table.Options) error {
	if len(sources) == 0 {
		names, err := openNames(file, o.Log)
		r.names = []nameSource{names}
		return err
	}
	var list []nameSource
	for _, name := range sources {
		s, err := table.Parse(name, o.Dir)
		if err != nil {
			return err
		}
		if s.Scheme == "file" {
			names, err := openNames(s.Rest, o.Log)
			if err != nil {
				return err
			}
			list = append(list, names)
			continue
		}
		o.Name = string(text.LocalNames)
		t, err := table.Open(name, o)
		if err != nil {
			return err
		}
		list = append(list, nameTable{t})
	}
	r.names = list
	return nil
}

// close ends the connections and programs of the sources.
func (r *relay) close() error {
	for _, n := range r.names {
		if t, ok := n.(nameTable); ok {
			if err := t.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameTable is a source that is asked.
type nameTable struct{ table.Table }

func (t nameTable) has(ctx context.Context, domain string) (bool, error) {
	_, ok, err := t.Lookup(ctx, domain)
	return ok, err
}

// trusts tells a client that may send anywhere.
func (r *relay) trusts(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	for _, n := range r.nets {
		if n.Contains(client) {
			return true
		}
	}
	return false
}

// isLocal tells a recipient whose domain is ours. An address without a domain is.
func (r *relay) isLocal(ctx context.Context, m address.Mailbox) (bool, error) {
	if m.Domain == "" {
		return true, nil
	}
	domain, err := m.ASCIIDomain()
	if err != nil {
		return false, nil
	}
	if domain == r.host {
		return true, nil
	}
	for _, n := range r.names {
		if ok, err := n.has(ctx, domain); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
