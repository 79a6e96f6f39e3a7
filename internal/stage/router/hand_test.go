package router

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// K10: a postmaster's hands in router/ while two real routers work: nothing ends them,
// what was done is said, and the rest goes on.
func TestHandsInRouterWhileRoutersRun(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	path := program(t)
	all := &logtest.Buffer{}
	routers := []*process{o.run(t, path, all), o.run(t, path, all)}
	dir := filepath.Join(o.dir, "router")
	message := filepath.Join(t.TempDir(), "message")
	put := func(rcpt string) {
		t.Helper()
		assert.Must(t, os.WriteFile(message, []byte(plain(rcpt)), 0o700))
	}
	command := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	routed := func(n int) {
		t.Helper()
		logtest.Eventually(t, fmt.Sprint(n, " messages are handed over"), func() bool { return len(o.names("transport")) >= n })
	}
	all.AwaitCount(t, 2, "msg=started")

	// Copied in: the name is there before the content is.
	put("copied@example.net")
	command("cp", message, filepath.Join(dir, "4711"))
	// Moved in from outside, under the number of another file.
	put("moved@example.net")
	command("mv", message, filepath.Join(dir, "4712"))
	// What is no message.
	command("mkdir", filepath.Join(dir, "4713"))
	command("ln", "-s", "/etc/passwd", filepath.Join(dir, "4714"))
	command("mkfifo", filepath.Join(dir, "4715"))
	command("cp", "/dev/null", filepath.Join(dir, ".hidden"))
	routed(2)

	// Touched and removed while they are claimed, each as its turn has it.
	gone := 0
	for i := range 300 {
		a := o.submit(plain(fmt.Sprintf("a%d@example.net", i)))
		name := filepath.Join(o.dir, a.Name)
		if i%3 == 0 {
			// An error means that a router has the file.
			_ = os.Chtimes(name, time.Now(), time.Now().Add(-time.Hour))
		}
		if i%3 == 1 && removeAny(t, dir, a) {
			gone++
		}
	}
	routed(302 - gone)

	// Unreadable for a while.
	if os.Getuid() != 0 {
		secret := filepath.Join(t.TempDir(), "secret")
		assert.Must(t, errors.Join(os.WriteFile(secret, []byte(plain("secret@example.net")), 0o000), os.Rename(secret, filepath.Join(dir, "4716"))))
		all.Await(t, "msg=not-routed", "name=router/4716", "permission denied")
		assert.Must(t, os.Chmod(filepath.Join(dir, "4716"), 0o600))
		routed(303 - gone)
	}
	for _, p := range routers {
		assert.Equal(t, p.stop(syscall.SIGTERM), 0, "exit code: %s", p.log)
	}
	assert.Equal(t, all.Count("msg=crash"), 0, "panics in: %s", all)
	left := strings.Join(o.names("router"), " ")
	assert.Equal(t, left, ".hidden 4713 4714 4715", "router/")
	for line := range strings.Lines(all.String()) {
		// A message that is removed while a router works on it is reported as gone, or as one that
		// cannot be routed just now; nothing else is an error.
		if strings.Contains(line, "level=ERROR") && !strings.Contains(line, "msg=not-routed") && !strings.Contains(line, "msg=set-aside") {
			t.Errorf("log: %s", line)
		}
	}
	t.Logf("%d of 100 messages were removed in time, %d of them from a router's hands", gone, all.Count("msg=gone"))
}

// removeAny removes a message from router/, free or claimed, and reports whether it did.
func removeAny(t *testing.T, dir string, a postoffice.Accepted) bool {
	t.Helper()
	ino := filepath.Base(a.Name)
	if os.Remove(filepath.Join(dir, ino)) == nil {
		return true
	}
	claimed := assert.Get(filepath.Glob(filepath.Join(dir, ino+"-*")))(t)
	for _, name := range claimed {
		if os.Remove(name) == nil {
			return true
		}
	}
	return false
}
