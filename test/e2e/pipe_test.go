package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// pipeConf is schedulerConf with a clause for programs.
const pipeConf = schedulerConf + `pipe/*
	command="ta-mailbox --slots=2 $channel"
`

// programUser returns the uid of who runs programs in tests; the files that name them are
// that user's.
func programUser() int {
	if os.Geteuid() == 0 {
		return 4711
	}
	return os.Geteuid()
}

// listFDs has a program write its descriptors to $OUT/fds.
const listFDs = "exec > $OUT/fds; for f in /proc/$$/fd/*; do test -e $f && echo ${f##*/}; done; true"

// startLeaky starts a system with a descriptor that is not closed when it starts others.
func startLeaky(t *testing.T) func(cmd *exec.Cmd) error {
	t.Helper()
	f := assert.Get(os.Open(os.DevNull))(t)
	t.Cleanup(func() { f.Close() })
	return func(cmd *exec.Cmd) error {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		return cmd.Start()
	}
}

// wantNothingInherited wants a user's program to have had its input and output alone, and
// no process of ours to leave anything else to what it may start.
func wantNothingInherited(t *testing.T, s *suite.Suite, out string) {
	t.Helper()
	if got := strings.Fields(read(t, out+"/fds")); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("a user's program had the descriptors %q", got)
	}
	for _, p := range processes(t, s) {
		dir := fmt.Sprintf("/proc/%d/fdinfo/", p.Pid)
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range list {
			n, err := strconv.Atoi(e.Name())
			b, rerr := os.ReadFile(dir + e.Name())
			if err != nil || rerr != nil || n < 3 {
				continue // closed meanwhile
			}
			_, rest, _ := strings.Cut(string(b), "flags:")
			flags, err := strconv.ParseUint(strings.Fields(rest)[0], 8, 64)
			if err != nil || flags&syscall.O_CLOEXEC == 0 {
				to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.Pid, n))
				t.Errorf("%s leaves %d, %s, to what it starts", p.Name, n, to)
			}
		}
	}
}

// programs returns a system whose aliases and lists belong to programUser, and a directory
// that everybody may write to: $OUT in the files.
func programs(t *testing.T, files map[string]string, modes map[string]os.FileMode) (s *suite.Suite, out string) {
	t.Helper()
	s = prepare(t, nil, func(s *suite.Suite) { s.Files["scheduler.conf"] = pipeConf })
	out = filepath.Join(s.Dir, "out")
	assert.Must(t, os.Mkdir(out, 0o777))
	assert.Must(t, os.Chmod(out, 0o777))
	for name, text := range files {
		file := filepath.Join(filepath.Dir(s.Config()), name)
		assert.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		write(t, file, strings.ReplaceAll(text, "$OUT", out))
		mode, ok := modes[name]
		if !ok {
			mode = 0o644
		}
		assert.Must(t, os.Chmod(file, mode))
		if os.Geteuid() == 0 {
			assert.Must(t, os.Chown(file, programUser(), programUser()))
		}
	}
	s.Launch = startLeaky(t)
	begin(t, s)
	return s, out
}

// M49 pipe: an alias of a user leads to a program, which gets the message once, as that
// user, and decides by its exit code.
func TestProgramBehindAnAliasGetsTheMail(t *testing.T) {
	t.Parallel()
	s, out := programs(t, map[string]string{"aliases": `take: "|cat > $OUT/message; id -u > $OUT/uid; echo $SENDER $RECIPIENT $EXTENSION $SPOOLID > $OUT/env"
open: "|cat > /dev/null; ` + listFDs + `"
later: "|cat > /dev/null; test -e $OUT/again || { : > $OUT/again; echo not yet; exit 75; }; echo x >> $OUT/later"
never: "|cat > /dev/null; echo 5.7.1 members only; exit 77"
plain: |/bin/cat
`}, nil)
	submit(t, s, "From: <bob@mta.example>\nSubject: to a program\n\nFrom here on\n.\n", "-f", "bob@mta.example", "take@mta.example", "plain@mta.example")
	done := event(t, s, "delivered", "channel", "pipe", "rcpt", fmt.Sprintf("|cat > %[1]s/message; id -u > %[1]s/uid; echo $SENDER $RECIPIENT $EXTENSION $SPOOLID > %[1]s/env", out))
	if said := event(t, s, "delivered", "channel", "pipe", "rcpt", "|/bin/cat").Get("reply"); !strings.HasPrefix(said, "the program took it: From bob@mta.example ") {
		t.Errorf("without a shell: got %q", said)
	}
	message := read(t, out+"/message")
	wantIn(t, message, "Return-Path: <bob@mta.example>\nDelivered-To: take@mta.example\nReceived: ", "Subject: to a program\n\nFrom here on\n.\n")
	if !strings.HasPrefix(message, "From bob@mta.example ") {
		t.Errorf("message begins with %q", abbreviate(message))
	}
	assert.Equal(t, strings.TrimSpace(read(t, out+"/uid")), strconv.Itoa(programUser()), programUser())
	if got, want := read(t, out+"/env"), "bob@mta.example take@mta.example "+done.Get("id")+"\n"; got != want {
		t.Errorf("environment: got %q, want %q", got, want)
	}

	submit(t, s, "Subject: open\n\n", "-f", "bob@mta.example", "open@mta.example")
	event(t, s, "delivered", "channel", "pipe", "rcpt", strings.ReplaceAll("|cat > /dev/null; "+listFDs, "$OUT", out))
	wantNothingInherited(t, s, out)

	submit(t, s, "Subject: twice\n\n", "-f", "bob@mta.example", "later@mta.example")
	event(t, s, "deferred", "channel", "pipe", "status", "4.3.0", "attempt", "1")
	event(t, s, "delivered", "channel", "pipe", "id", event(t, s, "deferred", "channel", "pipe").Get("id"))
	assert.Equal(t, read(t, out+"/later"), "x\n")

	submit(t, s, "Subject: refused\n\n", "-f", "alice@mta.example", "never@mta.example")
	event(t, s, "failed", "channel", "pipe", "status", "5.7.1")
	report := string(awaitMail(t, s, "alice", 1)[0])
	wantIn(t, report, "members only", "never@mta.example", "Status: 5.7.1")
	awaitEmpty(t, s)
}

// M48: a list that others may write to must not run programs; one that only its owner
// may write to does, as that owner.
func TestProgramInAListThatOthersMayWriteIsRefused(t *testing.T) {
	t.Parallel()
	s, out := programs(t, map[string]string{
		"lists/open":   "|cat > /dev/null; echo ran > $OUT/open\n",
		"lists/closed": "|cat > /dev/null; id -u > $OUT/closed\n",
	}, map[string]os.FileMode{"lists/open": 0o666})
	submit(t, s, "Subject: y\n\n", "-f", "bob@mta.example", "open@mta.example")
	event(t, s, "failed", "rcpt", "open@mta.example", "channel", "error")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "closed@mta.example")
	event(t, s, "delivered", "channel", "pipe")
	assert.Equal(t, read(t, out+"/closed"), strconv.Itoa(programUser())+"\n", programUser())
	awaitEmpty(t, s)
	if _, err := os.Stat(out + "/open"); err == nil {
		t.Error("the open list's program ran")
	}
}
