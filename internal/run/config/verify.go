package config

import "fmt"

// AddressVerify is the setting ADDRESSVERIFY: for recipients of which domains the next hop is
// asked.
type AddressVerify struct {
	On      bool // at all: for domains with verify=yes
	Relay   bool // for relay domains, but those with verify=no
	Virtual bool // for virtual mailbox domains that a next hop has, but those with verify=no
}

// AddressVerify reads ADDRESSVERIFY.
func (c *Config) AddressVerify() (AddressVerify, error) {
	a, err := parseAddressVerify(c.List("ADDRESSVERIFY"))
	if err != nil {
		return AddressVerify{}, c.Invalid("ADDRESSVERIFY", "cannot be used", err)
	}
	return a, nil
}

func parseAddressVerify(words []string) (a AddressVerify, err error) {
	for _, w := range words {
		switch {
		case w == "no" && len(words) == 1:
			return AddressVerify{}, nil
		case w == "some":
		case w == "relay":
			a.Relay = true
		case w == "virtual":
			a.Virtual = true
		default:
			return a, fmt.Errorf("%s is none of relay, virtual and some; no alone for none", w)
		}
		a.On = true
	}
	return a, nil
}
