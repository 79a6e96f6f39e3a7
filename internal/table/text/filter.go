package text

import (
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
)

// ParseFilter reads the address of a content filter: CHANNEL!HOST, or smtp:[HOST]:PORT and
// lmtp:unix:PATH as Postfix has it, where the transport may be one of master.cf, smtp-amavis. Without
// a host mail goes to that of each recipient.
func ParseFilter(value string) (to Route, err error) {
	transport, next, found := strings.Cut(value, ":")
	if found && !strings.Contains(transport, "!") {
		channel := ""
		switch kind, _, _ := strings.Cut(transport, "-"); kind {
		case "smtp", "relay":
			channel = "smtp"
		case "lmtp":
			channel = "lmtp"
		default:
			return to, fmt.Errorf("the transport %q has no channel; want smtp:[HOST]:PORT, lmtp:unix:PATH or CHANNEL!HOST, like smtpx!127.0.0.1:10024", transport)
		}
		next = strings.TrimPrefix(next, "inet:")
		if inner, port, ok := strings.Cut(strings.TrimPrefix(next, "["), "]"); ok && strings.HasPrefix(next, "[") {
			if channel == "smtp" {
				channel = "smtpx"
			}
			if next = inner + port; strings.Contains(inner, ":") {
				next = "[" + strings.TrimPrefix(inner, "IPv6:") + "]" + port
			}
		}
		value = channel + "!" + next
	}
	if to, err = ParseRoute(value); err != nil {
		return to, err
	}
	if slices.Contains(here, to.Channel) {
		return to, fmt.Errorf("the channel %s leads to no filter; want a host, like smtpx!127.0.0.1:10024", to.Channel)
	}
	if to.Host != "" && (strings.HasPrefix(to.Channel, "smtp") || to.Channel == "lmtp") {
		// The text may be the answer of a table or a policy service.
		if err := address.CheckNextHop(to.Host); err != nil {
			return Route{}, err
		}
	}
	return to, nil
}

// FilterRoute returns where the FILTER action of a rule about header or body sends mail: as
// ParseFilter has it, and another transport of Postfix is a channel of that name.
func FilterRoute(value string) Route {
	to, err := ParseFilter(value)
	if i := strings.IndexAny(value, "!:"); err != nil && i >= 0 {
		return Route{Channel: value[:i], Host: value[i+1:]}
	}
	return to
}

// here are the channels that lead to no other host.
var here = []string{"local", "virtual", "file", "pipe", "error", "bitbucket", "hold"}
