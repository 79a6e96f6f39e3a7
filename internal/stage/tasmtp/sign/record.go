package sign

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// Record returns the name of the DNS record that publishes the key (RFC 6376 §3.6.2.1).
func (k *Key) Record() string { return k.Selector + "._domainkey." + k.Domain }

// Kind returns the kind of the key.
func (k *Key) Kind() (string, error) {
	private, err := k.Private()
	if err != nil {
		return "", err
	}
	if public, ok := private.Public().(*rsa.PublicKey); ok {
		return fmt.Sprintf("rsa of %d bits", public.N.BitLen()), nil
	}
	return "ed25519", nil
}

// Published reports whether one of the texts of the record is this key's public half: nil,
// or an error with the text found.
func (k *Key) Published(texts []string) error {
	private, err := k.Private()
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return errors.New("not in DNS: publish the TXT record that zmctl dkim newkey printed, or wait until your name servers have it")
	}
	why := errors.New("the TXT record there has no DKIM key: it must have p=")
	for _, text := range texts {
		tags := tagsOf(text)
		p, ok := tags["p"]
		if v, said := tags["v"]; !ok || said && v != "DKIM1" {
			continue
		}
		if p == "" {
			return errors.New("the key is withdrawn: p= is empty")
		}
		der, err := base64.StdEncoding.DecodeString(p)
		if err != nil {
			return fmt.Errorf("p= is not base64: %w", err)
		}
		if same(private.Public(), tags["k"], der) {
			return nil
		}
		why = errors.New("another key is published")
	}
	return why
}

// same compares a public key with what a record has.
func same(public any, kind string, der []byte) bool {
	switch public := public.(type) {
	case ed25519.PublicKey:
		return kind == "ed25519" && bytes.Equal(public, der)
	case *rsa.PublicKey:
		// RFC 6376 §3.6.1 names one form, and receivers take both.
		other, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			other, _ = x509.ParsePKCS1PublicKey(der)
		}
		return (kind == "" || kind == "rsa") && public.Equal(other)
	}
	return false
}

// tagsOf reads a tag list without its white space (RFC 6376 §3.2).
func tagsOf(text string) map[string]string {
	tags := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		name, value, ok := strings.Cut(pair, "=")
		if ok {
			tags[strings.TrimSpace(name)] = strings.Join(strings.Fields(value), "")
		}
	}
	return tags
}

// Check reads all keys. The error joins those that cannot be used.
func (t *Table) Check() error {
	if t == nil {
		return nil
	}
	var all []*Key
	for _, keys := range t.file.Current() {
		all = append(all, keys...)
	}
	slices.SortFunc(all, func(a, b *Key) int { return cmp.Compare(a.Line, b.Line) })
	var errs []error
	for _, k := range all {
		if _, err := k.Private(); err != nil {
			errs = append(errs, &config.Error{File: t.file.Path(), Line: k.Line, Reason: "the key cannot be used", Err: err})
		}
	}
	return errors.Join(errs...)
}
