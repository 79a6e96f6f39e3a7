package tlspolicy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// errNoCertificate is a server without one; TLS has no such server, but an empty list
// must not pass for a good one.
var errNoCertificate = errors.New("the server has shown no certificate")

// VerifyChain wants a certificate of a known authority for one of the names, which may be
// ".name" for all below it, or an address. now is the time that it must be valid at.
func VerifyChain(certs []*x509.Certificate, roots *x509.CertPool, names []string, now time.Time) error {
	if len(certs) == 0 {
		return errNoCertificate
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now}); err != nil {
		return err
	}
	for _, name := range names {
		if HasName(certs[0], name) {
			return nil
		}
	}
	return &NameError{Cert: certs[0], Names: names}
}

// NameError is a certificate for another host.
type NameError struct {
	Cert  *x509.Certificate
	Names []string
}

func (e *NameError) Error() string {
	has := "no name"
	if len(e.Cert.DNSNames) > 0 {
		has = strings.Join(e.Cert.DNSNames[:min(len(e.Cert.DNSNames), 5)], ", ")
	}
	return fmt.Sprintf("the certificate is for %s, not for %s", has, strings.Join(e.Names, " or "))
}

// HasName reports whether a certificate is for a name: by RFC 6125, or for any name
// below one that begins with a dot.
func HasName(c *x509.Certificate, name string) bool {
	if below, ok := strings.CutPrefix(name, "."); ok {
		for _, n := range c.DNSNames {
			n, wild := strings.CutPrefix(strings.ToLower(n), "*.")
			if wild && n == below || strings.HasSuffix(n, "."+below) {
				return true
			}
		}
		return false
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return c.VerifyHostname("["+a.String()+"]") == nil
	}
	return c.VerifyHostname(name) == nil
}

// CheckFingerprint wants a certificate, or its key, that is written down.
func (p *Policy) CheckFingerprint(state *tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNoCertificate
	}
	leaf := state.PeerCertificates[0]
	cert, key := sha256.Sum256(leaf.Raw), sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	for _, f := range p.Fingerprints {
		if f == cert || f == key {
			return nil
		}
	}
	return fmt.Errorf("the certificate's fingerprint %x, and that of its key, %x, are not written down", cert, key)
}
