package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/test/suite"
)

// startDovecot runs Dovecot's LMTP server on a socket of its own: two users, ok and full,
// who has no room. It gives the socket and where their Maildirs are.
func startDovecot(t *testing.T) (socket, mail string) {
	t.Helper()
	dovecot, err := exec.LookPath("dovecot")
	if err == nil {
		_, err = os.Stat("/usr/lib/dovecot/lmtp")
	}
	if err != nil {
		t.Skip("skipped: dovecot-lmtpd is not installed")
	}
	needRoot(t)
	dir, err := os.MkdirTemp("", "dovecot") // short: a socket's path is
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	mail = filepath.Join(dir, "mail")
	for _, d := range []string{dir, mail} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chown(mail, nobody, nobody))
	write(t, dir+"/users", fmt.Sprintf("ok::%[1]d:%[1]d::%[2]s/ok::userdb_quota_rule=*:bytes=1M\nfull::%[1]d:%[1]d::%[2]s/full::userdb_quota_rule=*:bytes=20\n", nobody, mail))
	write(t, dir+"/dovecot.conf", fmt.Sprintf(`base_dir = %[1]s/run
state_dir = %[1]s/run
log_path = %[1]s/log
protocols = lmtp
ssl = no
listen = 127.0.0.1
first_valid_uid = 1
first_valid_gid = 1
mail_location = maildir:%%h
mail_plugins = quota
passdb {
  driver = passwd-file
  args = username_format=%%n %[1]s/users
}
userdb {
  driver = passwd-file
  args = username_format=%%n %[1]s/users
}
plugin {
  quota = maildir:User quota
  quota_grace = 0
}
quota_full_tempfail = yes
service lmtp {
  unix_listener lmtp {
    mode = 0666
  }
}
protocol lmtp {
  postmaster_address = postmaster@box.example
}
`, dir))
	cmd := exec.Command(dovecot, "-F", "-c", dir+"/dovecot.conf")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if log, err := os.ReadFile(dir + "/log"); t.Failed() {
			t.Logf("Dovecot's log: %s %v\n%s", log, err, out)
		}
	})
	return dir + "/run/lmtp", mail
}

// M49, K14: Dovecot takes mail by LMTP over its Unix socket and answers for each recipient:
// one has it, one over quota waits, one who is not there is reported. What arrives is the
// message.
func TestDovecotTakesMailByLMTP(t *testing.T) {
	t.Parallel()
	socket, mail := startDovecot(t)
	s := start(t, nil, func(s *suite.Suite) { s.Files["routes"] = "box.example lmtp!unix:" + socket + "\n" })
	await(t, s, "Dovecot listens", func() (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, ignoreMissing(err)
	})
	submit(t, s, "Subject: x\n\n.dot\nFrom here\n", "-f", "bob@mta.example", "ok@box.example", "full@box.example", "gone@box.example")
	event(t, s, "delivered", "rcpt", "ok@box.example", "channel", "lmtp")
	event(t, s, "deferred", "rcpt", "full@box.example", "status", "4.2.2")
	event(t, s, "failed", "rcpt", "gone@box.example", "status", "5.1.1")
	files, err := filepath.Glob(mail + "/ok/new/*")
	if err != nil || len(files) != 1 {
		t.Fatalf("in the Maildir: %q, %v", files, err)
	}
	text := strings.ReplaceAll(read(t, files[0]), "\r\n", "\n")
	wantIn(t, text, "Return-Path: <bob@mta.example>\n", "Subject: x\n", "\n\n.dot\nFrom here\n")
}
