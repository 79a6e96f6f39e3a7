package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/run/config"
)

const (
	// certificatePeriod is how often the files are checked for a change, at most.
	certificatePeriod = time.Second
	// certificateSettle is how old a file's last change must be before it is read again.
	certificateSettle = 100 * time.Millisecond
	// certificateWarning is how long before its end a certificate is warned about.
	certificateWarning = 14 * 24 * time.Hour
)

// CertificateFiles name the certificates of the server.
type CertificateFiles struct {
	Certs []string // PEM, each with its chain; none: no TLS
	Keys  []string // PEM, in the same order; none: they are in Certs
	Ask   bool     // clients are asked for a certificate, which is not verified
	// Keeper saves pairs that can be used; may be nil.
	Keeper config.Keeper
}

// Check reports a certificate without a key.
func (f CertificateFiles) Check() error {
	if len(f.Keys) > 0 && len(f.Keys) != len(f.Certs) {
		return fmt.Errorf("%d certificates and %d keys", len(f.Certs), len(f.Keys))
	}
	return nil
}

// all names each file once; true: it holds a key.
func (f CertificateFiles) all() map[string]bool {
	all := map[string]bool{}
	for _, name := range f.Certs {
		all[name] = len(f.Keys) == 0
	}
	for _, name := range f.Keys {
		all[name] = true
	}
	return all
}

// Certificates are read again when their files change. While a new set is incomplete or
// wrong, the old one is used.
type Certificates struct {
	files CertificateFiles
	now   func() time.Time
	log   *slog.Logger

	mu      sync.Mutex
	next    time.Time              // when the files are checked next
	seen    map[string]fs.FileInfo // as they were when they were read, well or not
	current *tls.Config
	trouble string // the last error that was logged
}

// OpenCertificates reads the files. It returns nil if none are named. For a pair that cannot be
// used there may be a copy of the one that could.
func OpenCertificates(files CertificateFiles, now func() time.Time, log *slog.Logger) (*Certificates, error) {
	if len(files.Certs) == 0 {
		return nil, nil
	}
	c := &Certificates{files: files, now: now, log: log}
	c.seen = c.stat()
	var err error
	if c.current, err = c.read(false); err != nil {
		c.trouble = err.Error()
		kept, kerr := c.read(true)
		if kerr != nil {
			return nil, err
		}
		c.current = kept
		log.Error("tls-refused", "reason", err, "kept", "the copies of certificates that could be used")
	}
	c.next = now().Add(certificatePeriod)
	return c, nil
}

// Config returns what a handshake uses now. It stays the same while the files do, so that
// sessions can be resumed.
func (c *Certificates) Config() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if left := c.next.Sub(now); left > 0 && left <= certificatePeriod {
		return c.current
	}
	c.next = now.Add(certificatePeriod)
	seen := c.stat()
	if same(c.seen, seen) {
		return c.current
	}
	for _, info := range seen {
		// One may be half written, or the other of its pair not yet.
		if age := now.Sub(info.ModTime()); age >= 0 && age < certificateSettle {
			c.next = now.Add(certificateSettle)
			return c.current
		}
	}
	// Their state was taken before they are read: a change meanwhile is read the next time.
	c.seen = seen
	fresh, err := c.read(false)
	if err != nil {
		if err.Error() != c.trouble {
			c.trouble = err.Error()
			c.log.Error("tls-refused", "reason", err, "kept", "the certificates that were read before")
		}
		return c.current
	}
	c.current, c.trouble = fresh, ""
	return c.current
}

// stat returns the state of all files that are there.
func (c *Certificates) stat() map[string]fs.FileInfo {
	seen := map[string]fs.FileInfo{}
	for name := range c.files.all() {
		if info, err := config.StatSecret(c.files.Keeper, name); err == nil {
			seen[name] = info
		}
	}
	return seen
}

func same(a, b map[string]fs.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || !os.SameFile(x, y) || !x.ModTime().Equal(y.ModTime()) || x.Size() != y.Size() || x.Mode() != y.Mode() {
			return false
		}
	}
	return true
}

// read makes a configuration of all pairs, or an error that joins those of all files that cannot
// be used. copies: the copy of such a pair is used instead, if there is one.
func (c *Certificates) read(copies bool) (*tls.Config, error) {
	fresh := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.files.Ask {
		fresh.ClientAuth = tls.RequestClientCert
	}
	var errs []error
	for i, cert := range c.files.Certs {
		key := cert
		if len(c.files.Keys) > 0 {
			key = c.files.Keys[i]
		}
		pair, err := c.pair(cert, key)
		if err != nil && c.files.Keeper != nil {
			kept := c.files.Keeper.Last(cert)
			c.files.Keeper.Bad(cert, err, kept != nil || c.current != nil)
			if copies && kept != nil {
				pair, err = tls.X509KeyPair(kept.Text, kept.Text)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fresh.Certificates = append(fresh.Certificates, pair)
		c.announce(cert, pair.Leaf)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return fresh, nil
}

// pair reads a certificate and its key, and has both saved.
func (c *Certificates) pair(cert, key string) (pair tls.Certificate, err error) {
	certText, err := readPEM(c.files.Keeper, cert, key == cert)
	keyText := certText
	if err == nil && key != cert {
		keyText, err = readPEM(c.files.Keeper, key, true)
	}
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(certText, keyText); err != nil {
		return pair, refused(cert, err)
	}
	if k := c.files.Keeper; k != nil {
		both := certText
		if key != cert {
			both = slices.Concat(certText, []byte("\n"), keyText)
		}
		k.Expires(cert, pair.Leaf.NotAfter)
		k.Good(cert, both, uint32(os.Geteuid()), nil)
	}
	return pair, nil
}

// readPEM reads a file; secret: it holds a key.
func readPEM(k config.Keeper, name string, secret bool) ([]byte, error) {
	f, err := config.OpenSecret(k, name)
	if err != nil {
		return nil, refused(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, refused(name, err)
	case !info.Mode().IsRegular():
		return nil, refused(name, errors.New("not a regular file"))
	case secret && info.Mode().Perm()&0o007 != 0:
		return nil, refused(name, fmt.Errorf("it holds a key and every user may access it: chmod o= %s", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, mostPEM))
	if err != nil {
		return nil, refused(name, err)
	}
	return text, nil
}

// mostPEM bounds a file of certificates. Bytes.
const mostPEM = 4 << 20

// announce logs a certificate that was read, and whether it ends soon.
func (c *Certificates) announce(file string, leaf *x509.Certificate) {
	args := []any{"file", file, "names", strings.Join(leaf.DNSNames, " "), "until", leaf.NotAfter.UTC().Format(time.RFC3339)}
	if leaf.NotAfter.Sub(c.now()) < certificateWarning {
		c.log.Warn("tls-certificate", append(args, "advice", "renew it: clients that verify it will not send")...)
		return
	}
	c.log.Info("tls-certificate", args...)
}

func refused(file string, err error) error {
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err
	}
	return &config.Error{File: file, Reason: "cannot use the certificate", Err: err}
}
