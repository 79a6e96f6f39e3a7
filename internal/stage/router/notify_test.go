package router

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"zmailer/internal/run/logtest"
)

// poll sets how often router/ is looked at when no notification comes.
func (o *office) poll(every string) {
	o.t.Helper()
	path := filepath.Join(o.conf, "zmailer.conf")
	b, err := os.ReadFile(path)
	if err != nil {
		o.t.Fatal(err)
	}
	o.table("zmailer.conf", strings.Replace(string(b), "ROUTERPOLL=1s", "ROUTERPOLL="+every, 1))
}

// routedSoon submits a message and waits until a router has routed it.
func (o *office) routedSoon(t *testing.T, p *process, rcpt string) {
	o.t.Helper()
	a := o.submit(plain(rcpt))
	p.log.Await(t, "msg=routed", "id="+a.ID.String())
}

// M9: more happens in router/ than the kernel keeps notifications of, and the message's
// own is among those that are lost: it is routed without the next poll, and so is mail
// that comes afterwards.
func TestLostNotificationsAreMadeGoodAtOnce(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip("no inotify here: ", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit > 100_000 {
		t.Skip("the kernel keeps too many events: ", string(text))
	}
	o := newOffice(t, nil)
	o.poll("1h")
	p := o.run(t, program(t), io.Discard)
	o.routedSoon(t, p, "a@example.net")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	x, y := filepath.Join(o.dir, "router", ".x"), filepath.Join(o.dir, "router", ".y")
	if err := os.WriteFile(x, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range limit/4 + 1000 {
		if err := errors.Join(os.Rename(x, y), os.Rename(y, x)); err != nil {
			t.Fatal(err)
		}
	}
	lost := o.submit(plain("lost@example.net"))
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.log.Await(t, "msg=routed", "id="+lost.ID.String())
	for i := range 5 {
		o.routedSoon(t, p, fmt.Sprintf("b%d@example.net", i))
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code: got %d\n%s", code, p.log)
	}
}

// watched reports whether a process watches a directory by inotify.
func watched(t *testing.T, pid int, dir string) bool {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return false
	}
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		// inotify wd:1 ino:9a1b2 sdev:fe00001 ...; a file may be closed by now.
		b, _ := os.ReadFile(name)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "inotify ") && strings.Contains(line, fmt.Sprintf(" ino:%x ", st.Ino)) {
				return true
			}
		}
	}
	return false
}

// M9: router/ is replaced by another directory while routers run: mail in it is routed
// by the poll, and by notification from then on.
func TestRouterDirectoryIsReplaced(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	p := o.run(t, program(t), io.Discard)
	o.routedSoon(t, p, "a@example.net")
	dir := filepath.Join(o.dir, "router")
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	o.routedSoon(t, p, "b@example.net")
	logtest.Eventually(t, "it watches the new directory", func() bool { return watched(t, p.cmd.Process.Pid, dir) })
	for i := range 5 {
		o.routedSoon(t, p, fmt.Sprintf("c%d@example.net", i))
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code: got %d\n%s", code, p.log)
	}
	if p.log.Count("level=ERROR") != 0 {
		t.Errorf("log:\n%s", p.log)
	}
}

// M9: the kernel gives no watch (fs.inotify.max_user_watches): mail is routed by the
// poll, which says so once; when it gives one again, by notification.
func TestRouterWithoutAWatchPolls(t *testing.T) {
	t.Parallel()
	// In a user namespace of its own the limit is the test's.
	begin := filepath.Join(t.TempDir(), "router")
	script := "#!/bin/sh\necho 0 >/proc/sys/user/max_inotify_watches || exit 99\nexec '" + program(t) + "' \"$@\"\n"
	if err := os.WriteFile(begin, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("unshare", "-Ur", "true").CombinedOutput(); err != nil {
		t.Skipf("no user namespaces here: %v %s", err, out)
	}
	outer := filepath.Join(t.TempDir(), "router")
	if err := os.WriteFile(outer, []byte("#!/bin/sh\nexec unshare -Ur "+begin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, nil)
	p := o.run(t, outer, io.Discard)
	dir := filepath.Join(o.dir, "router")
	p.log.Await(t, "msg=watch-refused", "no space left")
	for i := range 3 {
		o.routedSoon(t, p, fmt.Sprintf("a%d@example.net", i))
	}
	if watched(t, p.cmd.Process.Pid, dir) {
		t.Error("the kernel gave a watch")
	}
	raise := exec.Command("nsenter", "-t", strconv.Itoa(p.cmd.Process.Pid), "-U", "--preserve-credentials", "sh", "-c", "echo 100 >/proc/sys/user/max_inotify_watches")
	if out, err := raise.CombinedOutput(); err != nil {
		t.Fatalf("raise the limit: %v %s", err, out)
	}
	logtest.Eventually(t, "it has a watch", func() bool { return watched(t, p.cmd.Process.Pid, dir) })
	for i := range 3 {
		o.routedSoon(t, p, fmt.Sprintf("b%d@example.net", i))
	}
	if code := p.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code: got %d\n%s", code, p.log)
	}
	if n := p.log.Count("msg=watch-refused"); n != 1 {
		t.Errorf("watch-refused was said %d times, want once\n%s", n, p.log)
	}
}
