package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// spool is a postoffice with what may stand in it after a submission.
type spool struct {
	*suite.Suite
	t    *testing.T
	body string
	said strings.Builder // by the last submit
}

func newSpool(t *testing.T) *spool {
	t.Helper()
	if err := inject.Supported(); err != nil {
		t.Skip(err)
	}
	s := &spool{Suite: &suite.Suite{Bin: bin, Dir: t.TempDir(), Users: []string{"alice"}}, t: t,
		body: strings.Repeat("0123456789abcde\n", 16<<10)}
	// submit runs as other users, too.
	assert.Must(t, os.Chmod(filepath.Dir(s.Dir), 0o755))
	assert.Must(t, s.Init())
	return s
}

// submit runs submit under an injector that decides about its calls, and gives its
// exit code, -1 for a kill.
func (s *spool) submit(uid uint32, onCall func(inject.Call) inject.Action) int {
	s.t.Helper()
	i := &inject.Injector{Classes: inject.Classes{PostOffice: s.PostOffice()}, OnCall: onCall}
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "alice@mta.example")
	cmd.Stdin = strings.NewReader("Subject: x\n\n" + s.body)
	cmd.Stderr = &s.said
	s.said.Reset()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := i.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked
	if err := i.Close(); err != nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// take returns what is in a directory and removes it.
func (s *spool) take(dir string) (names []string) {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.PostOffice(), dir))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		name := filepath.Join(s.PostOffice(), dir, e.Name())
		if dir == "router" {
			s.whole(name)
			s.named(name)
		}
		names = append(names, e.Name())
		if err := os.Remove(name); err != nil {
			s.t.Fatal(err)
		}
	}
	return names
}

// whole checks that all bytes of a message are there, and returns them.
func (s *spool) whole(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	if !strings.HasSuffix(string(b), "\nSubject: x\n\n"+s.body) {
		s.t.Errorf("%s: %d bytes that end in %q", name, len(b), b[max(0, len(b)-20):])
	}
	return string(b)
}

// named checks that a file in router/ has its inode's number as name.
func (s *spool) named(name string) {
	s.t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(name, &st); err != nil {
		s.t.Fatal(err)
	}
	if filepath.Base(name) != fmt.Sprint(st.Ino) {
		s.t.Errorf("%s: inode %d", name, st.Ino)
	}
}

// M1: submit is killed before each state-changing system call that it makes, and inside
// each write: there is one file or none, whole and under its inode's number if it is in
// router/, where nothing else ever brings a file. A user's is in public/ to its end.
func TestSubmitKilledAtEachCallLeavesOneFileOrNone(t *testing.T) {
	for _, tt := range []struct {
		name, last string
		uid        uint32
	}{{"root", "public/T -> router/I", 0}, {"user", "public/T -> public/T", nobody}} {
		t.Run(tt.name, func(t *testing.T) { submitKilledAtEachCall(t, tt.uid, tt.last) })
	}
}

func submitKilledAtEachCall(t *testing.T, uid uint32, last string) {
	s := newSpool(t)
	stages := map[string]int{}
	for n, torn, done := 0, false, false; !done; {
		calls, hit, part := 0, "", false
		code := s.submit(uid, func(c inject.Call) inject.Action {
			if (strings.Contains(c.Path, "router/") || strings.Contains(c.Path, "->")) && c.Path != last {
				t.Errorf("submit makes %s of %s", c.Name, c.Path)
			}
			if calls++; calls <= n {
				return inject.Action{}
			}
			if hit == "" {
				hit, part = c.Pair().String(), c.Size > 1 && strings.HasPrefix(c.Path, "public/")
			}
			if torn {
				return inject.Action{Kill: true, Part: c.Size / 2}
			}
			return inject.Action{Kill: true}
		})
		if done = hit == ""; done && uid != 0 {
			for _, name := range s.names("public") {
				s.whole(filepath.Join(s.PostOffice(), name))
			}
		}
		public, router := s.take("public"), s.take("router")
		if len(public)+len(router) > 1 {
			t.Errorf("killed before %s (torn %v): public/ %q, router/ %q", hit, torn, public, router)
		}
		switch {
		case done && (code != 0 || len(public)+len(router) != 1 || uid == 0 && len(router) == 0):
			t.Errorf("not killed: exit code %d, public/ %q, router/ %q", code, public, router)
		case !done && code != -1:
			t.Errorf("killed before %s: exit code %d", hit, code)
		}
		stages[fmt.Sprintf("%d in public/, %d in router/", len(public), len(router))]++
		if torn = part && !torn; !torn {
			n++
		}
	}
	t.Logf("%v", stages)
	if len(stages) < 2 {
		t.Errorf("the kills left %v: they do not reach from the first call to the last", stages)
	}
}

// M2 S21: the real fsync of an accepted message fails: submit ends with 75, smtpserver
// answers 452 or 451, and nothing is left, in public/ or in router/.
func TestFailingSyncIsNoAcceptance(t *testing.T) {
	s := newSpool(t)
	for errno, reply := range map[unix.Errno]string{unix.EIO: `"451 `, unix.ENOSPC: `"452 `} {
		synced := 0
		fail := func(c inject.Call) inject.Action {
			if c.Name != "fsync" || c.Path != "public/T" {
				return inject.Action{}
			}
			synced++
			return inject.Action{Errno: errno}
		}
		left := func(program string) {
			t.Helper()
			if public, router := s.take("public"), s.take("router"); len(public)+len(router) > 0 || synced != 1 {
				t.Errorf("%s, %v: %d syncs, public/ %q, router/ %q; want one and nothing", program, errno, synced, public, router)
			}
		}
		assert.Equal(t, s.submit(0, fail), 75, errno)
		left("submit")
		synced = 0
		i := &inject.Injector{Classes: inject.Classes{PostOffice: s.PostOffice()}, OnCall: fail}
		s.Launch = i.Start
		assert.Must(t, s.Start())
		src := peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
			To: func(int) string { return "alice@mta.example" }, Body: func(int) []byte { return []byte("Subject: x\r\n\r\n") }}
		if err := src.Run(t.Context()); err == nil || !strings.Contains(err.Error(), reply) {
			t.Errorf("smtpserver, %v: got %v, want %s", errno, err, reply)
		}
		s.Kill()
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		left("smtpserver")
	}
}
