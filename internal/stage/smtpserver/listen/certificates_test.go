package listen

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/test/peer"
)

// nextYear is when the tests' certificates end.
var nextYear = time.Now().AddDate(1, 0, 0)

// pair writes a certificate and its key as PREFIX.pem and PREFIX.key, and returns its number.
func pair(ca *peer.CA, prefix string, end time.Time, name string) string {
	c := ca.IssueUntil(end, name)
	_ = os.Remove(prefix + ".key") // with its mode
	ca.Write(prefix+".pem", prefix+".key", c)
	return c.Leaf.SerialNumber.String()
}

// shown returns the certificate that a handshake for a name gets.
func shown(t *testing.T, c *Certificates, name string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	go func() { _ = tls.Server(theirs, c.Config()).Handshake() }()
	client := tls.Client(ours, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	assert.Must(t, client.Handshake())
	return client.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestNameDecidesBetweenCertificates(t *testing.T) {
	dir, ca := t.TempDir(), peer.NewCA(t, "test")
	one := pair(ca, filepath.Join(dir, "one"), nextYear, "one.example")
	two := pair(ca, filepath.Join(dir, "two"), nextYear, "two.example")
	c := assert.Get(OpenCertificates(CertificateFiles{
		Certs: []string{filepath.Join(dir, "one.pem"), filepath.Join(dir, "two.pem")},
		Keys:  []string{filepath.Join(dir, "one.key"), filepath.Join(dir, "two.key")},
	}, time.Now, slog.New(slog.DiscardHandler)))(t)
	for name, want := range map[string]string{"one.example": one, "two.example": two, "three.example": one} {
		assert.Equal(t, shown(t, c, name), want, name)
	}
}

func TestCertificatesAreReadAgainWhenTheyChange(t *testing.T) {
	prefix, ca := filepath.Join(t.TempDir(), "mx"), peer.NewCA(t, "test")
	now := time.Now()
	log := &logtest.Buffer{}
	first := pair(ca, prefix, nextYear, "mx.example.org")
	c := assert.Get(OpenCertificates(CertificateFiles{Certs: []string{prefix + ".pem"}, Keys: []string{prefix + ".key"}},
		func() time.Time { return now }, log.Logger()))(t)
	check := func(step, want string) {
		t.Helper()
		assert.Equal(t, shown(t, c, "mx.example.org"), want, step)
	}
	check("at the start", first)
	same := c.Config()
	now = now.Add(time.Minute)
	if c.Config() != same {
		t.Error("nothing has changed, but tickets are invalid")
	}
	second := pair(ca, prefix, nextYear, "mx.example.org")
	now = now.Add(time.Second / 2)
	check("within the period", first)
	now = now.Add(time.Minute)
	check("changed", second)
	key := assert.Get(os.ReadFile(prefix + ".key"))(t)
	write := func(name string, text []byte) { assert.Must(t, os.WriteFile(name, text, 0o600)) }
	for name, change := range map[string]func(){
		"key of another": func() { pair(ca, prefix, nextYear, "mx.example.org"); write(prefix+".key", key) },
		"no PEM":         func() { write(prefix+".pem", []byte("nonsense")) },
		"gone":           func() { os.Remove(prefix + ".pem") },
		"open to all":    func() { pair(ca, prefix, nextYear, "mx.example.org"); os.Chmod(prefix+".key", 0o644) },
	} {
		change()
		before := log.Count("tls-refused")
		for range 3 {
			now = now.Add(time.Minute)
			check(name, second)
		}
		log.Expect(t, before+1, "tls-refused")
	}
	third := pair(ca, prefix, now.Add(24*time.Hour), "mx.example.org")
	now = now.Add(time.Minute)
	check("mended", third)
	if log.Count("level=WARN msg=tls-certificate") == 0 {
		t.Error("that it ends nextYear is not said")
	}
}

func TestBadCertificateAtTheStartIsNamed(t *testing.T) {
	dir := t.TempDir()
	prefix, ca := filepath.Join(dir, "mx"), peer.NewCA(t, "test")
	pair(ca, prefix, nextYear, "mx.example.org")
	both := append(assert.Get(os.ReadFile(prefix+".pem"))(t), assert.Get(os.ReadFile(prefix+".key"))(t)...)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "both.pem"), both, 0o600), os.WriteFile(filepath.Join(dir, "open.pem"), both, 0o644))
	for name, test := range map[string]struct {
		files CertificateFiles
		bad   string // the file in the error; "": none
	}{
		"key in the same file": {CertificateFiles{Certs: []string{filepath.Join(dir, "both.pem")}}, ""},
		"not there":            {CertificateFiles{Certs: []string{filepath.Join(dir, "none")}}, filepath.Join(dir, "none")},
		"open to all users":    {CertificateFiles{Certs: []string{filepath.Join(dir, "open.pem")}}, filepath.Join(dir, "open.pem")},
		"a directory":          {CertificateFiles{Certs: []string{dir}}, dir},
		"no key":               {CertificateFiles{Certs: []string{prefix + ".key"}}, prefix + ".key"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenCertificates(test.files, time.Now, slog.New(slog.DiscardHandler))
			if bad := (*config.Error)(nil); test.bad == "" && err != nil || test.bad != "" && (!errors.As(err, &bad) || bad.File != test.bad) {
				t.Errorf("got %v, want an error of %q", err, test.bad)
			}
		})
	}
}
