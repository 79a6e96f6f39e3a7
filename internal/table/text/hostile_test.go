package text

import (
	"regexp"
	"testing"

	"zmailer/internal/run/hostile"
)

// No text is a next hop of a filter but what can be a host, an address or a socket: CONTENTFILTER, and
// FILTER of access, header-rules and policy services.
func TestNoTextIsAFilterButAHost(t *testing.T) {
	hop := regexp.MustCompile(`^\[?[\pL\pN._:\x{200b}\x{feff}-]*\]?(:[0-9]+)?$|^unix:/[^\s\x00]*$`)
	accepted := 0
	for _, s := range append(hostile.Texts(t), "a.example", "127.0.0.1:10024", "/run/lmtp", "a.example:0", "a.example:99999", "a.example:smtp", "[a", "a]", "a..example", "-a.example", "a,b", "a!b") {
		for _, value := range []string{"smtp:" + s, "smtp-amavis:[" + s + "]:10024", "smtp:inet:" + s, "lmtp:unix:" + s, "smtpx!" + s, "smtpx![" + s + "]", "lmtp!unix:" + s, "smtp:a.example:" + s, s} {
			to, err := ParseFilter(value)
			if err != nil {
				continue
			}
			accepted++
			if value != s && !hop.MatchString(to.Host) || !isChannel(to.Channel) {
				t.Errorf("%q is %s!%s", value, to.Channel, to.Host)
			}
		}
	}
	if accepted < 50 {
		t.Errorf("%d accepted", accepted)
	}
}
