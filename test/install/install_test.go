// Package install puts the programs onto machines as their postmasters do: make install,
// the packages for Debian and RPM in a fresh root, and the units by systemd's own tools.
package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// bin is where TestMain has built the programs.
var bin string

func TestMain(m *testing.M) {
	for env, be := range map[string]func(){insideEnv: inside, bootEnv: bootInside, sinkEnv: beFarHost, brokenEnv: beBroken} {
		if os.Getenv(env) != "" {
			be()
			return
		}
	}
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// top returns the directory of the source.
func top(t *testing.T) string {
	t.Helper()
	dir := assert.Get(filepath.Abs("../.."))(t)
	return dir
}

// run runs a program and gives what it says.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = top(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// installed returns a root that packaging/install.sh has filled with the test's programs.
func installed(t *testing.T, env ...string) string {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command("./packaging/install.sh")
	cmd.Dir = top(t)
	cmd.Env = append(os.Environ(), append([]string{"BIN=" + bin, "DESTDIR=" + root, "PREFIX=/usr", "MAN=/nonexistent"}, env...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	return root
}

// need skips a test without a program.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("skipped: %s is not here", program)
	}
}

// DESTDIR and PREFIX are obeyed, and the links lead to programs.
func TestInstallGoesWhereItIsTold(t *testing.T) {
	for _, prefix := range []string{"/usr", "/usr/local", "/opt/mail"} {
		root := installed(t, "PREFIX="+prefix)
		for _, name := range []string{"sbin/zmctl", "sbin/sendmail", "bin/mailq", "bin/newaliases", "libexec/zmailer/ta-mailbox", "lib/sysusers.d/zmailer.conf"} {
			if _, err := os.Stat(filepath.Join(root, prefix, name)); err != nil {
				t.Error(err)
			}
		}
		unit, err := os.ReadFile(filepath.Join(root, prefix, "lib/systemd/system/zmailer-router.service"))
		if want := "ExecStart=" + prefix + "/libexec/zmailer/router --config /etc/zmailer/zmailer.conf\n"; err != nil || !strings.Contains(string(unit), want) || strings.Contains(string(unit), "@LIB") {
			t.Errorf("want %q: %v\n%s", want, err, unit)
		}
	}
}

// A second installation leaves the configuration as the postmaster has it.
func TestInstallKeepsTheConfiguration(t *testing.T) {
	root := installed(t)
	conf := filepath.Join(root, "etc/zmailer")
	first, err := os.ReadFile(filepath.Join(conf, "zmailer.conf"))
	for _, want := range []string{"\nPOSTOFFICE=/var/spool/postoffice\n", "\nSMTPLISTEN=127.0.0.1:25\n", "\nDAEMONUSER=zmailer\n"} {
		if err != nil || !strings.Contains(string(first), want) {
			t.Errorf("zmailer.conf has no %q: %v", want, err)
		}
	}
	assert.Must(t, os.WriteFile(filepath.Join(conf, "routes"), []byte("# mine\n"), 0o644))
	assert.Must(t, os.Remove(filepath.Join(conf, "aliases")))
	cmd := exec.Command("./packaging/install.sh")
	cmd.Dir = top(t)
	cmd.Env = append(os.Environ(), "BIN="+bin, "DESTDIR="+root, "PREFIX=/usr")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(conf, "routes")); err != nil || string(got) != "# mine\n" {
		t.Errorf("routes: %q %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(conf, "aliases")); err != nil {
		t.Error(err)
	}
}
