package ecosystem

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/smtp"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// lineage is certbot's directory of one certificate.
type lineage struct {
	dir, tls string
	ca       *peer.CA
	zmctl    string // the hook's command
}

// renew writes a new certificate as certbot does: files in archive/, links in live/.
func (l *lineage) renew(t *testing.T, version string, end time.Time) {
	t.Helper()
	archive := filepath.Join(l.dir, "archive", "mx.example.org")
	live := l.live()
	assert.Must(t, errors.Join(os.MkdirAll(archive, 0o700), os.MkdirAll(live, 0o700)))
	cert, key := filepath.Join(archive, "fullchain"+version+".pem"), filepath.Join(archive, "privkey"+version+".pem")
	l.ca.Write(cert, key, l.ca.IssueUntil(end, "mx.example.org"))
	assert.Must(t, os.Chmod(key, 0o600))
	for name, to := range map[string]string{"fullchain.pem": cert, "privkey.pem": key} {
		_ = os.Remove(filepath.Join(live, name)) // the first time there is none
		assert.Must(t, os.Symlink(to, filepath.Join(live, name)))
	}
}

func (l *lineage) live() string { return filepath.Join(l.dir, "live", "mx.example.org") }

// renewed has certbot's own code run the hooks of its directory, as after a renewal.
const renewed = `import sys
from types import SimpleNamespace
from certbot._internal import hooks
c = SimpleNamespace(directory_hooks=True, renewal_deploy_hooks_dir=sys.argv[1], dry_run=False, run_deploy_hooks=False, renew_hook=None, deploy_hook=None)
hooks.renew_hook(c, ["mx.example.org"], sys.argv[2])
`

// certbot has Debian's certbot run the hook, which is linked as the page says.
func (l *lineage) certbot(t *testing.T) {
	t.Helper()
	hooks := filepath.Join(l.dir, "renewal-hooks", "deploy")
	script := assert.Get(filepath.Abs("../../packaging/certbot/certbot-deploy"))(t)
	assert.Must(t, os.MkdirAll(hooks, 0o755), os.Symlink(script, filepath.Join(hooks, "zmailer")))
	cmd := exec.Command("/usr/bin/python3", "-c", renewed, hooks, l.live())
	cmd.Env = append(os.Environ(), "ZMAILER_TLS="+l.tls, "ZMAILER_GROUP=root", "ZMCTL="+l.zmctl)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("certbot: %v\n%s", err, out)
	}
}

// hook runs the deploy hook by hand, with the variables of certbot's manual.
func (l *lineage) hook(t *testing.T, args string) (said string, err error) {
	t.Helper()
	script := assert.Get(filepath.Abs("../../packaging/certbot/certbot-deploy"))(t)
	cmd := exec.Command("/bin/sh", "-c", script+args)
	cmd.Env = append(os.Environ(), "RENEWED_LINEAGE="+l.live(), "RENEWED_DOMAINS=mx.example.org", "ZMAILER_TLS="+l.tls, "ZMAILER_GROUP=root", "ZMCTL="+l.zmctl)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func newLineage(t *testing.T) *lineage {
	t.Helper()
	dir := rig.ShortDir(t)
	l := &lineage{dir: filepath.Join(dir, "letsencrypt"), tls: filepath.Join(dir, "tls"), ca: peer.NewCA(t, "ca"), zmctl: "true"}
	assert.Must(t, os.Mkdir(l.tls, 0o750))
	return l
}

// served returns the end of the certificate that the server has, if a client that verifies it
// accepts it.
func served(t *testing.T, s *suite.Suite, ca *peer.CA) (end time.Time) {
	t.Helper()
	c := assert.Get(smtp.Dial(s.SMTPAddr))(t)
	defer c.Close()
	var leaf *x509.Certificate
	assert.Must(t, c.StartTLS(&tls.Config{ServerName: "mx.example.org", RootCAs: ca.Pool(), VerifyConnection: func(st tls.ConnectionState) error {
		leaf = st.PeerCertificates[0]
		return nil
	}}))
	return leaf.NotAfter
}

// The running server has the renewed certificate once certbot's deploy hook has run.
func TestDeployHookGivesTheServerANewCertificate(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/bin/openssl", "/usr/bin/certbot")
	l := newLineage(t)
	soon, later := time.Now().Add(20*time.Hour).Truncate(time.Second), time.Now().Add(40*time.Hour).Truncate(time.Second)
	l.renew(t, "1", soon)
	said, err := l.hook(t, " --new")
	assert.NoError(t, err)
	assert.Equal(t, said, "")
	file := filepath.Join(l.tls, "mx.example.org.pem")
	assert.Equal(t, assert.Get(os.Stat(file))(t).Mode().Perm(), os.FileMode(0o640))
	p := readPage(t, "certificates.md", "/etc/zmailer/certs/mx.example.org.pem", file)
	s := p.start(t, "/etc/zmailer/zmailer.conf with a copy", func(s *suite.Suite) {})
	assert.Equal(t, served(t, s, l.ca).Unix(), soon.Unix())
	l.renew(t, "2", later)
	l.certbot(t)
	rig.Await(t, "new certificate", func() bool { return served(t, s, l.ca).Unix() == later.Unix() })

	// A key of another certificate changes nothing.
	other := filepath.Join(l.dir, "archive", "mx.example.org", "privkey1.pem")
	assert.Must(t, os.Remove(filepath.Join(l.live(), "privkey.pem")), os.Symlink(other, filepath.Join(l.live(), "privkey.pem")))
	before := assert.Get(os.ReadFile(file))(t)
	if said, err = l.hook(t, ""); err == nil {
		t.Errorf("the hook accepted a key that is not the certificate's: %s", said)
	}
	assert.Equal(t, string(assert.Get(os.ReadFile(file))(t)), string(before))
	assert.Equal(t, len(assert.Get(os.ReadDir(l.tls))(t)), 1, "files beside the certificate")
}

// Op2: certbot's files are used where certbot has them, by daemons that are not root: the renewed
// certificate is served, and the hook, which certbot runs, reports one that cannot be used.
func TestOp2ServerUsesCertbotsOwnFiles(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/bin/openssl", "/usr/bin/certbot")
	if _, err := user.Lookup("daemon"); err != nil || os.Geteuid() != 0 {
		t.Skip("skipped: keys that root alone can read need root, and the user daemon")
	}
	l := newLineage(t)
	soon, later := time.Now().Add(20*time.Hour).Truncate(time.Second), time.Now().Add(40*time.Hour).Truncate(time.Second)
	l.renew(t, "1", soon)
	p := readPage(t, "certificates.md", "/etc/letsencrypt/live/mx.example.org", l.live())
	s := p.start(t, "/etc/zmailer/zmailer.conf", func(s *suite.Suite) {
		s.Settings["DAEMONUSER"] = "daemon"
		l.zmctl = s.Bin + "/zmctl --config " + s.Config()
	})
	rig.Event(t, s, "confined", "program", "smtpserver")
	assert.Equal(t, served(t, s, l.ca).Unix(), soon.Unix())
	l.renew(t, "2", later)
	l.certbot(t)
	rig.Await(t, "new certificate", func() bool { return served(t, s, l.ca).Unix() == later.Unix() })
	said, err := l.hook(t, "")
	assert.NoError(t, err)
	assert.Equal(t, said, "")
	assert.Equal(t, len(assert.Get(os.ReadDir(l.tls))(t)), 0, "copies")

	assert.Must(t, os.Chmod(filepath.Join(l.dir, "archive", "mx.example.org"), 0o777))
	if said, err := l.hook(t, ""); err == nil {
		t.Errorf("the hook is content with keys that everyone can replace: %s", said)
	}
	assert.Equal(t, served(t, s, l.ca).Unix(), later.Unix())
}

// Certificates that are not the mail system's are left alone.
func TestDeployHookLeavesOtherCertificatesAlone(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/bin/openssl")
	l := newLineage(t)
	l.renew(t, "1", time.Now().Add(time.Hour))
	_, err := l.hook(t, "")
	assert.NoError(t, err)
	assert.Equal(t, len(assert.Get(os.ReadDir(l.tls))(t)), 0)
}

// Root writes no key where others can make names: one of them could be a link that leads elsewhere.
func TestDeployHookRefusesADirectoryOfOthers(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/bin/openssl")
	for name, open := range map[string]func(dir string) error{
		"of another user": func(dir string) error { return os.Chown(dir, 4711, 0) },
		"for the group":   func(dir string) error { return os.Chmod(dir, 0o770) },
		"for everybody":   func(dir string) error { return os.Chmod(dir, 0o757) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLineage(t)
			l.renew(t, "1", time.Now().Add(20*time.Hour))
			assert.Must(t, open(l.tls))
			if said, err := l.hook(t, " --new"); err == nil {
				t.Errorf("done, and said %q", said)
			}
			assert.Equal(t, len(assert.Get(os.ReadDir(l.tls))(t)), 0, "files")
		})
	}
}
