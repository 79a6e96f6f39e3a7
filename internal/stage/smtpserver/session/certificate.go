package session

import "crypto/x509"

// TrustedCertificate returns the client's certificate if an authority that this machine trusts has
// issued it: as with Postfix, filters and policy services do not get the names that any other
// certificate claims. nil: there is none.
func (c *Client) TrustedCertificate() *x509.Certificate {
	if c.TLS == nil || len(c.TLS.PeerCertificates) == 0 {
		return nil
	}
	leaf := c.TLS.PeerCertificates[0]
	if len(c.TLS.VerifiedChains) > 0 {
		return leaf
	}
	between := x509.NewCertPool()
	for _, c := range c.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil
	}
	return leaf
}
