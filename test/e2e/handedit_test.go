package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// edited is a message that is edited by hand while it waits: ok.N has it, w.N does not
// yet.
type edited struct {
	t    *testing.T
	s    *suite.Suite
	id   string
	name string
	ok   string // recipient that has it
	wait string // recipient that waits
}

func (e *edited) path(dir string) string { return path(e.s, dir+"/"+e.name) }

func (e *edited) move(from, to string) {
	e.t.Helper()
	assert.Must(e.t, os.MkdirAll(filepath.Dir(to), 0o755))
	assert.Must(e.t, os.Rename(from, to))
}

func (e *edited) copy(from, to string) {
	e.t.Helper()
	assert.Must(e.t, os.MkdirAll(filepath.Dir(to), 0o755))
	write(e.t, to, read(e.t, from))
}

// handEdits are what an operator may do to files of a message while scheduler and agents run;
// each waits for its log event. done: the message is gone then.
var handEdits = map[string]struct {
	done bool
	do   func(e *edited)
}{
	"message removed, and brought back": {do: func(e *edited) {
		aside := filepath.Join(e.s.Dir, "aside."+e.name)
		e.move(e.path("queue"), aside)
		// An attempt finds it: in seconds, not at the next comparison of the directories.
		event(e.t, e.s, "specification-refused", "name", e.name, "reason", "not in queue/", "advice", "put the message back")
		e.move(aside, e.path("queue"))
	}},
	"specification removed": {done: true, do: func(e *edited) {
		assert.Must(e.t, os.Remove(e.path("transport")))
		event(e.t, e.s, "vanished", "name", e.name, "advice", "routed again")
		assert.Must(e.t, os.Remove(e.path("queue")))
	}},
	"both moved away, and in again": {do: func(e *edited) {
		// As from another postoffice on the same file system.
		aside := filepath.Join(e.s.Dir, "aside."+e.name)
		e.move(e.path("transport"), aside+".t")
		e.move(e.path("queue"), aside+".q")
		event(e.t, e.s, "vanished", "name", e.name)
		e.move(aside+".t", e.path("transport")) // in the wrong order, too
		e.move(aside+".q", e.path("queue"))
	}},
	"both moved to another hash depth": {do: func(e *edited) {
		e.move(e.path("queue"), path(e.s, "queue/Q/"+e.name))
		e.move(e.path("transport"), path(e.s, "transport/Q/"+e.name))
		event(e.t, e.s, "moved", "id", e.id, "name", e.name)
	}},
	"specification in a wrong directory": {do: func(e *edited) {
		e.move(e.path("transport"), path(e.s, "transport/B/C/"+e.name))
		event(e.t, e.s, "recovered", "action", "rehashed", "name", e.name)
	}},
	"message touched": {do: func(e *edited) {
		now := time.Now()
		assert.Must(e.t, os.Chtimes(e.path("queue"), now, now))
		event(e.t, e.s, "touched", "was", e.id, "name", e.name)
	}},
	"specification replaced by a copy": {do: func(e *edited) {
		e.copy(e.path("transport"), e.path("transport")+".new")
		e.move(e.path("transport")+".new", e.path("transport"))
	}},
	"specification copied to another depth": {do: func(e *edited) {
		e.copy(e.path("transport"), path(e.s, "transport/D/"+e.name))
		event(e.t, e.s, "specification-refused", "name", "D/"+e.name, "reason", "queued too")
	}},
	"specification copied under another number": {do: func(e *edited) {
		e.copy(e.path("transport"), path(e.s, "transport/999999999-1"))
		e.copy(e.path("queue"), path(e.s, "queue/999999999-1"))
		event(e.t, e.s, "specification-refused", "name", "999999999-1", "reason", "is another")
	}},
	"specification cut": {done: true, do: func(e *edited) {
		headers := strings.Index(read(e.t, e.path("transport")), "\nm\n")
		assert.Must(e.t, os.Truncate(e.path("transport"), int64(headers+20)))
		event(e.t, e.s, "specification-refused", "name", e.name)
		assert.Must(e.t, os.Remove(e.path("queue")))
		assert.Must(e.t, os.Remove(e.path("transport")))
	}},
	"specification cut, and put back": {do: func(e *edited) {
		copied := filepath.Join(e.s.Dir, "copy."+e.name)
		e.copy(e.path("transport"), copied)
		assert.Must(e.t, os.Truncate(e.path("transport"), 100))
		event(e.t, e.s, "specification-refused", "name", e.name)
		e.copy(copied, e.path("transport")) // in place, not by a rename
	}},
	"specification written anew in place": {do: func(e *edited) {
		text := read(e.t, e.path("transport"))
		assert.Must(e.t, os.Remove(e.path("transport")))
		event(e.t, e.s, "vanished", "name", e.name)
		f, err := os.Create(e.path("transport"))
		assert.Must(e.t, err)
		for len(text) > 0 { // slower than cp
			n := min(len(text), 100)
			_, err := f.WriteString(text[:n])
			assert.Must(e.t, err)
			text = text[n:]
			time.Sleep(20 * time.Millisecond) // a slow writer is what is tested
		}
		assert.Must(e.t, f.Close())
	}},
	"message cut": {done: true, do: func(e *edited) {
		info, err := os.Stat(e.path("queue"))
		assert.Must(e.t, err)
		assert.Must(e.t, os.Truncate(e.path("queue"), info.Size()-2))
		event(e.t, e.s, "deferred", "name", e.name, "rcpt", e.wait, "reply", "bytes, and had")
		assert.Must(e.t, os.Remove(e.path("queue")))
		assert.Must(e.t, os.Remove(e.path("transport")))
	}},
	"rights taken": {do: func(e *edited) {
		assert.Must(e.t, os.Chmod(e.path("queue"), 0))
		assert.Must(e.t, os.Chmod(e.path("transport"), 0))
		if os.Geteuid() == 0 {
			return // root reads it anyway
		}
		event(e.t, e.s, "resync", "name", e.name, "reason", "permission denied")
		assert.Must(e.t, os.Chmod(e.path("queue"), 0o700))
		assert.Must(e.t, os.Chmod(e.path("transport"), 0o600))
	}},
	"junk beside it": {do: func(e *edited) {
		assert.Must(e.t, os.Mkdir(path(e.s, "transport/777"), 0o755))
		assert.Must(e.t, unix.Mkfifo(path(e.s, "transport/778"), 0o600))
		assert.Must(e.t, os.Symlink("/dev/zero", path(e.s, "transport/779")))
		assert.Must(e.t, os.Symlink("/nowhere", path(e.s, "transport/E")))
		assert.Must(e.t, os.WriteFile(path(e.s, "transport/780"), []byte("nonsense\n"), 0o600))
		assert.Must(e.t, os.WriteFile(path(e.s, "transport/781"), []byte("just junk\n"), 0o600))
		event(e.t, e.s, "specification-refused", "name", "780")
		event(e.t, e.s, "recovered", "name", "781", "action", "quarantined")
		assert.Must(e.t, errors.Join(os.Remove(path(e.s, "quarantine/transport.781.no-message")), os.Remove(path(e.s, "transport/780")), os.Remove(path(e.s, "transport/777")),
			os.Remove(path(e.s, "transport/778")), os.Remove(path(e.s, "transport/779")), os.Remove(path(e.s, "transport/E"))))
	}},
}

// K9, K10, M21, and the traps "a corrupt file that kills a daemon" and "an administrator's command
// that kills a daemon": an operator edits files while scheduler and agents run: no process dies, each edit
// is logged, other mail goes on, no recipient gets a message twice, and the daemons sleep again.
func TestHandEditsWhileDaemonsRun(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "interval=1s", "interval=1s ", 1)
	})
	var list []*edited
	n := 0
	for range handEdits {
		e := &edited{t: t, s: s, ok: fmt.Sprintf("ok.%d@sink.example", n), wait: fmt.Sprintf("w.%d@sink.example", n)}
		n++
		submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", e.ok, e.wait)
		d := event(t, s, "deferred", "rcpt", e.wait)
		e.id, e.name = d.Get("id"), d.Get("name")
		event(t, s, "delivered", "rcpt", e.ok)
		list = append(list, e)
	}
	before := daemons(t, s, "scheduler", "router")
	t.Run("edits", func(t *testing.T) {
		i := 0
		for what, edit := range handEdits {
			e := list[i]
			i++
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				e.t = t
				edit.do(e)
				if edit.done {
					e.wait = ""
				}
			})
		}
	})
	// Commands that check and repair do not harm the daemons, whatever was edited.
	for _, c := range []string{"check --json", "check --repair", "resubmit --all", "check --problems"} {
		if said, code := call(t, s, "zmctl", strings.Fields(c)...); code > 2 {
			t.Errorf("zmctl %s: exit code %d\n%s", c, code, said)
		}
	}
	// Mail goes on meanwhile.
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "ok.last@sink.example")
	event(t, s, "delivered", "rcpt", "ok.last@sink.example")
	close(sink.open)
	for _, e := range list {
		if e.wait != "" {
			await(t, s, e.wait+" at the sink", func() (bool, error) { return len(arrivals(sink.Sink, e.wait)) > 0, nil })
			wantEach(t, sink.Sink, 1, e.wait)
		}
		wantEach(t, sink.Sink, 1, e.ok)
	}
	assert.Equal(t, daemons(t, s, "scheduler", "router"), before)
	wantNone(t, s, "daemon-ended")
	idle(t, s)
}

// daemons lists the pids of some programs.
func daemons(t *testing.T, s *suite.Suite, programs ...string) string {
	t.Helper()
	var list []string
	for _, p := range processes(t, s) {
		for _, name := range programs {
			if p.Name == name {
				list = append(list, name+" "+strconv.Itoa(p.Pid))
			}
		}
	}
	return strings.Join(list, ", ")
}

// idle wants the system to use almost no processor time for a while.
func idle(t *testing.T, s *suite.Suite) {
	t.Helper()
	const span = 3 * time.Second
	was := map[int]int{}
	list := processes(t, s)
	for _, p := range list {
		was[p.Pid] = ticks(p.Pid)
	}
	time.Sleep(span) // what does not happen has no event
	for _, p := range list {
		used := max(ticks(p.Pid)-was[p.Pid], 0) // an agent may have ended
		t.Logf("%s used %d ms of %v", p.Name, used*10, span)
		if used > 10 {
			t.Errorf("%s used %d ms of the processor in %v, want next to none", p.Name, used*10, span)
		}
	}
}

// ticks returns a process's processor time in 1/100 s.
func ticks(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return user + system
}

// K10: an editor replaces the specification while an agent delivers; the message is
// delivered once, and the files go.
func TestSpecificationReplacedUnderADelivery(t *testing.T) {
	t.Parallel()
	for what, edit := range map[string]func(e *edited){
		"replaced": func(e *edited) {
			e.copy(e.path("transport"), e.path("transport")+".new")
			e.move(e.path("transport")+".new", e.path("transport"))
		},
		"both moved": func(e *edited) {
			e.move(e.path("queue"), path(e.s, "queue/A/"+e.name))
			e.move(e.path("transport"), path(e.s, "transport/A/"+e.name))
		},
		"message removed": func(e *edited) { assert.Must(e.t, os.Remove(e.path("queue"))) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, sink, g := stalled(t, peer.AtDot)
			edit(&edited{t: t, s: s, name: only(t, s, "transport")})
			g.release()
			awaitEmpty(t, s)
			wantArrived(t, sink, 1)
			wantNone(t, s, "in-doubt")
		})
	}
}

// M21: HASHLEVELS changes while mail waits and the daemons restart one by one, so that router,
// scheduler and agents use different depths for a while.
func TestHashLevelsChangeOneDaemonAtATime(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, nil)
	n := 0
	var all []string
	send := func() {
		for range 10 {
			to := fmt.Sprintf("w.%d@sink.example", n)
			n++
			all = append(all, to)
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", to)
			event(t, s, "deferred", "rcpt", to)
		}
	}
	send()
	text := read(t, s.Config())
	for _, levels := range []string{"2", "1", "0"} {
		write(t, s.Config(), text+"HASHLEVELS="+levels+"\n")
		for _, name := range []string{"router", "scheduler"} {
			s.Forget()
			assert.Must(t, syscall.Kill(oneOf(t, s, name).Pid, syscall.SIGTERM))
			event(t, s, "started", "program", name)
			send()
		}
	}
	close(sink.open)
	awaitEmpty(t, s)
	wantEach(t, sink.Sink, 1, all...)
}
