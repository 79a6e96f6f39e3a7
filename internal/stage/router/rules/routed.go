package rules

import (
	"strings"

	"zmailer/internal/mail/address"
)

// Routed returns the target of an address for which somebody else than the tables knows the
// route; host "" is the address's domain. The channel is one that acts as nobody.
func (t *Tables) Routed(m address.Mailbox, channel, host string) Target {
	if m.Domain == "" {
		m.Domain = t.hostname
	}
	d, err := m.ASCIIDomain()
	if err != nil {
		return Target{Channel: Error, Host: ErrBadAddress, User: m.String(), Privilege: Nobody}
	}
	if host == "" {
		host = d
		if v6, ok := strings.CutPrefix(d, "[ipv6:"); ok {
			host = "[" + v6
		}
	}
	return Target{Channel: channel, Host: host, User: m.String(), Privilege: Nobody}
}
