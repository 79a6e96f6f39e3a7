package attack

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"os"

	"zmailer/internal/run/assert"
	"zmailer/test/kill"
)

// Every name that a program opens, makes, renames, links, locks or removes stands in the
// table of attacks with that call, or is where no user can make names. A new call or name
// without an attack fails here.
func TestEveryNameThatIsTouchedHasAnAttack(t *testing.T) {
	need(t)
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	t.Run("load of every kind", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		openUp(t, dir)
		tracer, err := kill.Trace(t.Context(), bin, dir)
		assert.Must(t, err)
		judge(t, tracer, dir)
	})
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, mode, nil)
			tracer := w.trace()
			w.s.Launch = tracer.Start
			w.start()
			w.check()
			for _, args := range [][]string{{"check"}, {"queue"}, {"status"}, {"check", "--repair"}, {"hold", "--all", "--yes"}, {"orders"}, {"init"}} {
				cmd := w.s.Command("zmctl", args...)
				out, err := w.traced(tracer, cmd)
				t.Logf("zmctl %q: %v\n%s", args, err, out)
			}
			w.must(w.s.Stop())
			judge(t, tracer, w.s.Dir)
		})
	}
}

// trace returns a tracer whose files every user's programs can write.
func (w *world) trace() *kill.Tracer {
	w.Helper()
	dir := w.TempDir()
	openUp(w.T, dir)
	w.must(os.Chmod(dir, 0o777))
	tracer := kill.NewTracer(w.s, dir)
	tracer.Classes.Stores = []string{filepath.Join(w.s.Dir, "mail")}
	w.launch = tracer.Start
	return tracer
}

func (w *world) traced(tracer *kill.Tracer, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := tracer.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), err
}

// judge compares what was touched with the table.
func judge(t *testing.T, tracer *kill.Tracer, dir string) {
	t.Helper()
	list := assert.Get(tracer.Touched())(t)
	if len(list) < 100 {
		t.Errorf("strace saw %d calls on names", len(list))
	}
	known := table()
	for _, touch := range list {
		if strings.HasPrefix(touch.Name, "/") {
			assert.Equal(t, exposed(touch.Name), "", touch)
			continue
		}
		call := touch.Call
		if touch.Makes {
			call += "+"
		}
		r, ok := known[touch.Name]
		switch {
		case !ok:
			t.Errorf("%v: the name has no attack; see table_test.go", touch)
		case !strings.Contains(" "+r.calls+" ", " "+call+" "):
			t.Errorf("%v: the call %s on this name has no attack; see table_test.go", touch, call)
		}
	}
}

// exposed is why a user can make a name outside of the postoffice, "" if he cannot: each
// directory on the way belongs to root and others cannot write to it, or what is in a
// sticky one is there and root's.
func exposed(path string) string {
	for ; path != "/"; path = filepath.Dir(path) {
		var up, is syscall.Stat_t
		parent := filepath.Dir(path)
		if err := syscall.Stat(parent, &up); err != nil {
			continue // what is above it counts
		}
		if up.Uid != 0 && up.Uid != uint32(os.Geteuid()) {
			return parent + " does not belong to root"
		}
		if up.Mode&unix.S_IWOTH == 0 {
			continue
		}
		if err := syscall.Lstat(path, &is); err != nil || is.Uid != 0 || up.Mode&unix.S_ISVTX == 0 {
			return "everybody may make " + path
		}
	}
	return ""
}
