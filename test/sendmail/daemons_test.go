package sendmail

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// private returns a command that runs a shell script in a mount namespace of its own,
// where sendmail is another program. The machine itself is not changed.
func private(t *testing.T, sendmail, script string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace needs root")
	}
	if _, err := os.Stat("/usr/sbin/sendmail"); err != nil {
		t.Skipf("nothing to lay another sendmail over: %v", err)
	}
	cmd := exec.Command("/bin/sh", "-ec", `mount --make-rprivate /
mount --bind "$0" "$(readlink -f /usr/sbin/sendmail)"
mount -t tmpfs tmpfs /run
`+script, sendmail)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	cmd.Env = append(os.Environ(), "LC_ALL=C", "EDITOR=true")
	return cmd
}

// daemonMail runs a daemon's script until its sendmail was called, and returns the message.
// The script ends with exec; its processes end with it, because it is the first of a
// namespace.
func daemonMail(t *testing.T, m *mta, script string) []message {
	t.Helper()
	cmd := private(t, m.path, script)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespaces: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline, tick := time.NewTimer(patience), time.NewTicker(50*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		if got := m.take(t); len(got) > 0 {
			_ = cmd.Process.Kill()
			<-ended
			return got
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended without mail: %v\n%s", err, said.String())
		case <-deadline.C:
			_ = cmd.Process.Kill()
			<-ended
			t.Fatalf("no mail: %s", said.String())
		case <-tick.C: // a queue directory of another program has no event
		}
	}
}

// Loc4, Loc5: what cron and at send of their jobs' output is the same as with Postfix.
func TestLoc4CronAndAt(t *testing.T) {
	for name, tt := range map[string]struct {
		needs  []string
		script string
		body   string
	}{
		"cron": {[]string{"cron"}, `mount -t tmpfs tmpfs /var/spool/cron
mkdir -m 755 /var/spool/cron/crontabs
mount -t tmpfs tmpfs /etc/cron.d
printf 'MAILTO=joe@x.example\n@reboot root echo the disk is full\n' > /etc/cron.d/test
: > /run/empty; mount --bind /run/empty /etc/crontab
exec cron -f`, "the disk is full\n"},
		"at": {[]string{"at", "atd"}, `mount -t tmpfs tmpfs /var/spool/cron
mkdir -p /var/spool/cron/atjobs /var/spool/cron/atspool
chown daemon:daemon /var/spool/cron/atjobs /var/spool/cron/atspool
chmod 1770 /var/spool/cron/atjobs /var/spool/cron/atspool
printf 0 > /var/spool/cron/atjobs/.SEQ; chown daemon:daemon /var/spool/cron/atjobs/.SEQ; chmod 600 /var/spool/cron/atjobs/.SEQ
echo 'echo the disk is full' | LOGNAME=root at now
exec atd -f -b 0`, "the disk is full\n"},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, tt.needs...)
			var got [2][]message
			for i, m := range []*mta{postfix(t), ours(t)} {
				got[i] = daemonMail(t, m, tt.script)
			}
			if d := cmp.Diff(got[0], got[1], cmp.AllowUnexported(message{})); d != "" {
				t.Errorf("Postfix's -, ours +\n%s", d)
			}
			if body := got[1][0].body; !strings.HasSuffix(body, tt.body) {
				t.Errorf("the body is %q", body)
			}
		})
	}
}
