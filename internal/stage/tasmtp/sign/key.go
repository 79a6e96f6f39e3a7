package sign

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/run/config"
)

// minRSA is the least size of an RSA key: RFC 8301 §3.2 wants more than 1024, and
// receivers trust no fewer.
const minRSA = 2048

// Key is a line of the table: a key and the domains it signs for.
type Key struct {
	Pattern  string // domain of From, with a dot in front: and those below
	Domain   string // d=
	Selector string // s=
	Path     string // of the private key
	Expire   time.Duration
	Line     int

	o      Options
	mu     sync.Mutex
	file   *config.File[crypto.Signer] // nil: not read yet
	failed string
}

// Private returns the private key as it is now. The file is read again when it changes.
func (k *Key) Private() (crypto.Signer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		f, err := config.OpenFile(k.Path, parseKey, config.FileOptions{Required: true, Secret: true, Keeper: k.o.Keeper, Now: k.o.Now, Log: k.o.Log})
		if err != nil {
			if why := err.Error(); why != k.failed {
				k.failed = why
				k.o.Log.Error("dkim-key-unusable", "domain", k.Domain, "selector", k.Selector, "reason", err,
					"advice", "mend the key or take its line out of the file dkim; mail that no other key signs waits")
			}
			return nil, err
		}
		k.file, k.failed = f, ""
	}
	return k.file.Current(), nil
}

func (k *Key) signer(fields []string, now time.Time) (*dkim.Signer, error) {
	private, err := k.Private()
	if err != nil {
		return nil, err
	}
	o := dkim.SignOptions{
		Domain: k.Domain, Selector: k.Selector, Signer: private, HeaderKeys: fields,
		HeaderCanonicalization: dkim.CanonicalizationRelaxed, BodyCanonicalization: dkim.CanonicalizationRelaxed,
	}
	if k.Expire > 0 {
		o.Expiration = now.Add(k.Expire)
	}
	return dkim.NewSigner(&o)
}

// parseKey reads a private key: PEM of PKCS #8, or of PKCS #1 as older programs write it.
func parseKey(name string, text []byte) (crypto.Signer, error) {
	bad := func(err error) (crypto.Signer, error) {
		return nil, &config.Error{File: name, Reason: "is no private key for DKIM", Err: err}
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return bad(errors.New("it has no PEM block"))
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return bad(errors.New("there is text after the key"))
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if old, oldErr := x509.ParsePKCS1PrivateKey(block.Bytes); err != nil && oldErr == nil {
		key, err = old, nil
	}
	if err != nil {
		return bad(err)
	}
	switch key := key.(type) {
	case *rsa.PrivateKey:
		if n := key.N.BitLen(); n < minRSA {
			return bad(errors.New("RSA of " + strconv.Itoa(n) + " bits is too weak, receivers want " + strconv.Itoa(minRSA)))
		}
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	}
	return bad(fmt.Errorf("%T is neither RSA nor Ed25519", key))
}
