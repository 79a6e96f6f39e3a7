package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// script runs one of the package's scripts as on a machine whose files are below a
// directory, with no program there but what the shell and coreutils bring.
func script(t *testing.T, root, name string, args ...string) {
	t.Helper()
	text := read(t, filepath.Join(top(t), "packaging/scripts", name))
	for _, dir := range []string{"/run", "/var/spool"} {
		text = strings.NewReplacer(" "+dir, " "+root+dir, ">"+dir, ">"+root+dir).Replace(text)
	}
	cmd := exec.Command("sh", append([]string{"-c", text, name}, args...)...)
	cmd.Env = []string{"PATH=" + filepath.Join(root, "bin")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, args, err, out)
	}
}

// That an installation is the first is known for as long as it lasts: one that failed does
// not make the next upgrade a first one.
func TestFailedInstallationLeavesNoMark(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"bin", "run"} {
		assert.Must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	for name, target := range map[string]string{"rm": "rm", "getent": "true", "systemctl": "true"} {
		path, err := exec.LookPath(target)
		assert.Must(t, err)
		assert.Must(t, os.Symlink(path, filepath.Join(root, "bin", name)))
	}
	marked := func() bool {
		_, err := os.Stat(filepath.Join(root, "run/zmailer.new"))
		return err == nil
	}
	script(t, root, "preinstall.sh", "install")
	if !marked() {
		t.Error("a first installation is not marked")
	}
	script(t, root, "postremove.sh", "abort-install")
	if marked() {
		t.Error("one that failed stays marked")
	}
	script(t, root, "preinstall.sh", "install")
	script(t, root, "preinstall.sh", "upgrade", "0.0.1")
	if marked() {
		t.Error("an upgrade is marked as a first installation")
	}
}
