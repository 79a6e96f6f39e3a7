package smtpserver

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/policy"
)

// What --test-access says is what a client would get, with the rule.
func TestTestAccessNamesTheRuleThatDecides(t *testing.T) {
	dir := files(t, map[string]string{
		"access":     "reject from=.spam.example : \"554 no\"\nfreeze helo=odd.example cause=odd\nreject dkim=fail\n",
		"localnames": "example.org\n",
		"senders":    "bob@example.org bob\n",
	})
	c := Config{
		Hostname: "mx.example.org",
		Access: policy.Config{
			Dir: dir, LocalNamesFile: filepath.Join(dir, "localnames"), SenderLogin: []string{"senders"},
			RelayNets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		},
	}
	for question, want := range map[string][]string{
		"client=198.51.100.7 from=a@spam.example to=b@example.org":           {"to       <b@example.org>, local domain", `rule     access:1: reject from=.spam.example : "554 no"`, "verdict  reject: 554 5.7.1 no"},
		"client=198.51.100.7 from=a@example.net to=b@example.edu dkim=pass":  {"not a local domain", "rule     default: RELAYNETS", "verdict  reject: 550 5.7.1 "},
		"client=192.0.2.1 from=a@example.net to=b@example.edu dkim=pass":     {"in RELAYNETS", "verdict  accept"},
		"client=192.0.2.1 from=<> to=<b@example.org>":                        {"verdict  accept so far", "content: 3\n"},
		"client=198.51.100.7 from=a@example.net to=b@example.org dkim=fail":  {"rule     access:3", "verdict  reject: 550 5.7.1"},
		"client=unix helo=odd.example from=a@b to=b@example.org role=lmtp":   {"rule     access:2", "verdict  freeze: accepted, and held as freezer/...odd"},
		"client=::1 user=eve from=bob@example.org to=b@example.org tls=yes":  {"authenticated as eve", "rule     SENDERLOGIN", "verdict  reject: 553 5.7.1"},
		"client=::1 user=bob from=bob@example.org to=b@example.org spf=none": {"authenticated as bob", "verdict  accept"},
	} {
		var out strings.Builder
		if err := TestAccess(c, strings.Fields(question), &out); err != nil {
			t.Errorf("%s: %v", question, err)
		}
		for _, w := range want {
			assert.Contains(t, out.String(), w)
		}
	}
	for _, question := range []string{"", "from=a@b", "to=", "to=a@b colour=red", "to=a@b client=here", "to=a@b tls=perhaps", "to=a@b role=x", "to=a@b size=big", "to"} {
		if err := TestAccess(c, strings.Fields(question), &strings.Builder{}); !errors.Is(err, ErrQuestion) {
			t.Errorf("%q: got %v, want ErrQuestion", question, err)
		}
	}
}
