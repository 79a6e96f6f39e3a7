package tlspolicy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
)

func TestLineOfADestination(t *testing.T) {
	const file = `# comment
example.com             encrypt
Example.org:587         verify
[smtp.example.net]:465  verify implicit
[192.0.2.1]             none
[IPv6:2001:db8::1]      may
.example.com            dane
bücher.example          dane-only
.example.com:587        encrypt
.b.example.com:26       verify
*                       sts
`
	table, err := Parse("tls", []byte(file))
	assert.Must(t, err)
	cases := map[string]struct {
		name string
		port int
		want string
	}{
		"its own":                  {"example.com", 25, "encrypt, tls:2"},
		"below a domain":           {"a.b.example.com", 25, "dane, tls:7"},
		"with the port":            {"example.org", 587, "verify, tls:3"},
		"another port":             {"example.org", 25, "none"},
		"in brackets, with port":   {"smtp.example.net", 465, "verify implicit, tls:4"},
		"an address":               {"192.0.2.1", 25, "none, tls:5"},
		"an IPv6 address":          {"2001:db8::1", 25, "may, tls:6"},
		"an address is no domain":  {"10.0.2.1", 25, "none"},
		"in A-labels":              {"xn--bcher-kva.example", 25, "dane-only, tls:8"},
		"below a domain, its port": {"a.example.com", 587, "encrypt, tls:9"},
		"the nearest domain first": {"a.b.example.com", 26, "verify, tls:10"},
		"its own has no port":      {"example.com", 587, "encrypt, tls:2"},
		"no line":                  {"example.edu", 25, "none"},
		"the end of a name alone":  {"badexample.com", 25, "none"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := "none"
			if p, ok := table.Find(c.name, c.port); ok {
				got = p.Text + ", " + p.Where
			}
			assert.Equal(t, got, c.want)
		})
	}
	if p, ok := table.Default(); !ok || p.Level != STS {
		t.Errorf("got %+v for all others", p)
	}
}

func TestLinesThatCannotBe(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	assert.Must(t, os.WriteFile(empty, nil, 0o600))
	cases := map[string]struct{ text, want string }{
		"no level":                     {"a.test", "tls:1: a.test: there is no level"},
		"an unknown level":             {"a.test secure", "secure is no level"},
		"an unknown word":              {"a.test verify name=x", "name=x: it is none of"},
		"match= without verify":        {"a.test encrypt match=b", "match= goes with verify"},
		"no name":                      {"a.test verify match=a,", "match= names no host"},
		"ca= of nothing":               {"a.test verify ca=/does/not/exist", "no such file"},
		"ca= without a certificate":    {"a.test verify ca=" + empty, "no certificate in PEM"},
		"a short fingerprint":          {"a.test fingerprint=00:11", "no SHA-256"},
		"two levels":                   {"a.test encrypt fingerprint=00", "is a level of its own"},
		"implicit where it may not be": {"a.test may implicit", "may may do without"},
		"twice":                        {"a.test may\nA.test. none", "tls:2: A.test. has a policy already: tls:1"},
		"no host":                      {"a.test:0 may", "no port"},
		"half a bracket":               {"[a.test may", "[ without ]"},
		"a pattern":                    {"*.a.test may", "it must be a host"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("tls", []byte(c.text))
			var bad *config.Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// ca= is beside the file tls, wherever the program runs; a clause has no file.
func TestAuthoritiesAreNamedFromTheFile(t *testing.T) {
	pem := peer.NewCA(t, "ca").File()
	dir, name := filepath.Split(pem)
	if _, err := Parse(filepath.Join(dir, "tls"), []byte("a.test verify ca="+name)); err != nil {
		t.Error(err)
	}
	if _, err := ParsePolicy("verify ca="+pem, ""); err != nil {
		t.Error(err)
	}
	if _, err := ParsePolicy("verify ca="+name, ""); err == nil || !strings.Contains(err.Error(), "it must be a path from the root") {
		t.Errorf("got %v", err)
	}
}

func TestNamesOfACertificate(t *testing.T) {
	cert := peer.NewCA(t, "ca").Issue("mx.test", "*.wild.test", "192.0.2.1").Leaf
	for name, want := range map[string]bool{
		"mx.test": true, "MX.test": true, "a.mx.test": false, ".test": true, ".mx.test": false, ".wild.test": true,
		"a.wild.test": true, "a.b.wild.test": false, "wild.test": false, "192.0.2.1": true, "192.0.2.2": false, "": false,
	} {
		assert.Equal(t, HasName(cert, name), want, name)
	}
	if err := VerifyChain(nil, nil, nil, time.Now()); err == nil {
		t.Error("a server without a certificate passes")
	}
}

// FuzzParse: no file ends the program, and what was read can be found.
func FuzzParse(f *testing.F) {
	f.Add("example.com verify match=.a,b ca=\n* sts\n")
	f.Add("[::1]:25 fingerprint=" + strings.Repeat("0", 64) + "\n")
	f.Add("\xff.test may\n.test none")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(strings.ToLower(text), "ca=") {
			return // other files
		}
		table, err := Parse("tls", []byte(text))
		if err != nil {
			return
		}
		for key := range table.entries {
			name, _, _ := strings.Cut(key, " ")
			table.Find("x"+name, 25)
		}
	})
}
