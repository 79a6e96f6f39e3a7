package mailq

import (
	"net/netip"
	"testing"

	"zmailer/internal/run/assert"
)

const authText = `# who may ask
watch:w:SNMP QQ:
* an old comment
joe:secret:SNMP QQ TT ETRN:[192.0.2.0]/24 [IPv6:2001:db8::]/32
joe:other:ALL:[127.0.0.1]
out:x:ALL:![192.0.2.66] [192.0.2.0]/24
root:r:ALL:[0.0.0.0]/0
nil::NONE:
bad
bad:x
bad:x:QQ
bad:x:EVERYTHING:
bad:x:QQ:192.0.2.1
bad:x:QQ:[192.0.2.1]/33
:x:QQ:
`

// M40: rights by user and address.
func TestAuthFileGivesRightsByUserAndAddress(t *testing.T) {
	f := ParseAuthFile([]byte(authText))
	assert.Same(t, f.Bad, []int{9, 10, 11, 12, 13, 14, 15}, "bad lines")
	const challenge = "220 MAILQ-V2-CHALLENGE: 1"
	tests := map[string]struct {
		user, password, from string
		want                 Rights
	}{
		"anywhere":                    {"watch", "w", "203.0.113.9", MaySNMP | MayQQ | loggedIn},
		"his network":                 {"joe", "secret", "192.0.2.200", MaySNMP | MayQQ | MayTT | MayETRN | loggedIn},
		"his network, mapped":         {"joe", "secret", "::ffff:192.0.2.200", MaySNMP | MayQQ | MayTT | MayETRN | loggedIn},
		"his network, by IPv6":        {"joe", "secret", "2001:db8::5", MaySNMP | MayQQ | MayTT | MayETRN | loggedIn},
		"another line for an address": {"joe", "other", "127.0.0.1", All},
		"the other line's password":   {"joe", "secret", "127.0.0.1", None},
		"from elsewhere":              {"joe", "secret", "198.51.100.1", None},
		"kept out":                    {"out", "x", "192.0.2.66", None},
		"his neighbour":               {"out", "x", "192.0.2.67", All},
		"all of IPv4 is not IPv6":     {"root", "r", "2001:db8::1", None},
		"all of IPv4":                 {"root", "r", "198.51.100.1", All},
		"no such user":                {"eve", "", "192.0.2.1", None},
		"no right but known":          {"nil", "", "192.0.2.1", loggedIn},
		"wrong password":              {"watch", "W", "192.0.2.1", None},
		"of a bad line":               {"bad", "x", "192.0.2.1", None},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := f.Login(tt.user, Authenticator(challenge, tt.password), challenge, netip.MustParseAddr(tt.from))
			assert.Equal(t, got, tt.want)
		})
	}
}
