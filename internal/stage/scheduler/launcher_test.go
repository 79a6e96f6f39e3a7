package scheduler

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op11: the launcher, which stays root, starts agents by scheduler.conf and zmailer.conf as they are
// now, without a restart. A file that cannot be used, or that others than root can write, leaves it
// with what it had, and its error is reported.
func TestOp11LauncherReadsItsFilesAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose file scheduler.conf has to be")
	}
	dir := t.TempDir()
	main, file := filepath.Join(dir, "zmailer.conf"), filepath.Join(dir, "scheduler.conf")
	changes := 0
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		// A change is seen by its time: each has another one.
		changes++
		when := time.Now().Add(time.Duration(changes-100) * time.Minute)
		assert.Must(t, os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode), os.Chtimes(path, when, when))
	}
	const site = "POSTOFFICE=/nowhere\nPOSTMASTER="
	write(main, site+"one\n", 0o644)
	write(file, "*/*\n\tcommand=\"first ${POSTMASTER}\"\n", 0o644)
	l := NewLauncher(assert.Get(config.Load(main))(t), "nobody")
	expect := func(when string, usable bool, want ...string) {
		t.Helper()
		if err := l.Check(); (err == nil) != usable {
			t.Errorf("%s: got %v", when, err)
		}
		got, err := l.Launch("smtp", "far.example")
		if err != nil || !slices.Equal(got.Argv, want) {
			t.Errorf("%s: starts %q, %v, want %q", when, got.Argv, err, want)
		}
	}
	expect("at the start", true, "first", "one")
	write(file, "*/*\n\tcommand=\"second ${POSTMASTER}\"\n", 0o644)
	expect("another scheduler.conf", true, "second", "one")
	write(file, "*/*\n\tcomand=\"third\"\n", 0o644)
	expect("one that cannot be used", false, "second", "one")
	write(file, "*/*\n\tcommand=\"fourth\" user=games\n", 0o666)
	expect("one that all can write", false, "second", "one")
	write(file, "*/*\n\tcommand=\"fifth ${POSTMASTER}\"\n", 0o644)
	expect("a mended one", true, "fifth", "one")
	write(main, site+"two\n", 0o644)
	expect("another zmailer.conf", true, "fifth", "two")
	write(main, site+"three\nMAXRCPT=many\n", 0o644)
	expect("one that cannot be used", false, "fifth", "two")
	write(main, "POSTOFFICE=/elsewhere\nPOSTMASTER=four\n", 0o644)
	expect("a mended one", true, "fifth", "four")
	assert.Equal(t, l.Dir, "/nowhere/transport", "the directory of agents")
	write(file, "local/*\n\tcommand=\"sixth\"\n", 0o644)
	if got, err := l.Launch("smtp", "far.example"); err == nil {
		t.Errorf("no clause serves the host: starts %q", got.Argv)
	}
}
