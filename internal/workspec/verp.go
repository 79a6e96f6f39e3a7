package workspec

import (
	"strings"

	"zmailer/internal/mail/address"
)

// For is the address that a recipient gets the message from: the sender's, or with VERP
// one that names the recipient, so that whatever comes back tells whom it is about:
// owner-list+user=host.example@our.example. The recipient's domain is written in A-labels.
// A sender without a domain, or a recipient that is no address with one, has no such form.
func (s *Sender) For(recipient string) string {
	if s.VERP == "" {
		return s.Address
	}
	from, err := address.Parse(s.Address)
	if err != nil || from.Domain == "" {
		return s.Address
	}
	to, err := address.Parse(recipient)
	if err != nil || to.Domain == "" {
		return s.Address
	}
	domain, err := to.ASCIIDomain()
	if err != nil {
		return s.Address
	}
	// A literal's brackets would need quotes, which few bring back unharmed.
	domain = strings.Trim(domain, "[]")
	from.Local += s.VERP + to.Local + "=" + domain
	return from.String()
}
