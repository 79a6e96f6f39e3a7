package attack

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// Sec1: somebody has taken over a daemon, and has the rights of DAEMONUSER: each name that
// root's programs open, make, lock or give away is a link to a file of root's, a fifo or a
// directory's link. Root's zmctl init, check --repair and the rest neither hang nor change
// what the daemons' user could not change.
func TestSec1RootsProgramsChangeNothingForDaemonuser(t *testing.T) {
	need(t)
	for what, plant := range map[string]func(w *world, d *attacker, path string) result{
		"link to root's file": func(w *world, d *attacker, path string) result {
			return d.try(op{Do: "link", To: w.root(), Path: path})
		},
		"link to another user's file": func(w *world, d *attacker, path string) result {
			return d.try(op{Do: "link", To: w.keys(), Path: path})
		},
		"symlink to root's file": func(w *world, d *attacker, path string) result {
			return d.try(op{Do: "symlink", To: w.root(), Path: path})
		},
		"fifo": func(w *world, d *attacker, path string) result {
			return d.try(op{Do: "fifo", Path: path, Mode: 0o666})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, asDaemon, nil)
			d := newAttacker(t, w.daemon.uid, w.daemon.gid)
			planted := 0
			for _, path := range append(w.examples(false), w.examples(true)...) {
				if !strings.HasPrefix(path, w.s.PostOffice()+"/") {
					continue
				}
				if info, err := os.Lstat(path); err == nil && info.IsDir() {
					continue
				}
				if r := plant(w, d, path); r.Error == "" {
					planted++
				}
			}
			if planted < 60 {
				t.Fatalf("he planted %d names", planted)
			}
			w.rootsPrograms()
		})
	}
	t.Run("directories are links", func(t *testing.T) {
		t.Parallel()
		w := prepare(t, asDaemon, nil)
		d := newAttacker(t, w.daemon.uid, w.daemon.gid)
		out := filepath.Join(w.s.Dir, "out")
		w.must(os.Mkdir(out, 0o755))
		w.must(os.WriteFile(filepath.Join(out, "4711-1"), []byte("root's\n"), 0o600))
		for _, name := range []string{"queue", "transport", "owners", "orders", "quarantine", "removed", "ledger", "imports", "router", "deferred",
			"lastgood", "verify", "clients"} {
			d.try(op{Do: "rename", Path: w.po(name), To: w.po(name + ".was")})
			d.do(op{Do: "symlink", Path: w.po(name), To: out})
		}
		// Empty files below this name are removed: those of an earlier version.
		empty := filepath.Join(w.s.Dir, "outer", "inner", "empty")
		w.must(os.MkdirAll(filepath.Dir(empty), 0o755))
		w.must(os.WriteFile(empty, nil, 0o600))
		d.do(op{Do: "symlink", Path: w.po(postoffice.Staging), To: filepath.Join(w.s.Dir, "outer")})
		w.rootsPrograms()
		if _, err := os.Stat(empty); err != nil {
			t.Errorf("root's empty file: %v", err)
		}
		list, err := os.ReadDir(out)
		w.must(err)
		for _, e := range list {
			info, err := e.Info()
			w.must(err)
			if e.Name() != "4711-1" || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode().Perm() != 0o600 || info.Size() != 7 {
				t.Errorf("root's directory has %s, %v, uid %d, %d bytes", e.Name(), info.Mode(), info.Sys().(*syscall.Stat_t).Uid, info.Size())
			}
		}
		if info, err := os.Stat(out); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode().Perm() != 0o755 {
			t.Errorf("root's directory is %v, %v", info.Mode(), err)
		}
	})
}

// rootsPrograms runs root's programs on the postoffice and looks whether what is not the
// daemons' user's is as it was. Each may refuse; none may hang.
func (w *world) rootsPrograms() {
	w.Helper()
	for _, args := range [][]string{{"check"}, {"check", "--repair"}, {"init"}, {"queue"}, {"status"}, {"orders"}, {"hold", "--all", "--yes"},
		{"remove", "--all", "--yes"}, {"start", "--direct"}, {"stop"}, {"init"}, {"check", "--repair"}} {
		said, code := w.zmctl(args...)
		w.Logf("zmctl %q: %d\n%.600s", args, code, said)
	}
	// start may have made it beside its terminal; nothing of it stays.
	list, err := w.s.Processes()
	w.must(err)
	for _, p := range list {
		w.must(p.Kill())
	}
	for path, was := range w.canaries {
		if is := w.look(path); is != was {
			w.Errorf("%s is %+v now, was %+v", path, is, was)
		}
	}
	if _, err := os.Lstat(filepath.Join(w.s.Dir, "canary", "made")); !errors.Is(err, fs.ErrNotExist) {
		w.Errorf("a file was made through a link: %v", err)
	}
}

// Sec1: a pipe program of a user's, of a zmctl run on root's terminal, cannot open that
// terminal, so it cannot type into it.
func TestSec1ProgramOfAUserHasNoTerminal(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, mode, nil)
			master, slave := terminal(t)
			defer master.Close()
			w.s.Launch = onTerminal(slave)
			said := filepath.Join(w.s.Dir, "tmp", "said")
			dir := filepath.Join(w.s.Dir, "forward", w.alice.name)
			w.must(os.Mkdir(dir, 0o755))
			script := filepath.Join(w.s.Dir, "tmp", "try")
			w.must(os.WriteFile(script, []byte("#!/bin/sh\ncat >/dev/null\nif (: </dev/tty) 2>/dev/null; then echo open; else echo closed; fi >"+said+"\n"), 0o755))
			forward := filepath.Join(dir, "forward")
			w.must(os.WriteFile(forward, []byte("|"+script+"\n"), 0o644))
			w.must(errors.Join(os.Chown(dir, w.alice.uid, w.alice.gid), os.Chown(forward, w.alice.uid, w.alice.gid)))
			w.start()
			w.smtp(w.alice.name + "@mta.example")
			w.await("what the program found", func() bool { b, err := os.ReadFile(said); return err == nil && len(b) > 0 })
			if b, err := os.ReadFile(said); err != nil || string(b) != "closed\n" {
				t.Errorf("/dev/tty of the program: %q, %v", b, err)
			}
		})
	}
}

// terminal makes a pseudo terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	assert.Must(t, err)
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	assert.Must(t, err)
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// onTerminal starts a program in a session whose terminal this is.
func onTerminal(slave *os.File) func(cmd *exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		cmd.Stdin = slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		return cmd.Start()
	}
}
