package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// packageOf makes a package of a version; kind is deb or rpm. What it holds is built once.
func packageOf(t *testing.T, kind, version string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: it takes a minute")
	}
	need(t, "make")
	dir := filepath.Join(bin, "packages")
	file := func() string {
		found, err := filepath.Glob(filepath.Join(dir, "*"+version+"-1[._]*."+kind))
		if err != nil || len(found) != 1 {
			return ""
		}
		return found[0]
	}
	if file() != "" {
		return file() // an earlier test has made it
	}
	args := []string{kind, "VERSION=" + version, "PACKAGE=" + dir}
	if _, err := os.Stat(filepath.Join(dir, "root")); err == nil {
		args = append(args, "--old-file=package-root")
	}
	cmd := exec.Command("make", args...)
	cmd.Dir = top(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "dial tcp") || strings.Contains(string(out), "lookup proxy.golang.org") {
			t.Skipf("skipped: nfpm is not here and cannot be fetched:\n%s", out)
		}
		t.Fatalf("make %s: %v\n%s", kind, err, out)
	}
	if file() == "" {
		t.Fatalf("make %s %s made none", kind, version)
	}
	return file()
}

// into copies a file to the top of a root and gives its name there.
func into(t *testing.T, root, file string) string {
	t.Helper()
	name := "/" + filepath.Base(file)
	run(t, "cp", file, root+name)
	return name
}

// Programs, units and settings of the packages, by the packages' own tools.
func TestPackagesHoldWhatAMachineNeeds(t *testing.T) {
	want := []string{
		"/usr/libexec/zmailer/submit", "/usr/libexec/zmailer/ta-mailbox", "/usr/sbin/zmctl", "/usr/lib/systemd/system/zmailer.target",
		"/usr/lib/sysusers.d/zmailer.conf", "/usr/lib/tmpfiles.d/zmailer.conf", "/etc/zmailer/zmailer.conf", "/etc/zmailer/scheduler.conf",
	}
	t.Run("deb", func(t *testing.T) {
		need(t, "dpkg-deb")
		deb := packageOf(t, "deb", "0.0.1")
		list := run(t, "dpkg-deb", "--contents", deb)
		for _, name := range want {
			if !strings.Contains(list, "."+name) {
				t.Errorf("no %s in\n%s", name, list)
			}
		}
		if strings.Contains(list, "sbin/sendmail") || strings.Contains(list, "var/spool") {
			t.Errorf("it has what alternatives and zmctl init make:\n%s", list)
		}
		control := t.TempDir()
		run(t, "dpkg-deb", "--control", deb, control)
		conffiles := read(t, filepath.Join(control, "conffiles"))
		for _, name := range []string{"zmailer.conf", "scheduler.conf", "routes", "aliases", "fqdnaliases", "localnames", "replies"} {
			if !strings.Contains(conffiles, "/etc/zmailer/"+name+"\n") {
				t.Errorf("%s is no conffile:\n%s", name, conffiles)
			}
		}
	})
	t.Run("rpm", func(t *testing.T) {
		need(t, "rpm")
		rpm := packageOf(t, "rpm", "0.0.1")
		list := run(t, "rpm", "-qpl", rpm)
		for _, name := range want {
			if !strings.Contains(list, name+"\n") {
				t.Errorf("no %s in\n%s", name, list)
			}
		}
		if conf := run(t, "rpm", "-qpc", rpm); !strings.Contains(conf, "/etc/zmailer/zmailer.conf") {
			t.Errorf("configuration files: %s", conf)
		}
	})
}

// A fresh Debian: installed, run, mail sent, upgraded, removed, purged, and installed by
// RPM. What waits in the postoffice is never touched (M39).
func TestPackageLivesOnAFreshMachine(t *testing.T) {
	root := freshRoot(t)
	// The other machine has systemd (TestMachineWithSystemd).
	assert.Must(t, os.Remove(filepath.Join(root, "usr/bin/systemctl")))
	common := read(t, "testdata/common.sh")
	assert.Must(t, os.WriteFile(filepath.Join(root, "common.sh"), []byte(common), 0o644))
	first, second := into(t, root, packageOf(t, "deb", "0.0.1")), into(t, root, packageOf(t, "deb", "0.0.2"))
	within(t, root, "first.sh", first)
	if out := within(t, root, "upgrade.sh", second); !strings.Contains(out, "0.0.2") {
		t.Errorf("no new version:\n%s", out)
	}
	within(t, root, "remove.sh", first)
	t.Run("rpm", func(t *testing.T) {
		need(t, "rpm")
		for i, version := range []string{"0.0.1", "0.0.2"} {
			verb := []string{"--install", "--upgrade"}[i]
			run(t, "rpm", "--root="+root, "--nodeps", verb, packageOf(t, "rpm", version))
			within(t, root, "rpm.sh")
		}
		run(t, "rpm", "--root="+root, "--erase", "zmailer")
		if _, err := os.Lstat(filepath.Join(root, "usr/sbin/sendmail")); err == nil {
			t.Error("sendmail is still there")
		}
		if left, err := filepath.Glob(filepath.Join(root, "var/spool/postoffice/queue/*")); err != nil || len(left) == 0 {
			t.Errorf("the mail is gone: %v", err)
		}
	})
}
