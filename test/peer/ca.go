package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is an authority that makes certificates for tests.
type CA struct {
	Cert *x509.Certificate
	PEM  []byte

	t   testing.TB
	key *ecdsa.PrivateKey
}

// NewCA makes one that lives for a day.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{t: t, key: newKey(t)}
	template := &x509.Certificate{SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca.Cert, ca.PEM = sign(t, template, template, &ca.key.PublicKey, ca.key)
	return ca
}

// Pool returns a set of this authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// File writes the authority's certificate and gives the path.
func (ca *CA) File() string {
	ca.t.Helper()
	path := filepath.Join(ca.t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, ca.PEM, 0o644); err != nil {
		ca.t.Fatal(err)
	}
	return path
}

// Pair makes a server's certificate and gives the paths of it and its key.
func (ca *CA) Pair(names ...string) (cert, key string) {
	ca.t.Helper()
	dir := ca.t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Write(cert, key, ca.Issue(names...))
	return cert, key
}

// Write writes a certificate with the authority's own behind it, and its key, as files.
func (ca *CA) Write(cert, key string, issued tls.Certificate) {
	ca.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	if err != nil {
		ca.t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued.Certificate[0]})
	err = errors.Join(os.WriteFile(cert, append(chain, ca.PEM...), 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	if err != nil {
		ca.t.Fatal(err)
	}
}

// Issue makes a server's certificate for names or addresses; the authority's own stands
// behind it.
func (ca *CA) Issue(names ...string) tls.Certificate {
	ca.t.Helper()
	return ca.IssueUntil(time.Now().Add(24*time.Hour), names...)
}

// IssueUntil is Issue for a certificate that is over at a time.
func (ca *CA) IssueUntil(end time.Time, names ...string) tls.Certificate {
	ca.t.Helper()
	key := newKey(ca.t)
	template := &x509.Certificate{SerialNumber: serial(ca.t), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: end.Add(-48 * time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	leaf, _ := sign(ca.t, template, ca.Cert, &key.PublicKey, ca.key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Cert.Raw}, PrivateKey: key, Leaf: leaf}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sign(t testing.TB, template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
