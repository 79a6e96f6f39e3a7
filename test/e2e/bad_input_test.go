package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// everyProgram returns a call of each program that would work with a good configuration.
func everyProgram() [][]string {
	calls := [][]string{{"submit", "bob@mta.example"}, {"smtpserver"}, {"router"}, {"scheduler"}, {"ta-smtp"}, {"ta-mailbox"}}
	for _, c := range []string{"run", "status", "queue", "show S1A1", "resubmit", "check"} {
		calls = append(calls, append([]string{"zmctl"}, strings.Fields(c)...))
	}
	return calls
}

// refused calls programs that must end with exit code 78 and name a place.
func refused(t *testing.T, s *suite.Suite, calls [][]string, place string) {
	t.Helper()
	for _, c := range calls {
		cmd := s.Command(c[0], c[1:]...)
		cmd.Dir = path(s, "transport")
		said, code := run(t, cmd)
		if code != config.ExitConfig || !strings.Contains(said, place) {
			t.Errorf("%q: exit code %d, want %d and %q in\n%s", c, code, config.ExitConfig, place, said)
		}
	}
}

// Each program ends with exit code 78 and names file and line when a configuration file that it
// reads cannot be used. The packages that read the files test what is refused.
func TestUnusableConfigurationIsReportedWithFileAndLine(t *testing.T) {
	t.Parallel()
	scheduler := [][]string{{"scheduler"}, {"scheduler", "--check-config"}, {"zmctl", "run"}}
	router := [][]string{{"router"}, {"router", "--once"}, {"zmctl", "run"}}
	directory := func(file string) {
		assert.Must(t, os.Remove(file))
		assert.Must(t, os.Mkdir(file, 0o755))
	}
	for name, tt := range map[string]struct {
		file  string
		spoil func(file string)
		place string // after the path
		calls [][]string
	}{
		"unknown setting":     {"zmailer.conf", appends(t, "HASHLEVEL=1\n"), ":$: HASHLEVEL", everyProgram()},
		"invalid byte":        {"zmailer.conf", appends(t, "HOSTNAME=\xff\n"), ":$: ", everyProgram()},
		"address":             {"zmailer.conf", appends(t, "SMTPLISTEN=nonsense\n"), ":$: SMTPLISTEN", [][]string{{"smtpserver"}, {"zmctl", "run"}}},
		"mailbox":             {"zmailer.conf", appends(t, "MAILBOX=/var/mail\n"), ":$: MAILBOX", [][]string{{"ta-mailbox"}}},
		"name server":         {"zmailer.conf", appends(t, "RESOLVER=a:b:c\n"), ":$: RESOLVER", [][]string{{"ta-smtp"}}},
		"clause":              {"scheduler.conf", appends(t, "smtp/*\n\tinterval=soon\n"), ":$:11: interval=soon", scheduler},
		"route":               {"routes", appends(t, ".example.org somewhere\n"), ":$: ", router},
		"policy":              {"router.star", appends(t, "def message(m):\n    return rout(\"x\")\n"), ":2:12: ", router[1:]},
		"no file":             {"zmailer.conf", func(file string) { assert.Must(t, os.Remove(file)) }, "", everyProgram()},
		"directory":           {"zmailer.conf", directory, "", everyProgram()},
		"directory of routes": {"routes", directory, "", router},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, nil, nil)
			file := confFile(s, tt.file)
			tt.spoil(file)
			text, _ := os.ReadFile(file) // there may be none
			place := strings.ReplaceAll(tt.place, "$", fmt.Sprint(strings.Count(string(text), "\n")))
			refused(t, s, tt.calls, file+place)
		})
	}
	t.Run("forbidden file", func(t *testing.T) {
		s := prepare(t, nil, nil)
		assert.Must(t, os.Chmod(s.Config(), 0))
		for _, c := range everyProgram() {
			cmd := s.Command(c[0], c[1:]...)
			cmd.Dir = s.Dir
			asNobody(cmd)
			if said, code := run(t, cmd); code != config.ExitConfig || !strings.Contains(said, s.Config()) {
				t.Errorf("%q: exit code %d, %s", c, code, said)
			}
		}
	})
}

// appends adds text to a file.
func appends(t *testing.T, text string) func(file string) {
	return func(file string) {
		old, _ := os.ReadFile(file) // there may be none
		write(t, file, string(old)+text)
	}
}

// A table that becomes bad while the router runs is refused with its line, the old one stays,
// and a corrected one is read.
func TestBadTableIsRefusedWhileRunning(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	good := read(t, confFile(s, "routes"))
	event(t, s, "started", "program", "router") // its tables are read by then
	tries := 0
	until := func(word string, pairs ...string) suite.Event {
		t.Helper()
		// Tables are checked when there is something to route, once a second.
		await(t, s, word, func() (bool, error) {
			tries++
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
			return s.Count(word, pairs...) > 0, sink.Wait(tries, patience)
		})
		return event(t, s, word, pairs...)
	}
	configure(t, s, "routes", good+".example.org nowhere\n")
	e := until("table-refused", "file", "/routes", "reason", "/routes:2: ")
	assert.Equal(t, e.Level, "ERROR")
	configure(t, s, "routes", good+"# mended\n")
	until("table-read", "file", "/routes")
}

// nobody is the uid of a user that owns nothing.
const nobody = 65534

// asNobody has a command run without root's rights.
func asNobody(cmd *exec.Cmd) {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

// Z8: a route to a channel without a clause is logged as an error, the recipient waits and is
// listed, and a corrected scheduler.conf delivers after a restart.
func TestRecipientOfUnknownChannelWaits(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["routes"] += "coop.example smtp-slow!" + sink.RouteHost() + "\n"
	})
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "bird@coop.example", "far@sink.example")
	e := event(t, s, "unknown-channel", "rcpt", "bird@coop.example", "channel", "smtp-slow", "reason", "scheduler.conf")
	if e.Level != "ERROR" || e.Get("id") == "" || e.Get("host") == "" {
		t.Errorf("got %+v", e)
	}
	assert.Must(t, sink.Wait(1, patience))
	wantIn(t, zmctl(t, s, "queue", "--state", "unserved", "--json"), e.Get("id"), "bird@coop.example")
	wantIn(t, zmctl(t, s, "why", e.Get("id")), "<bird@coop.example>")
	stop(t, s)
	configure(t, s, "scheduler.conf", strings.ReplaceAll(schedulerConf, "smtp/*\n", "smtp-slow/*\nsmtp/*\n"))
	restart(t, s)
	awaitEmpty(t, s)
}

// M17: a specification with an unknown format bit, or a corrupt one, is left as it is, byte for
// byte, and reported; other mail goes on. Corrected by hand, it is delivered.
func TestUnusableSpecificationIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(spec string) string{
		"unknown format bit": func(spec string) string { return strings.Replace(spec, "@ 0x00000007", "@ 0x00000087", 1) },
		"invalid line":       func(spec string) string { return strings.Replace(spec, "\no ", "\no x", 1) },
		"binary":             func(spec string) string { return "\x00\x01\x02" + spec[3:] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newRefusing(t)
			s := start(t, sink.Sink, nil)
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "first@sink.example")
			id := event(t, s, "deferred", "rcpt", "first@sink.example").Get("id")
			stop(t, s)
			name := only(t, s, "transport")
			good := read(t, path(s, "transport/"+name))
			bad := spoil(good)
			if bad == good {
				t.Fatalf("not spoilt: %q", good)
			}
			write(t, path(s, "transport/"+name), bad)
			s.Forget()
			restart(t, s)
			assert.Equal(t, event(t, s, "specification-refused", "name", name).Level, "ERROR")
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "ok@sink.example")
			assert.Must(t, sink.Wait(1, patience))
			wantIn(t, exits(t, s, 2, "zmctl", "check", "--problems"), "transport/"+name)
			wantIn(t, zmctl(t, s, "queue"), id)
			stop(t, s)
			assert.Equal(t, read(t, path(s, "transport/"+name)), bad)
			write(t, path(s, "transport/"+name), good)
			close(sink.open)
			s.Forget()
			restart(t, s)
			event(t, s, "delivered", "id", id)
			awaitEmpty(t, s)
		})
	}
}

// M12: a file with a broken envelope goes to postman/, the only copy, and is logged; other mail
// goes on.
func TestBrokenEnvelopeIsSetAside(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	for n, text := range []string{
		"\x7fELF\x00\x01\x02\x03",
		"from <bob@mta.example>\nenv-end\nSubject: x\n\nbody\n",
		"from <bob@mta.example>\nto <far@sink.example\nenv-end\nSubject: x\n\nbody\n",
		"from <bob@mta.example>\nto <far@sink.exa",
		"",
	} {
		file := place(t, s, "router", text)
		e := event(t, s, "set-aside", "name", "postman/"+file)
		if e.Level != "ERROR" || e.Get("reason") == "" || e.Get("id") == "" {
			t.Errorf("%q: got %+v", text, e)
		}
		assert.Equal(t, read(t, path(s, "postman/"+file)), text, file)
		wantIn(t, zmctl(t, s, "queue"), e.Get("id"))
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
		assert.Must(t, sink.Wait(n+1, patience))
	}
}

// A1: a second scheduler ends at once and names the first.
func TestSecondSchedulerNamesTheFirst(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	// It has the postoffice by now: smtpserver may listen before.
	first := event(t, s, "started", "program", "scheduler").Get("pid")
	wantIn(t, exits(t, s, 1, "scheduler"), first)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
}

// M50: a directory that is no postoffice, or that spans two file systems, is refused by each
// program that works in one.
func TestUnusablePostofficeIsRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"missing":             func(t *testing.T, dir string) { assert.Must(t, os.RemoveAll(dir)) },
		"without directories": func(t *testing.T, dir string) { assert.Must(t, os.RemoveAll(filepath.Join(dir, "queue"))) },
		"a file": func(t *testing.T, dir string) {
			assert.Must(t, os.RemoveAll(dir))
			write(t, dir, "")
		},
		"two file systems": func(t *testing.T, dir string) {
			needRoot(t)
			dir = filepath.Join(dir, "queue")
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				t.Skipf("a file system cannot be mounted here: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, nil, nil)
			spoil(t, s.PostOffice())
			for _, c := range everyProgram() {
				if !strings.HasPrefix(c[0], "ta-") && c[len(c)-1] != "run" {
					exits(t, s, config.ExitConfig, c[0], c[1:]...)
				}
			}
		})
	}
}
