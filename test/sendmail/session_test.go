package sendmail

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// Loc4: SMTP clients that talk to the standard input and output of sendmail -bs.
func TestLoc4ClientsOfASession(t *testing.T) {
	own := ours(t)
	want := []message{{sender: "me@x.example", rcpts: []string{"ann@x.example", "joe@x.example"}, header: []string{
		"From: me@x.example", "To: joe@x.example", "Subject: a report"}, body: "body\n.\nmore\n"}}
	const text = "From: me@x.example\nTo: joe@x.example\nSubject: a report\n\nbody\n.\nmore\n"
	for name, tt := range map[string]struct {
		needs []string
		call  func(t *testing.T) *exec.Cmd
		in    string
	}{
		"swaks --pipe": {[]string{"swaks"}, func(t *testing.T) *exec.Cmd {
			return exec.Command("swaks", "--pipe", own.path+" -bs", "--helo", "client.example", "--from", "me@x.example", "--to", "joe@x.example,ann@x.example",
				"--data", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", `\n`))
		}, ""},
		"Python's smtplib": {[]string{"python3"}, func(t *testing.T) *exec.Cmd {
			return exec.Command("python3", "-c", `
import smtplib, socket, subprocess, sys
here, there = socket.socketpair()
p = subprocess.Popen([sys.argv[1], "-bs"], stdin=there, stdout=there)
there.close()
s = smtplib.SMTP(local_hostname="client.example")
s.sock, s.file = here, here.makefile("rb")
assert s.getreply()[0] == 220
s.ehlo()
assert s.has_extn("8bitmime") and s.has_extn("dsn")
s.sendmail("me@x.example", ["joe@x.example", "ann@x.example"], sys.stdin.read(), mail_options=["BODY=8BITMIME", "RET=HDRS"], rcpt_options=["NOTIFY=FAILURE,DELAY"])
s.quit()
here.close()
sys.exit(p.wait())
`, own.path)
		}, text},
		"msmtp": {[]string{"msmtp"}, func(t *testing.T) *exec.Cmd {
			host, port, err := net.SplitHostPort(listen(t, own.path))
			assert.Must(t, err)
			return exec.Command("msmtp", "--file=/dev/null", "--host="+host, "--port="+port, "--domain=client.example", "--from=me@x.example", "--set-date-header=off", "--set-msgid-header=off", "--", "joe@x.example", "ann@x.example")
		}, text},
		"a shell script": {[]string{"sh"}, func(t *testing.T) *exec.Cmd {
			// Its lines end in LF alone.
			return exec.Command("sh", "-c", `(printf 'HELO x\nMAIL FROM: me@x.example\nRCPT TO: joe@x.example\nRCPT TO: <ann@x.example>\nDATA\n'; sed 's/^[.]/../'; printf '.\nQUIT\n') | "$0" -bs`, own.path)
		}, text},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, tt.needs...)
			cmd := tt.call(t)
			cmd.Stdin = strings.NewReader(tt.in)
			said := run(t, cmd)
			got := own.take(t)
			if d := cmp.Diff(want, got, cmp.AllowUnexported(message{})); d != "" {
				t.Errorf("want -, got +\n%s%s", d, said)
			}
		})
	}
}

// listen runs a session for each connection, as inetd does.
func listen(t *testing.T, sendmail string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			f, err := c.(*net.TCPConn).File()
			c.Close()
			if err != nil {
				t.Error(err)
				return
			}
			cmd := exec.Command(sendmail, "-bs")
			cmd.Stdin, cmd.Stdout = f, f
			if err := cmd.Start(); err != nil {
				t.Error(err)
			}
			f.Close()
			running.Go(func() {
				if err := cmd.Wait(); err != nil {
					t.Errorf("-bs: %v", err)
				}
			})
		}
	})
	return l.Addr().String()
}
