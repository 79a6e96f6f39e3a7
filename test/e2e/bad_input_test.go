package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// everyProgram is a call of each program that would work with a good configuration.
func everyProgram() [][]string {
	calls := [][]string{
		{"submit", "bob@mta.example"}, {"smtpserver"}, {"router"}, {"scheduler"}, {"ta-smtp"}, {"ta-mailbox"},
	}
	for _, c := range []string{"init", "run", "status", "queue", "show S1A1", "resubmit", "check"} {
		calls = append(calls, append([]string{"zmctl"}, strings.Fields(c)...))
	}
	return calls
}

// butInit leaves out zmctl init, which makes the configuration that is named.
func butInit(calls [][]string) [][]string {
	return slices.DeleteFunc(calls, func(c []string) bool { return slices.Contains(c, "init") })
}

// A configuration that cannot be used ends every program that reads it with exit code
// 78 and a message with file, line and reason.
func TestUnusableConfigurationIsToldWithFileAndLine(t *testing.T) {
	t.Parallel()
	scheduler := [][]string{{"scheduler"}, {"scheduler", "--check-config"}, {"zmctl", "run"}}
	router := [][]string{{"router"}, {"router", "--once"}, {"zmctl", "run"}}
	tests := map[string]struct {
		file, text string // appended to a file of the configuration
		calls      [][]string
		want       string // after the file's path
	}{
		"a line that sets nothing":              {"zmailer.conf", "SMTPLISTEN 127.0.0.1:1\n", everyProgram(), ":$: not NAME=value"},
		"a name that nobody knows":              {"zmailer.conf", "HASHLEVEL=1\n", everyProgram(), ":$: HASHLEVEL is not a variable; did you mean HASHLEVELS?"},
		"a value that cannot be":                {"zmailer.conf", "HASHLEVELS=3\n", everyProgram(), ":$: HASHLEVELS=3 cannot be used: it must be one of 0, 1, 2"},
		"a quote that does not end":             {"zmailer.conf", "HOSTNAME=\"x\n", everyProgram(), ":$: HOSTNAME: no closing \" on this line"},
		"bytes that are no text":                {"zmailer.conf", "HOSTNAME=\xff\n", everyProgram(), ":$: a character that is no text"},
		"an address to listen on that is none":  {"zmailer.conf", "SMTPLISTEN=nonsense\n", [][]string{{"smtpserver"}, {"zmctl", "run"}}, ":$: SMTPLISTEN=nonsense "},
		"a network that is none":                {"zmailer.conf", "RELAYNETS=10.0.0.0/99\n", [][]string{{"smtpserver"}, {"zmctl", "run"}}, ":$: RELAYNETS="},
		"a user who is not":                     {"zmailer.conf", "TRUSTED=no-such-user\n", [][]string{{"router"}, {"zmctl", "run"}}, ":$: TRUSTED=no-such-user cannot be used"},
		"one mailbox for all":                   {"zmailer.conf", "MAILBOX=/var/mail\n", [][]string{{"ta-mailbox"}}, ":$: MAILBOX=/var/mail cannot be used: "},
		"a name server that is none":            {"zmailer.conf", "RESOLVER=a:b:c\n", [][]string{{"ta-smtp"}}, ":$: RESOLVER=a:b:c "},
		"a setting nobody knows":                {"scheduler.conf", "smtp/*\n\tintervall=1m\n", scheduler, ":$:2: "},
		"an interval that is none":              {"scheduler.conf", "smtp/*\n\tinterval=soon\n", scheduler, ":$:11: interval=soon: it must be like"},
		"settings without a clause":             {"scheduler.conf", "", scheduler, ""},
		"a route without a channel":             {"routes", ".example.org somewhere\n", router, ":$: "},
		"an alias without a name":               {"aliases", ": bob\n", router, ":$: "},
		"a whole address's alias that has none": {"fqdnaliases", "bob: alice\n", router, ":$: "},
		"a local name that is no domain":        {"localnames", "not a_domain..\n", router, ":$: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, nil, nil)
			file := filepath.Join(filepath.Dir(s.Config()), tt.file)
			text := read(t, file) + tt.text
			if tt.text == "" {
				text, tt.want = "\tinterval=1m\n", ":$:2: "
			}
			write(t, file, text)
			want := file + strings.ReplaceAll(tt.want, "$", fmt.Sprint(strings.Count(text, "\n")))
			refused(t, s, tt.calls, want)
		})
	}
}

// refused calls programs that must end with exit code 78 and say why.
func refused(t *testing.T, s *suite.Suite, calls [][]string, why string) {
	t.Helper()
	for _, c := range calls {
		cmd := s.Command(c[0], c[1:]...)
		cmd.Dir = path(s, "transport")
		said, code := run(t, cmd)
		if code != config.ExitConfig {
			t.Errorf("%q: exit code %d, want %d", c, code, config.ExitConfig)
		}
		if !strings.Contains(said, why) {
			t.Errorf("%q said %s\nwant %q in it", c, said, why)
		}
	}
}

// The same for files that cannot be read.
func TestUnreadableConfigurationIsTold(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		file  string
		spoil func(file string) error
		calls [][]string
		why   string
	}{
		"no such file":              {"zmailer.conf", os.Remove, butInit(everyProgram()), "no such file or directory"},
		"a directory":               {"zmailer.conf", toDirectory, everyProgram(), "is a directory"},
		"a directory of routes":     {"routes", toDirectory, [][]string{{"router"}, {"zmctl", "run"}}, "not a regular file"},
		"a directory of clauses":    {"scheduler.conf", toDirectory, [][]string{{"scheduler"}, {"zmctl", "run"}}, "is a directory"},
		"the list of users missing": {"users", os.Remove, [][]string{{"router"}, {"zmctl", "run"}}, "no such file or directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, nil, nil)
			file := filepath.Join(filepath.Dir(s.Config()), tt.file)
			if err := tt.spoil(file); err != nil {
				t.Fatal(err)
			}
			refused(t, s, tt.calls, tt.why)
			refused(t, s, tt.calls, file)
		})
	}
}

func toDirectory(file string) error {
	if err := os.Remove(file); err != nil {
		return err
	}
	return os.Mkdir(file, 0o755)
}

// Nor is a file without the right to read it.
func TestForbiddenConfigurationIsTold(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	if err := os.Chmod(s.Config(), 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range everyProgram() {
		cmd := s.Command(c[0], c[1:]...)
		cmd.Dir = s.Dir
		asNobody(cmd)
		said, code := run(t, cmd)
		if want := s.Config() + ": cannot be read: permission denied"; code != config.ExitConfig || !strings.Contains(said, want) {
			t.Errorf("%q: exit code %d, %s\nwant %d and %q", c, code, said, config.ExitConfig, want)
		}
	}
}

// A table that turns bad while the router runs is refused with its line, the one read
// before stays, and a mended one is taken.
func TestBadTableIsRefusedWhileRunning(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	good := read(t, filepath.Join(filepath.Dir(s.Config()), "routes"))
	event(t, s, "started", "program", "router") // its tables are read by then
	tries := 0
	until := func(word string, pairs ...string) suite.Event {
		t.Helper()
		// Tables are looked at when there is something to route, once a second.
		await(t, s, word, func() (bool, error) {
			tries++
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
			return s.Count(word, pairs...) > 0, sink.Wait(tries, patience)
		})
		return event(t, s, word, pairs...)
	}
	configure(t, s, "routes", good+".example.org nowhere\n")
	e := until("table-refused", "file", "/routes", "reason", "/routes:2: ")
	if e.Level != "ERROR" {
		t.Errorf("got level %s, want ERROR", e.Level)
	}
	configure(t, s, "routes", good+"# mended\n")
	until("table-read", "file", "/routes")
}

// nobody is a uid that owns nothing.
const nobody = 65534

// asNobody has a command run without root's rights.
func asNobody(cmd *exec.Cmd) {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

// Z8: a route to a channel that nobody serves is reported loudly, the recipient
// waits, zmctl tells why, and a mended scheduler.conf delivers after a restart.
func TestUnknownChannelWaitsLoudly(t *testing.T) {
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
	if err := sink.Wait(1, patience); err != nil {
		t.Fatal(err)
	}
	wantIn(t, zmctl(t, s, "queue"), e.Get("id"), "bird@coop.example", "no clause of scheduler.conf")
	wantIn(t, zmctl(t, s, "queue", "--state", "unserved"), "bird@coop.example", "1 message")
	wantIn(t, zmctl(t, s, "why", e.Get("id")), "<bird@coop.example>", "is not served: ", "no clause of scheduler.conf")
	wantIn(t, zmctl(t, s, "show", e.Get("id")), "no clause of scheduler.conf")
	stop(t, s)
	configure(t, s, "scheduler.conf", strings.ReplaceAll(schedulerConf, "smtp/*\n", "smtp-slow/*\nsmtp/*\n"))
	s.Forget()
	restart(t, s)
	awaitEmpty(t, s)
}

// M17: a specification with a format bit that nobody knows is left as it is, byte for
// byte; one that is corrupt likewise. Both are told with what to do, and the rest goes
// on.
func TestUnusableSpecificationIsLeftAlone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spoil func(spec string) string
		want  []string
	}{
		"unknown format bit (M17)": {
			func(spec string) string { return strings.Replace(spec, "@ 0x00000007", "@ 0x00000087", 1) },
			[]string{"unknown format bits", "0x00000087", "another program's file"},
		},
		"a line that is none": {
			func(spec string) string { return strings.Replace(spec, "\no ", "\no x", 1) },
			[]string{"line", "left alone"},
		},
		"binary": {
			func(spec string) string { return "\x00\x01\x02" + spec[3:] },
			[]string{"line", "left alone"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			full := true
			sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
				if full && address == "first@sink.example" {
					return "451 4.2.2 full"
				}
				return ""
			}})
			s := start(t, sink, nil)
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "first@sink.example")
			id := event(t, s, "deferred", "rcpt", "first@sink.example").Get("id")
			stop(t, s)
			name := only(t, s, "transport")
			good := read(t, path(s, "transport/"+name))
			bad := tt.spoil(good)
			if bad == good {
				t.Fatalf("not spoilt: %q", good)
			}
			write(t, path(s, "transport/"+name), bad)
			s.Forget()
			restart(t, s)
			e := event(t, s, "specification-refused", "name", name)
			if e.Level != "ERROR" {
				t.Errorf("got level %s, want ERROR", e.Level)
			}
			wantIn(t, e.Get("reason")+" "+e.Get("advice"), tt.want...)
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "second@sink.example")
			if err := sink.Wait(1, patience); err != nil {
				t.Fatal(err)
			}
			said, code := call(t, s, "zmctl", "check", "--problems")
			wantIn(t, said, "transport/"+name)
			if code != 2 {
				t.Errorf("zmctl check: exit code %d, want 2", code)
			}
			wantIn(t, zmctl(t, s, "queue"), id, "PROBLEM")
			stop(t, s)
			if got := read(t, path(s, "transport/"+name)); got != bad {
				t.Errorf("the file was changed to %q", got)
			}
			// Mended by hand, it goes on where it was.
			write(t, path(s, "transport/"+name), good)
			full = false
			s.Forget()
			restart(t, s)
			event(t, s, "delivered", "id", id)
			awaitEmpty(t, s)
		})
	}
}

// M12: a file with a broken envelope goes to postman/, the only copy, and is logged;
// others go on.
func TestBrokenEnvelopeIsSetAside(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"no envelope at all":  "\x7fELF\x00\x01\x02\x03",
		"no recipient":        "from <bob@mta.example>\nenv-end\nSubject: x\n\nbody\n",
		"a bracket too few":   "from <bob@mta.example>\nto <far@sink.example\nenv-end\nSubject: x\n\nbody\n",
		"cut in the envelope": "from <bob@mta.example>\nto <far@sink.exa",
		"empty":               "",
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	n := 0
	for name, text := range tests {
		file := place(t, s, "router", text)
		e := event(t, s, "set-aside", "name", "postman/"+file)
		if e.Level != "ERROR" || e.Get("reason") == "" || e.Get("id") == "" {
			t.Errorf("%s: got %+v", name, e)
		}
		if got := read(t, path(s, "postman/"+file)); got != text {
			t.Errorf("%s: postman/%s holds %q", name, file, got)
		}
		n++
		wantIn(t, zmctl(t, s, "queue"), e.Get("id"))
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
		if err := sink.Wait(n, patience); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, s, "postman"); len(got) != len(tests) {
		t.Errorf("postman/ holds %q", got)
	}
}

// M50: directories on two file systems are found at the start.
func TestDirectoryOnAnotherFileSystemIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	s := prepare(t, nil, nil)
	dir := path(s, "queue")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	calls := everyProgram()
	for i, c := range calls {
		if c[len(c)-1] == "init" {
			calls = append(calls[:i], calls[i+1:]...) // it makes what is missing, and mends nothing
			break
		}
	}
	refused(t, s, calls, "directories on different file systems; put both on one")
	refused(t, s, calls, "queue")
}

// A1: a second scheduler ends at once and names the one that is there.
func TestSecondSchedulerNamesTheFirst(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	// It has the postoffice by now: smtpserver may listen before.
	first := "pid " + event(t, s, "started", "program", "scheduler").Get("pid")
	said, code := call(t, s, "scheduler")
	if code != 1 || !strings.Contains(said, first) {
		t.Errorf("got exit code %d and %q, want 1 and %q", code, said, first)
	}
	// The first goes on.
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
}

// A directory that is no postoffice is refused by everything but what makes one.
func TestDirectoryThatIsNoPostofficeIsRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spoil func(dir string) error
		why   string
	}{
		"missing":             {func(dir string) error { return os.RemoveAll(dir) }, "no such file or directory"},
		"without directories": {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "queue")) }, "not a postoffice; zmctl init makes one"},
		"a file":              {func(dir string) error { return os.RemoveAll(dir) }, "not a directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, nil, nil)
			if err := tt.spoil(s.PostOffice()); err != nil {
				t.Fatal(err)
			}
			if name == "a file" {
				write(t, s.PostOffice(), "")
			}
			for _, c := range everyProgram() {
				last := c[len(c)-1]
				if strings.HasPrefix(c[0], "ta-") || last == "init" || last == "run" {
					continue
				}
				said, code := call(t, s, c[0], c[1:]...)
				if code != config.ExitConfig {
					t.Errorf("%q: exit code %d, want %d", c, code, config.ExitConfig)
				}
				wantIn(t, said, s.PostOffice(), tt.why)
			}
		})
	}
}
