package smtpserver

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/wire/milter"
)

// opendkim starts the real filter, which is made with Sendmail's libmilter, as a signer
// for a.example; its address is that of its socket.
func opendkim(t *testing.T, key checkstest.Signer) milter.Config {
	t.Helper()
	program, err := exec.LookPath("opendkim")
	if err != nil {
		t.Skip("skipped: opendkim is not installed; no filter made with libmilter was asked")
	}
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "key"), filepath.Join(dir, "s")
	der := x509.MarshalPKCS1PrivateKey(key.Key.(*rsa.PrivateKey))
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "conf")
	text := "Mode s\nDomain a.example\nSelector s\nKeyFile " + file + "\nSocket local:" + socket + "\nCanonicalization relaxed/relaxed\nRequireSafeKeys no\nSyslog no\nPidFile " + dir + "/pid\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-f", "-x", conf)
	var said logtest.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); ; {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			return milter.Config{Network: "unix", Address: socket}
		}
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- err
			t.Fatalf("opendkim: %v\n%s", err, said.String())
		case <-limit:
			t.Fatalf("opendkim does not listen\n%s", said.String())
		}
	}
}

// A filter that others have made signs what comes in, and what it has signed is found
// right by us.
func TestOpendkimSignsAndWeVerify(t *testing.T) {
	key := checkstest.RSA(t, 2048)
	dkim := opendkim(t, key)
	_, server := checkstest.Serve(t, checkstest.TXT("s._domainkey.a.example", key.Record), `_dmarc.a.example. TXT "v=DMARC1; p=reject"`)
	signing := start(t, func(c *Config) { c.Filters.Milters = []milter.Config{dkim} })
	verifying := start(t, allChecks(server))
	letter := "From: Ann <ann@a.example>\nTo: b@mx.example.org\nSubject: folded\n\tsubject\nDate: Sat, 21 Nov 2026 10:00:00 +0000\nMessage-ID: <1@a.example>\n\nDear Bob,\n\n.\n..x  \n" + strings.Repeat("a line of eighty bytes\n", 20000)
	p := signing.dial()
	for range 2 { // and once more on the same connection
		p.mail("ann@a.example", "x@far.example", letter, "250")
	}
	names := signing.names("router")
	if len(names) != 2 {
		t.Fatalf("router/ holds %q", names)
	}
	for _, name := range names {
		_, signed, _ := strings.Cut(signing.message(name), "env-end\n")
		if !strings.HasPrefix(signed, "DKIM-Signature: v=1; a=rsa-sha256;") || !strings.HasSuffix(signed, letter) {
			t.Fatalf("got %.600q", signed)
		}
		verifying.dial().mail("ann@a.example", toUs, signed, "250")
	}
	for _, name := range verifying.names("router") {
		got := verifying.message(name)
		if !strings.Contains(got, "dkim=pass header.d=a.example header.i=@a.example;\n\tdmarc=pass") {
			t.Errorf("got %.600s", got)
		}
	}
}
