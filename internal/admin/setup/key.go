package setup

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"zmailer/internal/disk/durable"
)

// KeyType is an algorithm for DKIM signatures.
type KeyType string

// The types of keys. Every receiver knows RSA.
const (
	RSA     KeyType = "rsa"
	Ed25519 KeyType = "ed25519"
)

// ErrKeyExists means that the file of a new key is there already.
var ErrKeyExists = errors.New("the file exists, and a key is never overwritten; choose another selector")

// NewKey makes a DKIM key pair, writes its private half into a new file for the owner of
// the postoffice, whose daemons read it, and returns the DNS record of the other half
// (RFC 6376 section 3.6.1, RFC 8463 section 4). bits is the size of an RSA key.
func NewKey(path string, kind KeyType, bits int, postoffice string) (record string, err error) {
	var private crypto.PrivateKey
	var public []byte
	if kind == Ed25519 {
		public, private, err = ed25519.GenerateKey(rand.Reader)
	} else {
		var k *rsa.PrivateKey
		if k, err = rsa.GenerateKey(rand.Reader, bits); err == nil {
			private = k
			public, err = x509.MarshalPKIXPublicKey(&k.PublicKey)
		}
	}
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err == nil {
		err = writeKey(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), postoffice)
	}
	if err != nil {
		return "", fmt.Errorf("write key %s: %w", path, err)
	}
	return fmt.Sprintf("v=DKIM1; k=%s; p=%s", kind, base64.StdEncoding.EncodeToString(public)), nil
}

func writeKey(path string, text []byte, postoffice string) (err error) {
	dir := filepath.Dir(path)
	err = os.Mkdir(dir, 0o700)
	if err == nil {
		// Crash: before this the directory may be gone, and the key with it.
		err = errors.Join(giveDirToOwner(dir, postoffice), syncDir(filepath.Dir(dir)))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return ErrKeyExists
	}
	if err != nil {
		return err
	}
	// Crash: until the end the file may hold a part of a key, which is refused where it is
	// read; an administrator removes it.
	_, err = f.Write(text)
	if err = errors.Join(err, giveToOwner(f, postoffice), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	// Crash: before this the name may be gone; the record is returned after it only.
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := durable.NewOS(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.SyncDir("."), d.Close())
}

// giveDirToOwner gives a directory that root has created to the owner of the postoffice.
func giveDirToOwner(dir, postoffice string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(giveToOwner(f, postoffice), f.Close())
}

// giveToOwner gives what root has created to the owner of the postoffice. It takes the open
// file, because the owner of the directory could put a link under its name meanwhile, and
// root would give away what the link points to.
func giveToOwner(f *os.File, postoffice string) error {
	info, err := os.Stat(postoffice)
	if os.Geteuid() != 0 || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return f.Chown(int(owner.Uid), int(owner.Gid))
}
