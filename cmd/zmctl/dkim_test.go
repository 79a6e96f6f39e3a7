package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/assert"
)

// The key that is written signs, and the record that is printed verifies.
func TestNewkeyMakesAPairForDKIM(t *testing.T) {
	for _, kind := range []string{"rsa", "ed25519"} {
		t.Run(kind, func(t *testing.T) {
			dir, conf := tables(t, nil)
			args := []string{"--config", conf, "dkim", "newkey", "--type", kind, "Example.org", "s2026"}
			said, code, err := invoke(t, args...)
			if code != 0 || err != nil || !strings.Contains(said, "\ns2026._domainkey.example.org. IN TXT ( ") ||
				!strings.HasSuffix(said, "\nexample.org s2026 keys/s2026.example.org.pem\n") {
				t.Fatalf("got %d %v\n%s", code, err, said)
			}
			path := filepath.Join(dir, "keys", "s2026.example.org.pem")
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("got %v, %v, want a file that its owner alone may read", info, err)
			}
			var record strings.Builder
			for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(said, -1) {
				if len(m[1]) > 255 {
					t.Errorf("a string of %d bytes", len(m[1]))
				}
				record.WriteString(m[1])
			}
			checkPair(t, path, record.String())

			before, _ := os.ReadFile(path)
			said, code, _ = invoke(t, args...)
			after, _ := os.ReadFile(path)
			if code != 1 || !bytes.Equal(before, after) {
				t.Errorf("a second call: got %d, the key is the same: %v\n%s", code, bytes.Equal(before, after), said)
			}
		})
	}
}

func checkPair(t *testing.T, path, record string) {
	t.Helper()
	text, err := os.ReadFile(path)
	assert.Must(t, err)
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	assert.Must(t, err)
	var signed bytes.Buffer
	o := &dkim.SignOptions{Domain: "example.org", Selector: "s2026", Signer: key.(crypto.Signer)}
	assert.Must(t, dkim.Sign(&signed, strings.NewReader("From: a@example.org\r\n\r\nx\r\n"), o))
	all, err := dkim.VerifyWithOptions(&signed, &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		if name != "s2026._domainkey.example.org" {
			return nil, errors.New(name)
		}
		return []string{record}, nil
	}})
	if err != nil || len(all) != 1 || all[0].Err != nil {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestNewkeyRefuses(t *testing.T) {
	_, conf := tables(t, nil)
	cases := map[string][]string{
		"no selector":    {"example.org"},
		"a bad domain":   {"a..b", "s"},
		"a bad selector": {"example.org", "s!"},
		"another type":   {"--type", "dsa", "example.org", "s"},
		"a weak key":     {"--bits", "1024", "example.org", "s"},
	}
	for name, args := range cases {
		t.Run(name, func(t *testing.T) {
			exits(t, 64, append([]string{"--config", conf, "dkim", "newkey"}, args...)...)
		})
	}
}
