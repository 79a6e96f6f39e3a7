package router

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// groupsOf are the headers of a specification, with the addresses that get each.
func (m *routed) groupsOf() map[string]string {
	out := map[string]string{}
	for _, g := range m.spec.Groups {
		header := string(m.file[g.HeaderOffset:g.HeaderEnd])
		for _, r := range g.Recipients {
			out[r.Channel+" "+r.Address] = header
		}
	}
	return out
}

// delivered are the values of Delivered-To in a header, from the top.
func deliveredIn(header string) []string {
	var list []string
	for line := range strings.Lines(header) {
		if value, ok := strings.CutPrefix(line, "Delivered-To: "); ok {
			list = append(list, strings.TrimSpace(value))
		}
	}
	return list
}

// Atk7
func TestAtk7ForwardedMailNamesTheAddressThatItWasFor(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{
		"aliases":     "sales: a@far.example, b@other.example\nteam: bond\nchain: sales\nprog: \"|/bin/prog\"\n",
		"fqdnaliases": "info@example.org: c@far.example\n",
	})
	homes := t.TempDir()
	if err := os.WriteFile(filepath.Join(homes, "moneypenny"), []byte("\\moneypenny, penny@far.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(o.conf, "lists"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.table("lists/news", "#!verp\nm1@far.example\nm2@far.example\n")
	o.r = o.router(func(c *Config) { c.Rules.Forward = homes + "/%u" })
	for name, tt := range map[string]struct {
		to   []string
		want map[string]string // Delivered-To by channel and address
	}{
		"an alias":                {[]string{"Sales@Example.ORG"}, map[string]string{"smtp a@far.example": "sales@example.org", "smtp b@other.example": "sales@example.org"}},
		"an alias of an alias":    {[]string{"chain@example.org"}, map[string]string{"smtp a@far.example": "chain@example.org", "smtp b@other.example": "chain@example.org"}},
		"a whole address":         {[]string{"info@example.org"}, map[string]string{"smtp c@far.example": "info@example.org"}},
		"an alias of a mailbox":   {[]string{"team@example.org"}, map[string]string{"local bond@mx.example.org": ""}},
		"a .forward":              {[]string{"moneypenny@example.org"}, map[string]string{"local moneypenny@mx.example.org": "", "smtp penny@far.example": "moneypenny@example.org"}},
		"mail for elsewhere":      {[]string{"x@far.example"}, map[string]string{"smtp x@far.example": ""}},
		"a list":                  {[]string{"news@example.org"}, map[string]string{"smtp m1@far.example": "", "smtp m2@far.example": ""}},
		"several":                 {[]string{"x@far.example", "sales@example.org", "info@example.org"}, map[string]string{"smtp x@far.example": "", "smtp a@far.example": "sales@example.org", "smtp b@other.example": "sales@example.org", "smtp c@far.example": "info@example.org"}},
		"one place of two":        {[]string{"sales@example.org", "chain@example.org"}, map[string]string{"smtp a@far.example": "sales@example.org", "smtp b@other.example": "sales@example.org"}},
		"a name without a domain": {[]string{"sales"}, map[string]string{"smtp a@far.example": "sales@mx.example.org", "smtp b@other.example": "sales@mx.example.org"}},
	} {
		t.Run(name, func(t *testing.T) {
			header := "From: q@example.net\nX-Odd:  two  blanks\t\nSubject: x\n"
			text := "external\nfrom <q@example.net>\n"
			for _, to := range tt.to {
				text += "to <" + to + ">\n"
			}
			m := o.one(text + "env-end\n" + header + "\nbody\n")
			got := m.groupsOf()
			if len(got) != len(tt.want) || len(m.recipients()) != len(tt.want) {
				t.Errorf("got %q, want %d", m.recipients(), len(tt.want))
			}
			for to, want := range tt.want {
				list := deliveredIn(got[to])
				if want == "" && len(list) != 0 || want != "" && !slices.Equal(list, []string{want}) {
					t.Errorf("%s: got Delivered-To %q, want %q", to, list, want)
				}
				if !strings.HasPrefix(got[to], "Received: ") || !strings.HasSuffix(got[to], "\n"+header) {
					t.Errorf("%s: the message's own header was changed:\n%s", to, got[to])
				}
			}
		})
	}
}

// Atk7: mail that has come back is failed once, whatever it would be forwarded to, and
// nothing of it goes on.
func TestAtk7ForwardedMailThatComesBackFails(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"aliases": "sales: a@far.example, b@other.example\nteam: bond\n"})
	message := func(delivered, to string) string {
		return "external\nfrom <q@example.net>\nto <" + to + ">\nenv-end\n" + delivered + "From: q@example.net\nSubject: x\n\nbody\n"
	}
	for name, tt := range map[string]struct {
		delivered, to string
		want          []string // channels
	}{
		"the same address":      {"Delivered-To: sales@example.org\n", "sales@example.org", []string{"error"}},
		"in other letters":      {"Delivered-To:  SALES@example.ORG \n", "Sales@example.org", []string{"error"}},
		"further down":          {"Received: by x\nDelivered-To: c@far.example\nDelivered-To: sales@example.org\n", "sales@example.org", []string{"error"}},
		"another address":       {"Delivered-To: info@example.org\n", "sales@example.org", []string{"smtp", "smtp"}},
		"not forwarded":         {"Delivered-To: team@example.org\n", "team@example.org", []string{"local"}},
		"nothing to do with us": {"Delivered-To: x@far.example\n", "x@far.example", []string{"smtp"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := o.one(message(tt.delivered, tt.to))
			var got []string
			for _, g := range m.spec.Groups {
				for _, r := range g.Recipients {
					got = append(got, r.Channel)
					if r.Channel == "error" && (!strings.HasPrefix(r.Host, "loop:") || !strings.EqualFold(r.Address, tt.to)) {
						t.Errorf("got error %s %s", r.Host, r.Address)
					}
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got channels %q, want %q", got, tt.want)
			}
		})
	}
}

// Atk7: a message to very many aliases does not get a header for each.
func TestAtk7HeadersOfForwardedMailAreBounded(t *testing.T) {
	t.Parallel()
	var aliases, message strings.Builder
	message.WriteString("external\nfrom <q@example.net>\n")
	const n = 3000
	for i := range n {
		fmt.Fprintf(&aliases, "a%d: x%d@far.example\n", i, i)
		fmt.Fprintf(&message, "to <a%d@example.org>\n", i)
	}
	message.WriteString("env-end\nX-Large: " + strings.Repeat("x", 60_000) + "\n\nx\n")
	o := newOffice(t, map[string]string{"aliases": aliases.String()})
	m := o.one(message.String())
	if got := len(m.recipients()); got != n {
		t.Errorf("%d recipients, want %d", got, n)
	}
	if got := len(m.file); got > mostForwardedB+2<<20 {
		t.Errorf("the specification has %d bytes", got)
	}
}

// Atk7: an alias of very many addresses, here and elsewhere by turns, does not get a header
// for each change between them.
func TestAtk7HeadersOfALargeAliasAreBounded(t *testing.T) {
	t.Parallel()
	var members strings.Builder
	const n = 30_000
	for i := range n / 2 {
		fmt.Fprintf(&members, "bond+%d\nx%d@far.example\n", i, i)
	}
	o := newOffice(t, nil)
	o.table("all", members.String())
	o.table("aliases", "all: \":include:"+filepath.Join(o.conf, "all")+"\"\n")
	o.r = o.router()
	m := o.one("external\nfrom <q@example.net>\nto <all@example.org>\nenv-end\nX-Large: " + strings.Repeat("x", 10_000) + "\n\nx\n")
	if got := len(m.recipients()); got != n {
		t.Fatalf("%d recipients, want %d: %.300q", got, n, m.recipients())
	}
	if got := len(m.file); got > mostForwardedB+200*n {
		t.Errorf("the specification has %d bytes", got)
	}
}
