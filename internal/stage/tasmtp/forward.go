package tasmtp

import (
	"strconv"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/agent"
	"zmailer/internal/table/text"
	"zmailer/internal/wire/smtpclient"
)

// contentFilter returns CONTENTFILTER as a channel and host; the router reports what is wrong with it.
func contentFilter(s *config.Reader) text.Route {
	to, err := text.ParseFilter(s.String("CONTENTFILTER", ""))
	if err != nil {
		return text.Route{}
	}
	return to
}

// forward returns where a message comes from, if its server is the content filter; nil: other hosts
// do not learn that.
func (r *Relay) forward(d *agent.Delivery, l *link) (*smtpclient.Forward, error) {
	m, err := readEnvelope(d)
	if m == nil || err != nil {
		return nil, err
	}
	to := text.Route{Channel: l.key.channel, Host: l.key.host}
	if to != r.filter && m.Filter != to.Channel+"!"+to.Host {
		return nil, nil
	}
	f := &smtpclient.Forward{Ident: d.ID().String(), Proto: m.With, Source: "REMOTE"}
	if m.RcvdFrom == "" {
		f.Source = "LOCAL"
		return f, nil
	}
	o := m.Origin()
	f.Name = o.Name
	f.Helo, _, _ = strings.Cut(m.RcvdFrom, " (")
	if client, ok := envelope.ClientAddress(o.Client); ok {
		f.Addr = client.Addr().String()
		if client.Addr().Is6() {
			f.Addr = "IPV6:" + f.Addr
		}
		if client.Port() != 0 {
			f.Port = strconv.Itoa(int(client.Port()))
		}
	}
	return f, nil
}
