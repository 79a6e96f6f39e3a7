package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// R1: a program that was built in the working tree was committed once. Nothing that is
// tracked may be that large, apart from inputs of tests.
func TestNoTrackedFileIsAboveOneMegabyte(t *testing.T) {
	const limit = 1_000_000
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skip("not in a git working tree: ", err)
	}
	dir := strings.TrimSpace(string(top))
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = dir
	list := assert.Get(cmd.Output())(t)
	seen := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue // removed, not yet committed
		}
		assert.Must(t, err)
		seen++
		if info.Size() > limit && !strings.Contains("/"+name, "/testdata/") {
			t.Errorf("%s is tracked and has %d bytes; build output belongs into .gitignore", name, info.Size())
		}
	}
	if seen == 0 {
		t.Error("git lists no tracked file")
	}
}
