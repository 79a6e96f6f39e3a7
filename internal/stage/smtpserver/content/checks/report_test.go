package checks

import (
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/authres"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
)

func TestResultsAreOneField(t *testing.T) {
	all := Config{SPF: true, DKIM: true, DMARC: true, Host: "mx.example.org"}
	for name, tt := range map[string]struct {
		cfg  Config
		r    Results
		want string
	}{
		"all": {all, Results{
			SPF:   SPF{Value: Pass, From: "a@a.example", Domain: "a.example"},
			DKIM:  []Signature{{Pass, "a.example", "@a.example"}, {Fail, "b.example", "x@b.example"}},
			DMARC: DMARC{Value: Pass, Domain: "a.example", Policy: "reject"},
		}, "spf=pass smtp.mailfrom=a@a.example;\n\tdkim=pass header.d=a.example header.i=@a.example;\n\tdkim=fail header.d=b.example header.i=x@b.example;\n\tdmarc=pass header.from=a.example policy.dmarc=reject"},
		"nothing to be found": {all, Results{SPF: SPF{Value: None, Helo: "h"}, DMARC: DMARC{Value: None, Domain: "a.example"}},
			"spf=none smtp.helo=h;\n\tdkim=none;\n\tdmarc=none header.from=a.example"},
		"one check": {Config{SPF: true, Host: "mx.example.org"}, Results{SPF: SPF{Value: SoftFail, From: "ü@bücher.example"}},
			"spf=softfail smtp.mailfrom=ü@bücher.example"},
		"hostile": {Config{SPF: true, DKIM: true, Host: "mx.example.org"}, Results{
			SPF:  SPF{Value: Fail, From: `"a; dkim=pass (x) "@b.example`, Helo: ""},
			DKIM: []Signature{{PermError, "x\r\ny;dkim=pass", "\"\\\x00 spf=pass"}},
		}, "spf=fail smtp.mailfrom=\"?a??dkim=pass??x???@b.example\";\n\tdkim=permerror header.d=\"x??y?dkim=pass\" header.i=\"????spf=pass\""},
	} {
		t.Run(name, func(t *testing.T) {
			got := string(New(tt.cfg).Field(&tt.r))
			assert.Equal(t, got, "Authentication-Results: mx.example.org;\n\t"+tt.want+"\n")
		})
	}
}

// RFC 8601 §5: results that a sender forges in our name are removed, those of others stay.
func TestForgedResultsAreKnown(t *testing.T) {
	c := New(Config{SPF: true, Host: "mx.example.org"})
	for field, want := range map[string]bool{
		"Authentication-Results: mx.example.org; spf=pass\n":                  true,
		"authentication-results: MX.Example.ORG; spf=pass\n":                  true,
		"Authentication-Results : mx.example.org 1; spf=pass\n":               true,
		"Authentication-Results:mx.example.org; none\n":                       true,
		"Authentication-Results: mx.example.org.; none\n":                     true,
		"Authentication-Results: \"mx.example.org\"; none\n":                  true,
		"Authentication-Results: \"mx\\.example.org\"; none\n":                true,
		"Authentication-Results: (a (b) \\) ) mx.example.org(c); none\n":      true,
		"Authentication-Results:\n\tmx.example.org;\n\tspf=pass\n":            true,
		"Authentication-Results: mx.example.org\n":                            true,
		"Authentication-Results: (no end mx.example.org; spf=pass\n":          true,
		"Authentication-Results: \"no end\n":                                  true,
		"Authentication-Results:\n":                                           true,
		"Subject: x\rAuthentication-Results: mx.example.org; spf=pass\n":      true,
		"Authentication-Results: other.example; spf=pass\n":                   false,
		"Authentication-Results: mx.example.org.evil.example; spf=pass\n":     false,
		"X-Authentication-Results: mx.example.org; spf=pass\n":                false,
		"Subject: Authentication-Results: mx.example.org; spf=pass\n":         false,
		"ARC-Authentication-Results: i=1; mx.example.org; spf=pass\n":         false,
		"Authentication-Results: other.example (mx.example.org;); spf=pass\n": false,
	} {
		f := envelope.Fields([]byte(field))
		if got := c.Forged(f[0]); got != want || len(f) != 1 {
			t.Errorf("%q: got %v", field, got)
		}
	}
}

// Whatever senders choose, the field is one, of ours, with as many results as there
// were checks, and none that was not found.
func FuzzField(f *testing.F) {
	f.Add("a@b.example", "helo.example", "d.example", "@d.example", "from.example")
	f.Add("\"; dkim=pass\r\n x", "(", "d\x00;", "\\\"", "é=\u2028")
	f.Fuzz(func(t *testing.T, from, helo, domain, identifier, author string) {
		c := New(Config{SPF: true, DKIM: true, DMARC: true, Host: "mx.example.org"})
		got := c.Field(&Results{SPF: SPF{Value: Fail, From: from, Helo: helo},
			DKIM: []Signature{{Fail, domain, identifier}}, DMARC: DMARC{Value: Fail, Domain: author}})
		fields := envelope.Fields(got)
		if len(fields) != 1 || !c.Forged(fields[0]) || !strings.HasSuffix(string(got), "\n") {
			t.Fatalf("got %q", got)
		}
		id, results, err := authres.Parse(fields[0].Value())
		if err != nil || id != "mx.example.org" || len(results) != 3 {
			t.Fatalf("%q reads as %q, %d results, %v", got, id, len(results), err)
		}
		if n := strings.Count(string(got), "=pass"); n != strings.Count(from+helo+domain+identifier+author, "=pass") {
			return
		}
		for _, r := range results {
			switch r := r.(type) {
			case *authres.SPFResult:
				assert.Equal(t, r.Value, authres.ResultFail)
			case *authres.DKIMResult:
				assert.Equal(t, r.Value, authres.ResultFail)
			case *authres.DMARCResult:
				assert.Equal(t, r.Value, authres.ResultFail)
			}
		}
	})
}

// Any text there is read to its end or counts as forged.
func FuzzForged(f *testing.F) {
	f.Add("(a) \"mx\\.example.org\"; spf=pass")
	f.Add("((((")
	f.Fuzz(func(t *testing.T, v string) {
		c := New(Config{SPF: true, Host: "mx.example.org"})
		field := envelope.Field{Name: fieldName, Raw: []byte(fieldName + ":" + v)}
		if id, _, err := authres.Parse(strings.ReplaceAll(v, "\r", "")); err == nil && strings.EqualFold(id, "mx.example.org") && !strings.ContainsAny(v, "\r") && !c.Forged(field) {
			t.Errorf("%q passes for ours", v)
		}
	})
}
