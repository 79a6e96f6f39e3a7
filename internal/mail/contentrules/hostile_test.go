package contentrules

import (
	"regexp"
	"testing"

	"zmailer/internal/run/hostile"
)

// No text behind filter and FILTER is a next hop but what can be a host, an address or a socket.
func TestNoTextIsAFilterButAHost(t *testing.T) {
	hop := regexp.MustCompile(`^(inet:)?\[?[\pL\pN._:\x{200b}\x{feff}-]*\]?(:[0-9]+)?$|^unix:/[^\s\x00]*$`)
	accepted := 0
	for _, s := range append(hostile.Texts(t), "a.example", "127.0.0.1:10024", "$1", "${1}") {
		for _, value := range []string{"smtp:" + s, "smtp-amavis:[" + s + "]:10024", "smtp:inet:" + s, "lmtp:unix:" + s, "smtpx!" + s, "relay:" + s} {
			if checkArgument(filter, value) != nil {
				continue
			}
			accepted++
			if _, host := Route(value); !hop.MatchString(host) {
				t.Errorf("%q is accepted", value)
			}
		}
	}
	if accepted < 50 {
		t.Errorf("%d accepted", accepted)
	}
}
