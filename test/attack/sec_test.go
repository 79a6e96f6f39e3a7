package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Mail flows in each mode while the attacker does nothing, and he sees none of it.
func TestMailFlowsAndTheAttackerSeesNothing(t *testing.T) {
	eachMode(t, func(w *world) { w.check() })
}

// predicted is for how many coming inodes the attacker makes names first.
const predicted = 10000

// Sec1: a work specification that a user has made first is not what the router writes to.
// The attacker submits a message, keeps it open, and makes every work file, claim and
// message name for the coming inodes wherever he can.
func TestSec1WorkSpecificationOfAUserIsNeverWritten(t *testing.T) {
	eachMode(t, func(w *world) {
		var owners []string
		list, err := os.ReadDir(w.po("owners"))
		w.must(err)
		for _, e := range list {
			owners = append(owners, e.Name())
		}
		if len(owners) == 0 {
			t.Fatal("no daemon has a number in owners/")
		}
		// The inode of a file that he makes now; those of later files are near.
		here := w.a.do(op{Do: "hold", Path: w.po("public/mine"), Mode: 0o600})
		ino := w.inode(w.po("public/mine"))
		for _, owner := range owners {
			many := op{Do: "many", To: "-" + owner, From: ino, N: predicted, Mode: 0o666}
			many.Path = w.po(w.routerDir() + "/..")
			w.a.denied(many)
			for _, dir := range w.open() {
				many.Path = dir + "/.."
				w.a.do(many)
			}
		}
		w.check()
		_ = here
		w.wantAll(w.open(), "..", len(w.open())*predicted*len(owners)) // no agent has claimed them
	})
}

// inode returns a file's number.
func (w *world) inode(path string) uint64 {
	w.Helper()
	var st unix.Stat_t
	w.must(unix.Lstat(path, &st))
	return st.Ino
}

// wantAll wants so many names with a prefix in directories, empty as they were.
func (w *world) wantAll(dirs []string, prefix string, want int) {
	w.Helper()
	got := 0
	for _, dir := range dirs {
		list, err := os.ReadDir(dir)
		w.must(err)
		for _, e := range list {
			if !strings.HasPrefix(e.Name(), prefix) {
				continue
			}
			got++
			if info, err := e.Info(); err != nil || info.Size() != 0 {
				w.Errorf("%s/%s: %d bytes, %v; it was empty", dir, e.Name(), info.Size(), err)
			}
		}
	}
	if got != want {
		w.Errorf("%d names %s*, want %d", got, prefix, want)
	}
}

// Sec2: a complete work file of a foreign owner is not believed when the specification of
// a queued message is missing.
func TestSec2ForeignWorkFilesAreNotBelieved(t *testing.T) {
	eachMode(t, func(w *world) { w.foreignWork(true) })
}

// Sec3: an incomplete work file of a foreign owner beside a specification has nothing
// routed twice.
func TestSec3IncompleteForeignWorkFileRoutesNothingTwice(t *testing.T) {
	eachMode(t, func(w *world) { w.foreignWork(false) })
}

// foreignWork plants work files of the attacker's for a message that waits in queue/. What
// the modes refuse him is planted for him: recovery must hold by itself.
func (w *world) foreignWork(believable bool) {
	w.Helper()
	w.later.Store(true) // the message waits in the queue
	l := w.smtp("far@sink.example")
	w.event("deferred", "rcpt", l.to)
	list, err := os.ReadDir(w.po("queue"))
	w.must(err)
	if len(list) != 1 {
		w.Fatalf("the queue holds %v", list)
	}
	w.must(w.s.Stop())
	name := list[0].Name()
	ino, _, _ := strings.Cut(name, "-")
	spec, err := os.ReadFile(w.po("transport/" + name))
	w.must(err)
	if believable {
		spec = []byte(strings.ReplaceAll(string(spec), "far@sink", "bad@sink"))
		w.must(os.Remove(w.po("transport/" + name)))
	} else {
		spec = spec[:len(spec)/2]
	}
	const dead = 999999 // the largest owner number
	for _, work := range []string{".." + name, fmt.Sprintf("..%s-%d", ino, dead)} {
		path := w.po(w.routerDir() + "/" + work)
		w.a.denied(op{Do: "file", Path: path, Mode: 0o666, Data: spec})
		w.must(os.WriteFile(path, spec, 0o666))
		w.must(os.Chown(path, w.a.uid, w.a.gid))
		for _, dir := range w.open() {
			w.a.do(op{Do: "file", Path: filepath.Join(dir, work), Mode: 0o777, Data: spec})
		}
	}
	w.later.Store(false)
	w.must(w.s.Start())
	w.s.AwaitDaemons(patience)
	w.check()
	for _, m := range w.sink.Messages() {
		for _, rcpt := range m.Recipients {
			if strings.HasPrefix(rcpt, "bad@") {
				w.Errorf("a specification of the attacker's was believed: mail went to %s", rcpt)
			}
		}
	}
}

// Sec4: names of coming inode numbers cost other names, not acceptance.
func TestSec4OccupiedNamesCostOnlyNames(t *testing.T) {
	eachMode(t, func(w *world) {
		w.a.do(op{Do: "file", Path: w.po("public/seed"), Mode: 0o600})
		const around = 5000
		ino := w.inode(w.po("public/seed"))
		first := ino - min(ino, around)
		for _, dir := range w.open() {
			made := w.a.do(op{Do: "links", Path: dir + "/", To: w.po("public/seed"), From: first, N: 2 * around})
			if made.N < 2*around-10 {
				w.Errorf("%s: he occupied %d names", dir, made.N)
			}
		}
		r := w.a.try(op{Do: "links", Path: w.po(w.routerDir()) + "/", To: w.po("public/seed"), From: first, N: 1})
		if r.Errno != unix.EACCES {
			w.Errorf("names in %s: %q", w.routerDir(), r.Error)
		}
		w.check()
		// The names by which routers take messages are occupied as well, as in a directory
		// that was open: by root, for him.
		for n := range uint64(around) {
			err := os.Link(w.root(), w.po(w.routerDir()+"/.."+strconv.FormatUint(ino+n, 10)))
			if err != nil && !os.IsExist(err) {
				w.Fatal(err)
			}
		}
		w.check()
	})
}

// Sec5: only the daemons can open a lock file, so no other process can keep a daemon from
// starting; a lock file with a further name is replaced.
func TestSec5LockFilesAreClosed(t *testing.T) {
	eachMode(t, func(w *world) {
		w.send()
		w.delivered()
		locks := []string{w.po(".pid.scheduler"), w.po(".pid.zmctl"), w.po("ledger/journal")}
		list, err := os.ReadDir(w.po("owners"))
		w.must(err)
		for _, e := range list {
			locks = append(locks, w.po("owners/"+e.Name()))
		}
		for _, path := range locks {
			if _, err := os.Stat(path); err != nil {
				w.Errorf("no lock file: %v", err)
			}
			w.a.denied(op{Do: "flock", Path: path})
			w.a.denied(op{Do: "write", Path: path})
			w.a.denied(op{Do: "remove", Path: path})
		}
		// The top directory is open to look at: its lock files can be linked.
		for _, name := range []string{".pid.scheduler", ".pid.zmctl"} {
			for _, dir := range w.open() {
				w.a.do(op{Do: "link", Path: dir + "/" + name, To: w.po(name)})
			}
		}
		w.killOne("scheduler")
		w.s.Forget()
		w.event("started", "program", "scheduler")
		w.send()
		w.delivered()
		// Neither a kill of all nor an end in order leaves a system that does not start.
		w.s.Kill()
		w.must(w.s.Start())
		w.s.AwaitDaemons(patience)
		w.send()
		w.delivered()
		w.must(w.s.Stop())
		w.must(w.s.Start())
		w.s.AwaitDaemons(patience)
		w.send()
		w.delivered()
	})
}

// killOne kills a program of the system.
func (w *world) killOne(program string) {
	w.Helper()
	list, err := w.s.Processes()
	w.must(err)
	for _, p := range list {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if p.Name == program && !strings.Contains(string(b), "--start-agents") && !strings.Contains(string(b), "--open-files") {
			w.must(p.Kill())
			return
		}
	}
	w.Fatalf("no %s runs", program)
}

// Sec8: what a user submits is his until it is copied, and nothing that he does to his
// file afterwards changes the message.
func TestSec8SubmittedMessageCannotBeChangedAfterwards(t *testing.T) {
	eachMode(t, func(w *world) {
		for n := range 20 {
			token := w.token()
			name := w.po(fmt.Sprintf("public/%d", n+1))
			mine := func(word string) []byte {
				return fmt.Appendf(nil, "to <%s@mta.example>\nenv-end\nSubject: %s\n\n%s %s\n", w.alice.name, token, word, token)
			}
			held := w.a.do(op{Do: "hold", Path: w.po("public/draft"), Mode: 0o600, Data: mine("before")})
			w.a.do(op{Do: "link", Path: w.po("public/second"), To: w.po("public/draft")})
			w.a.do(op{Do: "remove", Path: w.po("public/second")})
			w.a.do(op{Do: "chmod", Path: w.po("public/draft"), Mode: 0o770})
			w.giveGroup("public/draft")
			w.a.do(op{Do: "rename", Path: w.po("public/draft"), To: name})
			w.await("copy of "+name, func() bool { _, err := os.Lstat(name); return err != nil })
			w.a.do(op{Do: "rewrite", N: held.N, Data: mine("after")})
			w.await("delivery of "+token, func() bool { return w.inMailbox(w.alice, token) })
			if w.inMailbox(w.alice, "after "+token) {
				w.Errorf("message %s was changed after it was accepted", token)
			}
		}
		w.check()
	})
}

// giveGroup lets the daemons read what the attacker has made without setgid in a
// directory: none is needed where public/ gives its group.
func (w *world) giveGroup(name string) {
	if w.mode == asDaemon {
		var st unix.Stat_t
		w.must(unix.Lstat(w.po(name), &st))
		if int(st.Gid) != w.daemon.gid {
			w.Errorf("%s has group %d, want the daemons' %d", name, st.Gid, w.daemon.gid)
		}
	}
}

func (w *world) inMailbox(who account, token string) bool {
	b, err := os.ReadFile(filepath.Join(w.s.Dir, "mail", who.name))
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	return strings.Contains(string(b), token)
}
