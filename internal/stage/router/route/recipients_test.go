package route

import (
	"bytes"
	"strings"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

func addresses(header string) []string {
	var list []string
	for _, r := range fromHeader(envelope.Fields([]byte(header))) {
		list = append(list, r.Address)
	}
	return list
}

// RFC 5322 §3.4 and §3.6.6, and what is written in practice
func TestRecipientsAreFoundInTheHeader(t *testing.T) {
	tests := map[string]struct {
		header string
		want   []string
	}{
		"To, Cc and Bcc, any case":       {"to: a@x\nCC: b@x\nbCC: c@x\n", []string{"a@x", "b@x", "c@x"}},
		"other fields":                   {"From: a@x\nReply-To: b@x\nX-To: c@x\n", nil},
		"folded, with names":             {"To: A <a@x>,\n \"B, b\" <b@x>\n", []string{"a@x", "b@x"}},
		"quoted local part":              {"To: \"a, b\"@x, \"c@d\"@x\n", []string{`"a, b"@x`, `"c@d"@x`}},
		"comments":                       {"To: a@x (me, or not), (x) b@x\n", []string{"a@x", "b@x"}},
		"a group":                        {"To: Friends: a@x, B <b@x>;, c@x\n", []string{"a@x", "b@x", "c@x"}},
		"an empty group":                 {"To: undisclosed-recipients:;\n", nil},
		"empty":                          {"To:\nCc: \n", nil},
		"bare names":                     {"To: bond, James <bond>, a@x\n", []string{"bond", "bond", "a@x"}},
		"bare names with comments":       {"To: bond (007, (licensed) \\)), a@x,,\n", []string{"bond", "a@x"}},
		"a group of bare names":          {"To: Friends: bond, \"q, r\";\n", []string{"bond", `"q, r"`}},
		"not ASCII":                      {"To: Zoë <zoë@bücher.example>\n", []string{"zoë@bücher.example"}},
		"encoded name":                   {"To: =?utf-8?q?Zo=C3=AB=2C_x?= <a@x>\n", []string{"a@x"}},
		"nothing that could be read":     {"To: @@, a@x\n", []string{"@@", "a@x"}},
		"Resent instead of the first To": {"Resent-To: a@x\nResent-Cc: b@x\nTo: c@x\n", []string{"a@x", "b@x"}},
		"the uppermost Resent block":     {"Received: x\nResent-From: q@x\nResent-To: a@x\nReceived: y\nResent-To: b@x\nTo: c@x\n", []string{"a@x"}},
		"two Resent blocks side by side": {"Resent-To: a@x\nResent-From: q@x\nResent-To: b@x\nTo: c@x\n", []string{"a@x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Same(t, addresses(tt.header), tt.want)
		})
	}
}

// Whatever the header says, there is no panic, and what comes out can be written
// into a work specification.
func FuzzRecipientsInTheHeader(f *testing.F) {
	for _, s := range []string{"a@x, b", "\"a\\\"\" <b>", "g: a, b;", "(c(d)e\\)) a", "<>", "a@x\n\tb@y", ":;,\"", "=?utf-8?q?a?= <x@y>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.Contains(value, "\n") {
			return
		}
		for _, r := range appendAddresses(nil, value) {
			m, err := address.Parse(r.Address)
			if err == nil && m.IsNull() {
				continue
			}
			shown := human.Mask(r.Address)
			var b bytes.Buffer
			w := workspec.NewWriter(&b)
			w.Preamble(&workspec.Spec{Message: "1"})
			w.Group(workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "1"},
				[]workspec.Recipient{{Channel: "error", Host: "x", Address: shown, Privilege: "1"}}, []byte("A: b\n"))
			assert.Must(t, w.Close())
			s, err := workspec.Parse(b.Bytes())
			if err != nil || s.Groups[0].Recipients[0].Address != shown {
				t.Errorf("%q: got %+v, %v", shown, s, err)
			}
		}
	})
}

// M37, RFC 3461 §5.2.7: where one becomes several the sender hears of success once.
func TestSuccessOfAnAliasIsThatItWasExpanded(t *testing.T) {
	tests := map[string]struct {
		dsn, rest string
		asked     bool
	}{
		"nothing":               {"", "", false},
		"never":                 {"NOTIFY=NEVER", "NOTIFY=NEVER", false},
		"failure":               {"NOTIFY=FAILURE ORCPT=rfc822;SUCCESS@a", "NOTIFY=FAILURE ORCPT=rfc822;SUCCESS@a", false},
		"success alone":         {"NOTIFY=SUCCESS ORCPT=rfc822;x@a", "NOTIFY=NEVER ORCPT=rfc822;x@a", true},
		"all, lower case":       {"notify=failure,success,delay", "notify=failure,delay", true},
		"ORCPT before":          {"ORCPT=rfc822;x@a NOTIFY=DELAY,SUCCESS", "ORCPT=rfc822;x@a NOTIFY=DELAY", true},
		"twice":                 {"NOTIFY=SUCCESS,SUCCESS", "NOTIFY=NEVER", true},
		"a value that is empty": {"NOTIFY= X=SUCCESS", "NOTIFY= X=SUCCESS", false},
	}
	for name, tt := range tests {
		rest, asked := withoutSuccess(tt.dsn)
		if asked != tt.asked || asked && rest != tt.rest {
			t.Errorf("%s: got %q %v, want %q %v", name, rest, asked, tt.rest, tt.asked)
		}
	}
}

// M37, RFC 6533 §3: the address that the sender wrote is kept in any script.
func TestOriginalRecipientOfAnAliasIsKept(t *testing.T) {
	via := &rules.Target{Via: []string{"x"}}
	for addr, want := range map[string]string{
		"a+b@x.example":       "ORCPT=rfc822;a+2Bb@x.example",
		"grüße+a=b@x.example": `ORCPT=utf-8;grüße\x{2B}a\x{3D}b@x.example`,
		`"ü \\ "@bücher.test`: `ORCPT=utf-8;"ü\x{20}\x{5C}\x{5C}\x{20}"@bücher.test`,
	} {
		m := assert.Get(address.Parse(addr))(t)
		assert.Equal(t, notary("", via, m), want, addr)
		assert.Equal(t, notary("NOTIFY=NEVER", via, m), "NOTIFY=NEVER "+want, addr)
	}
}
