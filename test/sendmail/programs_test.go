package sendmail

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

const report = "Disk report\n.\nFrom here on: 99 % full\n"

// Loc4: real programs, each told by its own option which sendmail to call, get the same
// message out of ours as out of Postfix's.
func TestLoc4ProgramsSubmitAsThroughPostfix(t *testing.T) {
	theirs, own := postfix(t), ours(t)
	for name, tt := range map[string]struct {
		needs []string
		// call returns the command; dir is empty and its home.
		call func(t *testing.T, dir, sendmail string) *exec.Cmd
		in   string
		want []string // recipients
	}{
		"bsd-mailx": {[]string{"bsd-mailx"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			rc := file(t, dir, "mailrc", "set sendmail="+sendmail+"\n")
			cmd := exec.Command("bsd-mailx", "-s", "a report", "-c", "copy@x.example", "-b", "hidden@x.example", "joe@x.example")
			cmd.Env = append(os.Environ(), "MAILRC="+rc)
			return cmd
		}, report, []string{"copy@x.example", "hidden@x.example", "joe@x.example"}},
		"bsd-mailx with options for sendmail": {[]string{"bsd-mailx"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			rc := file(t, dir, "mailrc", "set sendmail="+sendmail+"\n")
			cmd := exec.Command("bsd-mailx", "-s", "a report", "joe@x.example", "--", "-fme@x.example", "-FMe")
			cmd.Env = append(os.Environ(), "MAILRC="+rc)
			return cmd
		}, report, nil},
		"s-nail": {[]string{"s-nail"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("s-nail", "-:/", "-Sv15-compat", "-Smta="+sendmail, "-s", "a report", "-r", "me@x.example", "-c", "copy@x.example", "joe@x.example")
		}, report, []string{"copy@x.example", "joe@x.example"}},
		"mutt": {[]string{"mutt"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("mutt", "-n", "-F", "/dev/null", "-e", `set sendmail="`+sendmail+` -oem -oi"`, "-e", "set use_envelope_from=yes",
				"-e", `set from="Me <me@x.example>"`, "-e", "set copy=no", "-s", "a report", "-c", "copy@x.example", "-b", "hidden@x.example", "--", "joe@x.example")
		}, report, []string{"copy@x.example", "hidden@x.example", "joe@x.example"}},
		"git send-email": {[]string{"git"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			if _, err := os.Stat("/usr/lib/git-core/git-send-email"); err != nil {
				t.Skip(err)
			}
			patch := file(t, dir, "0001-x.patch", "From 1234567890123456789012345678901234567890 Mon Sep 17 00:00:00 2001\nFrom: Me <me@x.example>\n"+
				"Date: Mon, 1 Jan 2024 00:00:00 +0000\nSubject: [PATCH] x\n\n---\n a | 1 +\n\ndiff --git a/a b/a\n")
			cmd := exec.Command("git", "-c", "sendemail.smtpserver="+sendmail, "send-email", "--from=Me <me@x.example>", "--to=List <list@x.example>",
				"--cc=copy@x.example", "--suppress-cc=all", "--confirm=never", "--envelope-sender=me@x.example", patch)
			cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_COMMITTER_NAME=Me", "GIT_COMMITTER_EMAIL=me@x.example", "GIT_AUTHOR_NAME=Me", "GIT_AUTHOR_EMAIL=me@x.example")
			return cmd
		}, "", nil},
		"php mail()": {[]string{"php"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("php", "-n", "-d", "sendmail_path="+sendmail+" -t -i", "-r",
				`exit(mail("Joe <joe@x.example>", "a report", "body\n.\nmore", "From: me@x.example\r\nCc: copy@x.example\r\nBcc: hidden@x.example", "-fme@x.example") ? 0 : 1);`)
		}, "", []string{"copy@x.example", "hidden@x.example", "joe@x.example"}},
		"Python's subprocess": {[]string{"python3"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("python3", "-c", `
import subprocess, sys
from email.message import EmailMessage
m = EmailMessage()
m["From"], m["To"], m["Bcc"], m["Subject"] = "Me <me@x.example>", "Joe <joe@x.example>", "hidden@x.example", "Grüße"
m.set_content("Grüße\n.\n")
subprocess.run([sys.argv[1], "-t", "-oi", "-f", "me@x.example"], input=m.as_bytes(), check=True)
`, sendmail)
		}, "", []string{"hidden@x.example", "joe@x.example"}},
		"Mail::Mailer of libmailtools-perl": {[]string{"perl"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			if err := exec.Command("perl", "-MMail::Mailer", "-e", "1").Run(); err != nil {
				t.Skipf("no Mail::Mailer: %v", err)
			}
			cmd := exec.Command("perl", "-MMail::Mailer", "-e",
				`my $m = Mail::Mailer->new("sendmail"); $m->open({From => "me\@x.example", To => ["joe\@x.example", "ann\@x.example"], Subject => "a report"}); print $m "body\n.\nmore\n"; $m->close or exit 1`)
			cmd.Env = append(os.Environ(), "PERL_MAILERS=sendmail:"+sendmail, "PERL_HASH_SEED=0", "PERL_PERTURB_KEYS=0")
			return cmd
		}, "", []string{"ann@x.example", "joe@x.example"}},
		"a script like logwatch's": {[]string{"perl"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("perl", "-e",
				`open(my $m, "|-", "$ARGV[0] -t") or die; print $m "To: root\nFrom: Logwatch <root\@x.example>\nSubject: Logwatch for host\nMIME-Version: 1.0\n\n ### begin ###\n"; close $m or exit 1`, sendmail)
		}, "", []string{"root"}},
		"a script that pipes text": {[]string{"sh"}, func(t *testing.T, dir, sendmail string) *exec.Cmd {
			return exec.Command("sh", "-c", `(echo "To: root"; echo "Subject: disk"; echo; cat) | "$0" -oi -t -f daemon@x.example`, sendmail)
		}, report, []string{"root"}},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, tt.needs...)
			var got [2][]message
			for i, m := range []*mta{theirs, own} {
				dir := t.TempDir()
				cmd := tt.call(t, dir, m.path)
				cmd.Dir, cmd.Stdin = dir, strings.NewReader(tt.in)
				if cmd.Env == nil {
					cmd.Env = os.Environ()
				}
				cmd.Env = append(cmd.Env, "HOME="+dir, "LC_ALL=C.UTF-8", "TERM=dumb")
				said := run(t, cmd)
				if got[i] = m.take(t); len(got[i]) == 0 {
					t.Fatalf("%s got nothing: %s", m.name, said)
				}
			}
			if d := cmp.Diff(got[0], got[1], cmp.AllowUnexported(message{})); d != "" {
				t.Errorf("Postfix's -, ours +\n%s", d)
			}
			if tt.want != nil {
				if d := cmp.Diff(tt.want, got[1][0].rcpts); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
