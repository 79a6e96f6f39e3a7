package dane

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

func sha2(b []byte) []byte { s := sha256.Sum256(b); return s[:] }
func sha5(b []byte) []byte { s := sha512.Sum512(b); return s[:] }

// RFC 7672 §3: which records let which chain pass.
func TestRecordsAndChains(t *testing.T) {
	ca, other := peer.NewCA(t, "ca"), peer.NewCA(t, "other")
	issued := ca.Issue("mx.test")
	leaf := issued.Leaf
	chain := []*x509.Certificate{leaf, ca.Cert}
	old := ca.IssueUntil(time.Now().Add(-time.Hour), "mx.test")
	oldChain := []*x509.Certificate{old.Leaf, ca.Cert}
	cases := map[string]struct {
		records []Record
		chain   []*x509.Certificate
		name    string
		want    string // part of the error
	}{
		"3 1 1":                          {[]Record{{3, 1, 1, sha2(leaf.RawSubjectPublicKeyInfo)}}, chain, "mx.test", ""},
		"3 1 2":                          {[]Record{{3, 1, 2, sha5(leaf.RawSubjectPublicKeyInfo)}}, chain, "mx.test", ""},
		"3 0 1":                          {[]Record{{3, 0, 1, sha2(leaf.Raw)}}, chain, "mx.test", ""},
		"3 0 0":                          {[]Record{{3, 0, 0, leaf.Raw}}, chain, "mx.test", ""},
		"3 1 0":                          {[]Record{{3, 1, 0, leaf.RawSubjectPublicKeyInfo}}, chain, "mx.test", ""},
		"3 1 1 needs no name":            {[]Record{{3, 1, 1, sha2(leaf.RawSubjectPublicKeyInfo)}}, chain, "else.test", ""},
		"3 1 1 needs no date":            {[]Record{{3, 1, 1, sha2(old.Leaf.RawSubjectPublicKeyInfo)}}, oldChain, "mx.test", ""},
		"3 1 1 of another key":           {[]Record{{3, 1, 1, sha2(other.Cert.RawSubjectPublicKeyInfo)}}, chain, "mx.test", "no TLSA record fits"},
		"3 1 1 of the authority":         {[]Record{{3, 1, 1, sha2(ca.Cert.RawSubjectPublicKeyInfo)}}, chain, "mx.test", "no TLSA record fits"},
		"2 0 1":                          {[]Record{{2, 0, 1, sha2(ca.Cert.Raw)}}, chain, "mx.test", ""},
		"2 1 1":                          {[]Record{{2, 1, 1, sha2(ca.Cert.RawSubjectPublicKeyInfo)}}, chain, "mx.test", ""},
		"2 0 1 wants the name":           {[]Record{{2, 0, 1, sha2(ca.Cert.Raw)}}, chain, "else.test", "the certificate is for mx.test, not for else.test"},
		"2 0 1 wants the date":           {[]Record{{2, 0, 1, sha2(ca.Cert.Raw)}}, oldChain, "mx.test", "expired"},
		"2 0 1 wants the authority":      {[]Record{{2, 0, 1, sha2(ca.Cert.Raw)}}, chain[:1], "mx.test", "no TLSA record fits"},
		"2 0 0 has the authority itself": {[]Record{{2, 0, 0, ca.Cert.Raw}}, chain[:1], "mx.test", ""},
		"2 0 1 of another authority":     {[]Record{{2, 0, 1, sha2(other.Cert.Raw)}}, []*x509.Certificate{leaf, ca.Cert, other.Cert}, "mx.test", "unknown authority"},
		"one of several":                 {[]Record{{3, 1, 1, sha2([]byte("old"))}, {3, 1, 1, sha2(leaf.RawSubjectPublicKeyInfo)}}, chain, "mx.test", ""},
		"nothing shown":                  {[]Record{{3, 1, 1, sha2(leaf.RawSubjectPublicKeyInfo)}}, nil, "mx.test", "no certificate"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			usable := Usable(c.records)
			if len(usable) != len(c.records) {
				t.Fatalf("got %d usable records of %d", len(usable), len(c.records))
			}
			err := Verify(usable, c.chain, []string{c.name}, time.Now())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// RFC 7672 §3.1.3, RFC 7671 §9
func TestUsableRecords(t *testing.T) {
	cases := map[string]struct {
		records []Record
		want    int
	}{
		"usages 0 and 1 are for the web":      {[]Record{{0, 0, 1, make([]byte, 32)}, {1, 1, 1, make([]byte, 32)}}, 0},
		"an unknown usage":                    {[]Record{{4, 0, 1, make([]byte, 32)}}, 0},
		"an unknown selector":                 {[]Record{{3, 2, 1, make([]byte, 32)}}, 0},
		"an unknown matching type":            {[]Record{{3, 1, 3, make([]byte, 32)}}, 0},
		"a digest of the wrong length":        {[]Record{{3, 1, 1, make([]byte, 31)}, {3, 1, 2, make([]byte, 32)}}, 0},
		"a certificate that is none":          {[]Record{{3, 0, 0, []byte("x")}, {2, 1, 0, nil}}, 0},
		"SHA-512 before SHA-256":              {[]Record{{3, 1, 1, make([]byte, 32)}, {3, 1, 2, make([]byte, 64)}}, 1},
		"SHA-512 of the other selector alone": {[]Record{{3, 1, 1, make([]byte, 32)}, {3, 0, 2, make([]byte, 64)}}, 2},
	}
	for name, c := range cases {
		assert.Equal(t, len(Usable(c.records)), c.want, name)
	}
}
