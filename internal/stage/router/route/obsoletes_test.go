package route

import (
	"strings"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
)

// M45
func TestFieldsNameWhatAMessageMakesVoid(t *testing.T) {
	long := "<" + strings.Repeat("x", maxIdent) + "@example.org>"
	many, first := "", []string(nil)
	for i := range 2 * maxObsoletes {
		id := "<" + strings.Repeat("n", i+1) + "@example.org>"
		if many += " " + id; i < maxObsoletes {
			first = append(first, id)
		}
	}
	for name, c := range map[string]struct {
		header string
		want   []string
	}{
		"none":                  {"Subject: <a@b>\n", nil},
		"Obsoletes":             {"Obsoletes: <1@example.org>\n", []string{"<1@example.org>"}},
		"Supersedes, any case":  {"SUPERSEDES: <1@example.org>\n", []string{"<1@example.org>"}},
		"both, folded, twice":   {"Obsoletes: <1@b>\n <2@b>\nSupersedes: <2@b> (that one) <3@b>\n", []string{"<1@b>", "<2@b>", "<3@b>"}},
		"no angles":             {"Obsoletes: 1@example.org\n", nil},
		"unterminated":          {"Obsoletes: <1@example.org\n", nil},
		"a blank in it":         {"Obsoletes: <1 2@example.org> <3@b>\n", []string{"<3@b>"}},
		"nested":                {"Obsoletes: <<1@b>>\n", nil},
		"empty":                 {"Obsoletes: <>\n", nil},
		"longer than an ident":  {"Obsoletes: " + long + " <3@b>\n", []string{"<3@b>"}},
		"more than are allowed": {"Obsoletes:" + many + "\n", first},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message{sender: address.Mailbox{Local: "bob", Domain: "example.org"}, header: header{fields: envelope.Fields([]byte(c.header))}}
			assert.Same(t, msg.obsoletes(), c.want)
			msg.external = true
			if got := msg.obsoletes(); got != nil {
				t.Errorf("from outside: got %q, want none", got)
			}
			msg.external, msg.sender = false, address.Mailbox{}
			if got := msg.obsoletes(); got != nil {
				t.Errorf("of the null sender: got %q, want none", got)
			}
		})
	}
}
