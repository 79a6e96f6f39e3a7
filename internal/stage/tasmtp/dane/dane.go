// Package dane is what TLSA records say about a server's certificate (RFC 6698 as RFC 7672
// has it for SMTP). The records were validated by the name server.
//
// It owns nothing.
//
// Diagnostics: Verify's error is why no record fits; it is a failure of the server or of
// its records, and whether mail waits for it is the caller's to say.
package dane

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/stage/tasmtp/tlspolicy"
)

// Values of a record's fields (RFC 7218).
const (
	UsageTA = 2 // DANE-TA: an authority
	UsageEE = 3 // DANE-EE: the server's own certificate

	selectCert = 0
	selectSPKI = 1

	matchFull   = 0
	matchSHA256 = 1
	matchSHA512 = 2
)

// Record is one TLSA record.
type Record struct {
	Usage, Selector, Matching uint8
	Data                      []byte
}

func (r Record) String() string {
	return fmt.Sprintf("%d %d %d %x", r.Usage, r.Selector, r.Matching, r.Data[:min(len(r.Data), 8)])
}

// usable reports whether an SMTP client can use a record: RFC 7672 §3.1.3 leaves out the usages
// 0 and 1.
func (r Record) usable() bool {
	if r.Usage != UsageTA && r.Usage != UsageEE || r.Selector > selectSPKI {
		return false
	}
	switch r.Matching {
	case matchFull:
		if r.Selector == selectSPKI {
			_, err := x509.ParsePKIXPublicKey(r.Data)
			return err == nil
		}
		_, err := x509.ParseCertificate(r.Data)
		return err == nil
	case matchSHA256:
		return len(r.Data) == sha256.Size
	case matchSHA512:
		return len(r.Data) == sha512.Size
	}
	return false
}

// Usable returns the records that can be used. With none left TLS is wanted and nothing is
// verified (RFC 7672 §2.2). Where a usage and selector have SHA-512, those with SHA-256
// are left out: the stronger digest alone counts (RFC 7671 §9).
func Usable(records []Record) []Record {
	strong := map[[2]uint8]bool{}
	for _, r := range records {
		if r.usable() && r.Matching == matchSHA512 {
			strong[[2]uint8{r.Usage, r.Selector}] = true
		}
	}
	var list []Record
	for _, r := range records {
		if r.usable() && !(r.Matching == matchSHA256 && strong[[2]uint8{r.Usage, r.Selector}]) {
			list = append(list, r)
		}
	}
	return list
}

// ErrNoMatch is a chain that no record fits.
var ErrNoMatch = errors.New("no TLSA record fits what the server has shown")

// Verify wants the chain that a server has shown to fit one of the usable records. names
// are those that a certificate under an authority's record must have one of; one that a
// record names itself needs neither a name nor to be of today (RFC 7672 §3.1.1).
func Verify(records []Record, chain []*x509.Certificate, names []string, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("the server has shown no certificate")
	}
	var last error
	for _, r := range records {
		if r.Usage == UsageEE {
			if r.fits(chain[0]) {
				return nil
			}
			continue
		}
		err := r.verifyTA(chain, names, now)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrNoMatch) {
			last = err
		}
	}
	if last != nil {
		return last
	}
	var tried []string
	for _, r := range records[:min(len(records), 4)] {
		tried = append(tried, r.String())
	}
	return fmt.Errorf("%w: %s", ErrNoMatch, strings.Join(tried, "; "))
}

// fits reports whether a record is of a certificate.
func (r Record) fits(c *x509.Certificate) bool {
	data := c.Raw
	if r.Selector == selectSPKI {
		data = c.RawSubjectPublicKeyInfo
	}
	switch r.Matching {
	case matchSHA256:
		sum := sha256.Sum256(data)
		data = sum[:]
	case matchSHA512:
		sum := sha512.Sum512(data)
		data = sum[:]
	}
	return bytes.Equal(data, r.Data)
}

// verifyTA wants a chain up to the record's authority, which the server must have shown
// unless the record is the whole certificate (RFC 7672 §3.1.2).
func (r Record) verifyTA(chain []*x509.Certificate, names []string, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range chain {
		// The leaf may be under a record of its own authority that is itself.
		if r.fits(c) {
			roots.AddCert(c)
			found = true
		} else {
			between.AddCert(c)
		}
	}
	if !found && r.Matching == matchFull && r.Selector == selectCert {
		if c, err := x509.ParseCertificate(r.Data); err == nil {
			roots.AddCert(c)
			found = true
		}
	}
	if !found {
		return ErrNoMatch
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now})
	if err != nil {
		return err
	}
	for _, name := range names {
		if tlspolicy.HasName(chain[0], name) {
			return nil
		}
	}
	return &tlspolicy.NameError{Cert: chain[0], Names: names}
}
