package attack

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// openCommit is the last commit whose router/ everybody could write to.
const openCommit = "7688860"

// Sec1: a postoffice in the layout of before, router/ with mode 1777 and mail waiting in it,
// is closed by zmctl check --repair or by the start of a router, and each message is
// delivered once.
func TestSec1OpenPostofficeIsClosedAndItsMailDelivered(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		for how, upgrade := range map[string]func(w *world){
			"repaired before the start": func(w *world) {
				w.repair()
				w.closed()
				w.start()
			},
			"daemons are started": func(w *world) { w.start() },
			"init and start": func(w *world) {
				if said, code := w.zmctl("init"); code != 0 {
					w.Fatalf("zmctl init: %d\n%s", code, said)
				}
				w.start()
			},
		} {
			t.Run(mode+" "+how, func(t *testing.T) {
				t.Parallel()
				w := prepare(t, mode, func(w *world) { w.s.Settings["RESUBMIT"] = "1s,2s" })
				w.openLayout()
				upgrade(w)
				w.delivered()
				w.closed()
				w.check()
			})
		}
	}
}

// openLayout makes the postoffice what that commit's programs leave: modes of directories
// and locks, and messages on each way.
func (w *world) openLayout() {
	w.Helper()
	mode, setgid := uint32(0o1777), uint32(0)
	if w.mode == asDaemon {
		setgid = 0o2000
	}
	for _, dir := range []string{"public", "router"} {
		w.must(unix.Chmod(w.po(dir), mode|setgid))
	}
	for _, dir := range []string{"queue", "transport", "owners", "deferred", "postman"} {
		w.must(os.Chmod(w.po(dir), 0o755))
	}
	const dead = 999998
	for name, text := range map[string]string{".pid.scheduler": "4711\n", "owners/" + strconv.Itoa(dead): "router pid 4711\n"} {
		w.must(os.WriteFile(w.po(name), []byte(text), 0o644))
		w.must(os.Chown(w.po(name), w.daemon.uid, w.daemon.gid))
	}
	// What a submit and a smtpserver have handed in, what a router that died has claimed, and
	// what a submit that died has not renamed.
	w.waits("router/I", w.alice, w.bob.name+"@mta.example")
	w.waits("router/I", w.daemon, "far@sink.example")
	w.waits("router/I-"+strconv.Itoa(dead), w.bob, w.alice.name+"@mta.example")
	w.waits("router/I-"+strconv.Itoa(dead), w.daemon, w.bob.name+"@mta.example")
	w.waits("public/submit.4711.dn0kpsb1upkv", w.bob, "far@sink.example")
	w.waits("deferred/I.users", w.alice, w.bob.name+"@mta.example")
	// A user could do this until now.
	w.a.do(op{Do: "file", Path: w.po("router/4711"), Mode: 0o666})
	w.a.do(op{Do: "symlink", Path: w.po("router/4712"), To: w.root()})
	w.a.do(op{Do: "fifo", Path: w.po("router/4713"), Mode: 0o666})
	w.a.do(op{Do: "dir", Path: w.po("router/4714")})
	w.a.do(op{Do: "hold", Path: w.po("router/..4715-" + strconv.Itoa(dead)), Mode: 0o666, Data: []byte("x")})
}

// waits puts a message into the postoffice as a program of the user's has left it; I in
// name is the number of its inode.
func (w *world) waits(name string, as account, to string) {
	w.Helper()
	l := letter{token: w.token(), from: as.name, to: to}
	body := fmt.Sprintf("from <%s@mta.example>\nto <%s>\nenv-end\n%s", as.name, to, text(l.token))
	first := fmt.Sprintf("comment octets %016d %08x\n", len(body)+len("comment octets 0123456789abcdef 01234567\n"),
		crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
	mode := fs.FileMode(0o700)
	if w.mode == asDaemon {
		mode = 0o760
	}
	path := w.po(filepath.Dir(name) + "/new")
	w.must(os.WriteFile(path, []byte(first+body), 0o600))
	w.must(errors.Join(os.Chown(path, as.uid, w.daemon.gid), os.Chmod(path, mode)))
	w.must(os.Rename(path, w.po(filepath.Dir(name)+"/"+strings.Replace(filepath.Base(name), "I", strconv.FormatUint(w.inode(path), 10), 1))))
	w.sent = append(w.sent, l)
}

func (w *world) repair() {
	w.Helper()
	said, code := w.zmctl("check", "--repair")
	w.Logf("zmctl check --repair: %d\n%s", code, said)
	if code > 2 {
		w.Errorf("zmctl check --repair: exit code %d", code)
	}
}

// closed asserts that the attacker can make no name in router/.
func (w *world) closed() {
	w.Helper()
	w.a.denied(op{Do: "file", Path: w.po("router/1"), Mode: 0o600})
	w.a.denied(op{Do: "rename", Path: w.po("router/4711"), To: w.po("public/mine")})
	if info, err := os.Stat(w.po("router")); err != nil || info.Mode().Perm()&0o027 != 0 {
		w.Errorf("router/ has mode %v, %v", info.Mode(), err)
	}
}

// openPrograms returns the programs of that commit.
func openPrograms(t *testing.T) string {
	t.Helper()
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err == nil {
		err = exec.Command("git", "cat-file", "-e", openCommit+"^{commit}").Run()
	}
	if err != nil {
		t.Skipf("commit %s is not in a history here: %v", openCommit, err)
	}
	// Other users run them.
	dir, err := os.MkdirTemp("/tmp", "attack")
	assert.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o755))
	script := `git -C "$1" archive ` + openCommit + ` | tar -x -C "$2" && cd "$2" && CGO_ENABLED=0 go build -o bin/ ./cmd/...`
	if out, err := exec.Command("sh", "-c", script, "sh", strings.TrimSpace(string(top)), dir).CombinedOutput(); err != nil {
		t.Fatalf("build the programs of %s: %v\n%s", openCommit, err, out)
	}
	return filepath.Join(dir, "bin")
}

// Sec1: the same with that commit's own programs: mail waits in queue/, deferred by its
// scheduler, and in router/, where its smtpserver goes on to put mail while zmctl check
// --repair of this version closes the directory.
func TestSec1LiveSpoolIsClosedAndItsMailDelivered(t *testing.T) {
	need(t)
	open := openPrograms(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := prepare(t, mode, func(w *world) { w.s.Bin = open })
			w.later.Store(true)
			w.start()
			w.submit(w.alice, "far@sink.example")
			w.smtp("far@sink.example")
			w.await("two messages in queue/", func() bool { return len(w.list("queue")) == 2 })
			w.must(w.s.Stop())
			server := w.s.Command("smtpserver")
			w.must(server.Start())
			w.Cleanup(func() {
				_ = server.Process.Kill() // it may have ended
				_ = server.Wait()
			})
			w.await("smtpserver of "+openCommit, func() bool {
				c, err := net.Dial("tcp", w.s.SMTPAddr)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			w.submit(w.alice, w.bob.name+"@mta.example")
			w.smtp(w.alice.name + "@mta.example")
			if n := len(w.list("router")); n != 2 {
				t.Fatalf("router/ has %d messages, want 2", n)
			}
			for _, name := range w.list("queue") {
				w.a.do(op{Do: "file", Path: w.po("router/.." + name), Mode: 0o666, Data: []byte("i x\n")})
			}
			w.a.do(op{Do: "file", Path: w.po("router/4711"), Mode: 0o666})
			w.s.Bin = bin
			w.repair()
			w.closed()
			w.smtp(w.bob.name + "@mta.example") // to the server of before
			w.must(server.Process.Signal(unix.SIGTERM))
			_ = server.Wait()
			w.later.Store(false)
			w.start()
			w.delivered()
			w.check()
		})
	}
}

// list returns what is in a directory of the postoffice.
func (w *world) list(dir string) (names []string) {
	w.Helper()
	list, err := os.ReadDir(w.po(dir))
	w.must(err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
