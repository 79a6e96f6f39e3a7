package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kind is something that can be planted under a name.
type kind struct {
	what  string
	plant func(w *world, path string) error
}

// kinds returns all that a user can make, and devices, which root makes for him.
func kinds() []kind {
	by := func(o func(w *world) op) func(w *world, path string) error {
		return func(w *world, path string) error {
			x := o(w)
			x.Path = path
			if r := w.a.try(x); r.Error != "" {
				return errors.Join(errors.New(r.Error), r.Errno)
			}
			return nil
		}
	}
	message := func(w *world) []byte {
		return fmt.Appendf(nil, "from <x@far.example>\nto <%s@mta.example>\nenv-end\nSubject: planted\n\nplanted\n", w.alice.name)
	}
	return []kind{
		{"file", by(func(w *world) op { return op{Do: "file", Mode: 0o666, Data: message(w)} })},
		{"complete message", by(func(w *world) op { return op{Do: "file", Mode: 0o770, Data: message(w)} })},
		{"message with the daemons' mark", by(func(w *world) op { return op{Do: "file", Mode: 0o770 | os.ModeSticky, Data: message(w)} })},
		{"file held open", by(func(w *world) op { return op{Do: "hold", Mode: 0o770, Data: message(w)} })},
		{"link to root's file", by(func(w *world) op { return op{Do: "link", To: w.root()} })},
		{"link to the daemons' file", by(func(w *world) op { return op{Do: "link", To: w.theirs()} })},
		{"link to another user's file", by(func(w *world) op { return op{Do: "link", To: w.keys()} })},
		{"symlink to root's file", by(func(w *world) op { return op{Do: "symlink", To: w.root()} })},
		{"symlink to another user's file", by(func(w *world) op { return op{Do: "symlink", To: w.keys()} })},
		{"symlink to nothing", by(func(w *world) op { return op{Do: "symlink", To: filepath.Join(w.s.Dir, "canary", "made")} })},
		{"symlink to a directory", by(func(w *world) op { return op{Do: "symlink", To: w.po("queue")} })},
		{"fifo", by(func(*world) op { return op{Do: "fifo", Mode: 0o777} })},
		{"directory", by(func(*world) op { return op{Do: "dir"} })},
		{"socket", by(func(*world) op { return op{Do: "socket"} })},
		{"device", func(w *world, path string) error {
			if r := w.a.try(op{Do: "device", Path: path, Mode: 0o777}); r.Errno != unix.EPERM && r.Errno != unix.EACCES {
				w.Errorf("he makes a device: %q", r.Error)
			}
			if !w.isOpen(filepath.Dir(path)) {
				return unix.EACCES
			}
			// /dev/zero has no end.
			err := unix.Mknod(path, unix.S_IFCHR|0o777, int(unix.Mkdev(1, 5)))
			return errors.Join(err, os.Chmod(path, 0o777), os.Lchown(path, w.a.uid, w.a.gid))
		}},
	}
}

// Every name of the table, planted in each kind where the attacker may make names: what
// stands there already when a daemon comes to it changes nothing for others.
func TestPlantedNamesHarmNobody(t *testing.T) {
	eachMode(t, func(w *world) {
		for _, k := range kinds() {
			planted := w.plant(k)
			w.check()
			w.tools(k.what)
			w.clear(planted)
			if w.Failed() {
				w.Fatalf("with each name planted as a %s", k.what)
			}
		}
		// All kinds at once, found by daemons that start after a crash.
		for i, path := range w.examples(true) {
			if strings.HasPrefix(path, w.s.PostOffice()) {
				_ = kinds()[i%len(kinds())].plant(w, path) // one may be taken by another
			}
		}
		w.s.Kill()
		w.must(w.s.Start())
		w.s.AwaitDaemons(patience)
		w.check()
		w.tools("everything")
		w.check()
	})
}

// plant plants one kind under every name in the postoffice that he may make.
func (w *world) plant(k kind) (paths []string) {
	w.Helper()
	for _, path := range w.examples(true) {
		if !strings.HasPrefix(path, w.s.PostOffice()) {
			continue // the mail directory has a test of its own
		}
		switch err := k.plant(w, path); {
		case err == nil:
			paths = append(paths, path)
		case !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EADDRINUSE):
			w.Errorf("plant a %s as %s: %v", k.what, path, err)
		}
	}
	if len(paths) < 10 {
		w.Errorf("a %s was planted under %d names", k.what, len(paths))
	}
	return paths
}

// clear removes what is left of what was planted.
func (w *world) clear(paths []string) {
	w.Helper()
	for _, path := range paths {
		w.must(os.RemoveAll(path))
	}
}

// tools has root look at the postoffice, which must not hang.
func (w *world) tools(with string) {
	w.Helper()
	for _, args := range [][]string{{"check"}, {"queue"}, {"status"}, {"check", "--repair"}} {
		if said, code := w.zmctl(args...); code > 2 {
			w.Errorf("zmctl %q with a planted %s: exit code %d\n%.500s", args, with, code, said)
		}
	}
}

// Every other name: each way to make, open, lock, remove or rename it is refused.
func TestClosedNamesAreRefused(t *testing.T) {
	eachMode(t, func(w *world) {
		w.send()
		w.delivered()
		paths := w.examples(false)
		if len(paths) < 60 {
			w.Errorf("the table has %d closed names", len(paths))
		}
		mine := w.po("public/mine")
		w.a.do(op{Do: "file", Path: mine, Mode: 0o600})
		for _, path := range paths {
			if _, err := os.Stat(filepath.Dir(path)); err != nil {
				continue // router0/ is there with ROUTERMODE=shared
			}
			if _, err := os.Lstat(path); err == nil {
				w.a.denied(op{Do: "remove", Path: path})
				w.mayNot(op{Do: "rename", Path: path, To: w.po("public/theirs")}, unix.EINVAL)
				w.mayNot(op{Do: "write", Path: path}, unix.EISDIR, unix.ENXIO)
				// What everybody may read he may lock, too; the table shows that no program waits for that.
				if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o004 == 0 {
					w.a.denied(op{Do: "flock", Path: path})
				}
				if name := filepath.Base(path); name == ".mailq" || name == ".run" {
					continue // who may connect is the business of the daemon behind it
				}
			} else {
				for _, k := range kinds() {
					if err := k.plant(w, path); !errors.Is(err, unix.EACCES) {
						w.Errorf("a %s as %s: %v; want EACCES", k.what, path, err)
					}
				}
			}
			w.mayNot(op{Do: "rename", Path: mine, To: path}, unix.EISDIR, unix.ENOTEMPTY)
			w.mayNot(op{Do: "link", To: mine, Path: path}, unix.EEXIST)
		}
		w.check()
	})
}

// mayNot is denied, where the kernel may find another reason first.
func (w *world) mayNot(o op, also ...unix.Errno) {
	w.Helper()
	r := w.a.try(o)
	for _, errno := range also {
		if r.Errno == errno {
			return
		}
	}
	if r.Errno != unix.EACCES && r.Errno != unix.EPERM {
		w.Errorf("the attacker's %s of %s: %q; want EACCES or EPERM", o.Do, o.Path, r.Error)
	}
}
