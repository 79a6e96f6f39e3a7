package mailbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"

	"golang.org/x/sys/unix"
)

// deadPID returns the pid of a process that has ended.
func deadPID(t *testing.T) int {
	t.Helper()
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Skip("no program true to run: ", err)
	}
	return c.Process.Pid
}

func TestDotLocksOfOthers(t *testing.T) {
	host := "mta.example.org"
	for name, c := range map[string]struct {
		content string
		age     time.Duration
		stale   bool
	}{
		"of a live process":               {fmt.Sprintf("%d %s\n", os.Getpid(), host), 30 * time.Minute, false},
		"of a live pid, very old":         {fmt.Sprintf("%d %s\n", os.Getpid(), host), 2 * time.Hour, true},
		"of a dead process":               {fmt.Sprintf("%d %s\n", deadPID(t), host), 0, true},
		"of a process on another host":    {fmt.Sprintf("%d other\n", deadPID(t)), time.Minute, false},
		"the same, old":                   {fmt.Sprintf("%d other\n", os.Getpid()), 6 * time.Minute, true},
		"of a program that writes no pid": {"", time.Minute, false},
		"the same, left for minutes":      {"", 6 * time.Minute, true},
		"the same, clock set back since":  {"", -24 * time.Hour, true},
		"live, clock set back since":      {fmt.Sprintf("%d %s\n", os.Getpid(), host), -24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u")
			if !c.stale {
				p.mailbox.c.LockWait = 50 * time.Millisecond
			}
			lock := filepath.Join(p.mail, "jim.lock")
			p.must(os.WriteFile(lock, []byte(c.content), 0o600))
			p.must(os.Chtimes(lock, testTime, testTime.Add(-c.age)))
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@a.example")))
			want, left := "\tdeferred 4.2.0 the mailbox is locked by another program", []string{"jim.lock"}
			if c.stale {
				want, left = "\tok3 delivered to an mbox file", []string{"jim"}
			}
			if len(got) != 1 || !strings.HasSuffix(got[0], want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if names := p.names(p.mail); fmt.Sprint(names) != fmt.Sprint(left) {
				t.Errorf("files: got %q, want %q", names, left)
			}
		})
	}
}

// hold locks a mailbox as another program does.
func hold(t *testing.T, name string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	assert.Must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

func TestFcntlLockOfAnotherProgramIsWaitedFor(t *testing.T) {
	for name, replaced := range map[string]bool{"the file stays": false, "the file is replaced": true} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u")
			box := filepath.Join(p.mail, "jim")
			release := hold(t, box)
			id := p.queue("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@a.example"))
			done := make(chan []string)
			go func() { done <- p.do(id) }()
			// Its dot lock says that it has come to the other one.
			for deadline := time.Now().Add(20 * time.Second); ; {
				if _, err := os.Stat(box + ".lock"); err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no dot lock appears")
				}
			}
			want := ""
			if replaced {
				want = "From the-reader\n\n"
				p.must(os.WriteFile(box+".new", []byte(want), 0o600))
				p.must(os.Rename(box+".new", box))
			}
			release()
			p.one(<-done, "\tok3 ")
			got := p.read(box)
			if !strings.HasPrefix(got, want+"From s@example.org ") || strings.Count(got, "Received: here") != 1 {
				t.Errorf("got %q, want the message behind %q", got, want)
			}
		})
	}
}

func TestFcntlLockThatStaysDefers(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	p.mailbox.c.LockWait = 50 * time.Millisecond
	defer hold(t, filepath.Join(p.mail, "jim"))()
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@a.example")))
	p.one(got, "\tdeferred 4.2.0 ")
	if got := p.names(p.mail); len(got) != 1 {
		t.Errorf("files: got %q, want the dot lock gone", got)
	}
}

// What a crash tore is ended, so that the next message starts on its own line.
func TestMessageAfterATornOneStandsAlone(t *testing.T) {
	for name, c := range map[string]struct{ before, lead string }{
		"cut within a line": {"From x\n\ntorn", "\n\n"},
		"cut behind a line": {"From x\n\ntorn\n", "\n"},
		"a single newline":  {"\n", "\n"},
		"one byte":          {"x", "\n\n"},
		"whole":             {"From x\n\nwhole\n\n", ""},
		"nothing":           {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u")
			box := filepath.Join(p.mail, "jim")
			p.must(os.WriteFile(box, []byte(c.before), 0o600))
			p.deliver("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@a.example"))
			want := c.before + c.lead + "From s@example.org Sat Nov 21 00:12:50 2026\n"
			if got := p.read(box); !strings.HasPrefix(got, want) {
				t.Errorf("got %q, want %q first", got, want)
			}
		})
	}
}

// K12: a lock file of ours that could not be removed is in our way no more than until
// the next delivery, although its writer lives; that of a live other one stays.
func TestOwnDotLockThatWasLeftIsRemoved(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	lock := filepath.Join(p.mail, "jim.lock")
	p.must(os.WriteFile(lock, fmt.Appendf(nil, "%d mta.example.org\n", os.Getpid()), 0o600))
	p.must(os.Chtimes(lock, testTime, testTime))
	var st unix.Stat_t
	p.must(unix.Stat(lock, &st))
	p.mailbox.leave(filepath.Join(p.mail, "jim"), st.Ino)
	p.deliver("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@a.example"))
	if names := p.names(p.mail); fmt.Sprint(names) != "[jim]" {
		t.Errorf("files: got %q, want the mailbox alone", names)
	}
}
