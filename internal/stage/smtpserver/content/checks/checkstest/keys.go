package checkstest

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/assert"
)

// Signer is a key with its DNS record.
type Signer struct {
	Key    crypto.Signer
	Record string
}

// RSA makes a key.
func RSA(t testing.TB, bits int) Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	assert.Must(t, err)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	assert.Must(t, err)
	return Signer{key, "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(der)}
}

// Ed25519 makes a key.
func Ed25519(t testing.TB) Signer {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	assert.Must(t, err)
	return Signer{key, "v=DKIM1; k=ed25519; p=" + base64.StdEncoding.EncodeToString(public)}
}

// TXT returns a TXT record as a zone file has it, in strings that are not too long.
func TXT(name, text string) string {
	line := name + ". TXT"
	for part := range slices.Chunk([]byte(text), 200) {
		line += fmt.Sprintf(" %q", part)
	}
	return line
}

// Sign signs a message with LF line ends.
func (s Signer) Sign(t testing.TB, message, domain, selector string, relaxed bool) string {
	t.Helper()
	return s.sign(t, message, domain, selector, "", relaxed)
}

// SignAs signs, relaxed, for a user (i=).
func (s Signer) SignAs(t testing.TB, message, domain, selector, user string) string {
	t.Helper()
	return s.sign(t, message, domain, selector, user, true)
}

func (s Signer) sign(t testing.TB, message, domain, selector, user string, relaxed bool) string {
	t.Helper()
	o := &dkim.SignOptions{Identifier: user, Domain: domain, Selector: selector, Signer: s.Key, Hash: crypto.SHA256}
	if relaxed {
		o.HeaderCanonicalization, o.BodyCanonicalization = dkim.CanonicalizationRelaxed, dkim.CanonicalizationRelaxed
	}
	var out bytes.Buffer
	assert.Must(t, dkim.Sign(&out, strings.NewReader(strings.ReplaceAll(message, "\n", "\r\n")), o))
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}
