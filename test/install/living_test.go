package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/docs"
)

// A Debian with systemd, from the package to its removal: the commands of
// docs/install.md, and that its units start, stop, hold and are held as it says (M39, M40).
func TestMachineWithSystemd(t *testing.T) {
	t.Parallel()
	root := freshRoot(t)
	need(t, "systemd-nspawn")
	first, second := packageOf(t, "deb", "0.1.0"), packageOf(t, "deb", "0.1.1")
	for _, deb := range []string{first, second} {
		run(t, "cp", deb, filepath.Join(root, "root"))
	}
	far := filepath.Join(root, "var/tmp/far")
	assert.Must(t, os.MkdirAll(far, 0o777))
	run(t, "chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "alice")
	m := boot(t, root)
	follow := func(title string) func(*testing.T) { return func(t *testing.T) { m.follow(t, "install.md", title) } }
	script := func(name string, args ...string) func(*testing.T) {
		return func(t *testing.T) { m.script(t, name, args...) }
	}
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"five commands", follow("Five commands")},
		{"it runs", script("running.sh")},
		{"mail waits", script("waits.sh")},
		{"a boot", func(t *testing.T) { m.reboot() }},
		{"it runs again", script("running.sh")},
		{"mail has waited", script("waited.sh")},
		{"rooms", script("room.sh")},
		{"the confinement", func(t *testing.T) { m.follow(t, "privileges.md", "Testing the confinement") }},
		{"users", script("users.sh")},
		{"killed", script("killed.sh")},
		{"watchdog", script("watchdog.sh")},
		{"verbs", script("verbs.sh")},
		{"keys of root", func(t *testing.T) {
			farHost(t, m, far)
			m.script(t, "keys.sh")
		}},
		{"in flight", func(t *testing.T) {
			farHost(t, m, far)
			m.script(t, "flight.sh")
		}},
		{"bad configuration", script("refused.sh")},
		{"the page about units", follow("Units")},
		{"socket and upgrade", script("socket.sh", filepath.Base(second))},
		{"upgraded", script("upgraded.sh")},
		{"removed", script("removed.sh", filepath.Base(first))},
		{"make install", func(t *testing.T) { m.makeInstall(t) }},
		{"from the source", follow("From the source")},
		{"it runs from the source", script("source.sh")},
	} {
		// Each goes on from what the one before has left.
		if !t.Run(step.name, step.do) {
			break
		}
	}
}

// makeInstall does what make install does, with the programs that are built already.
func (m *machine) makeInstall(t *testing.T) {
	t.Helper()
	cmd := exec.Command("./packaging/install.sh")
	cmd.Dir = top(t)
	cmd.Env = append(os.Environ(), "BIN="+filepath.Join(bin, "packages/root/usr/libexec/zmailer"), "DESTDIR="+m.root, "PREFIX=/usr/local", "MAN=/nonexistent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
}

// follow types what a section of a page shows, and compares what comes.
func (m *machine) follow(t *testing.T, page, title string) {
	t.Helper()
	commands, err := docs.ForElsewhere("../../docs", page, title)
	if err == nil {
		err = commands.Run(func(text string) *exec.Cmd { return m.command(t.Context(), "bash", "-c", text) })
	}
	if err != nil {
		t.Fatalf("%s: %v", title, err)
	}
}
