package mailbox

import (
	"errors"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// runner returns a uid that programs run as in tests: ours, or that of the user nobody if we
// are root.
func runner() string {
	if os.Geteuid() == 0 {
		return "4711"
	}
	return strconv.Itoa(os.Geteuid())
}

// programTo returns the r line of a program, sent to the address that an alias led from.
func programTo(command, uid, original string) workspec.Recipient {
	r := workspec.Recipient{Channel: "pipe", Host: "pipe." + uid, Address: "|" + command, Privilege: uid}
	if original != "" {
		r.Notary = "ORCPT=rfc822;" + original
	}
	return r
}

// openDir returns a directory that everybody may write to.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pipe")
	assert.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o777))
	return dir
}

// newPipePost returns a post whose programs get every line on top.
func newPipePost(t *testing.T) *post {
	p := newPost(t, "$MAIL/%u")
	p.mailbox.c.Pipe.Head = HeadLines()
	return p
}

// M49 pipe
func TestProgramGetsTheMessageAndNothingElse(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	t.Setenv("SECRET", "of the agent")
	name := p.queue("s'x@example.org", "Subject: x\n\n", "From here\n.\nno newline", programTo(
		"{ cat; } > "+dir+"/message; env > "+dir+"/env; pwd > "+dir+"/pwd; id -u > "+dir+"/uid; id -G > "+dir+"/groups",
		runner(), "jim+2Bnews;x@example.org"))
	p.one(p.do(name), "\tok3 the program took it")
	want := "From s'x@example.org Sat Nov 21 00:12:50 2026\nReturn-Path: <s'x@example.org>\nDelivered-To: jim+news;x@example.org\n" +
		"Received: here\nSubject: x\n\nFrom here\n.\nno newline"
	assert.Same(t, p.read(dir+"/message"), want, "message")
	env := strings.Split(strings.TrimSpace(p.read(dir+"/env")), "\n")
	env = slices.DeleteFunc(env, func(s string) bool { // a shell's own
		return strings.HasPrefix(s, "PWD=") || strings.HasPrefix(s, "_=") || strings.HasPrefix(s, "SHLVL=") || strings.HasPrefix(s, "OLDPWD=")
	})
	slices.Sort(env)
	wantEnv := []string{"DOMAIN=example.org", "EXTENSION=news_x", "HOME=/", "LOCAL=jim+news_x", "LOGNAME=4711",
		"PATH=/usr/local/bin:/usr/bin:/bin", "RECIPIENT=jim+news_x@example.org", "SENDER=s_x@example.org", "SHELL=/bin/sh", "SPOOLID=", "USER=4711"}
	for i, e := range env {
		if strings.HasPrefix(e, "SPOOLID=S") {
			env[i] = "SPOOLID="
		}
	}
	if os.Geteuid() == 0 {
		assert.Same(t, env, wantEnv, "environment")
		assert.Equal(t, p.read(dir+"/pwd"), "/\n", "working directory")
		if got := strings.Fields(p.read(dir + "/groups")); len(got) != 1 || got[0] == "0" {
			t.Errorf("groups: got %q, want one that is not root's", got)
		}
	}
	assert.Equal(t, p.read(dir+"/uid"), runner()+"\n", "uid")
	assert.Equal(t, p.Spec(name).Groups[0].Recipients[0].Tag, workspec.TagOK, "tag")
}

// What a program's end means. Only codes that say so are permanent; trouble of this
// machine is never the sender's.
func TestExitCodeDecides(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		want    string // pattern of the report to the scheduler
	}{
		"taken":                       {"cat > /dev/null", `^\tok3 the program took it$`},
		"taken with a word":           {"cat > /dev/null; echo filed", `^\tok3 the program took it: filed$`},
		"EX_NOUSER":                   {"echo no such list; exit 67", `error2? .*5\.1\.1 the program exited with 67: no such list`},
		"EX_NOHOST":                   {"exit 68", `error2? .*5\.1\.2 the program exited with 68`},
		"EX_DATAERR":                  {"exit 65", `error2? .*5\.6\.0 `},
		"EX_UNAVAILABLE":              {"exit 69", `error2? .*5\.3\.0 `},
		"EX_PROTOCOL":                 {"exit 76", `error2? .*5\.5\.0 `},
		"EX_NOPERM":                   {"exit 77", `error2? .*5\.7\.0 `},
		"its own status":              {"echo 5.7.1 members only >&2; exit 77", `error2? .*5\.7\.1 the program exited with 77: members only`},
		"a status of another class":   {"echo 2.0.0 fine; exit 77", `error2? .*5\.7\.0 the program exited with 77: 2\.0\.0 fine`},
		"EX_TEMPFAIL":                 {"exit 75", `deferred .*4\.3\.0 the program exited with 75`},
		"EX_USAGE is ours":            {"exit 64", `deferred .*4\.3\.0 `},
		"EX_CONFIG is ours":           {"exit 78", `deferred .*4\.3\.5 `},
		"any other":                   {"exit 1", `deferred .*4\.3\.0 the program exited with 1`},
		"not there, by a shell":       {"no-such-program x; exit $?", `deferred .*4\.3\.5 the program exited with 127`},
		"not there":                   {"/nonexistent/program", `deferred .*4\.3\.5 the program cannot be started`},
		"not executable":              {"/etc/passwd", `deferred .*4\.3\.5 the program cannot be started`},
		"ended by a signal":           {"kill -SEGV $$", `deferred .*4\.3\.0 the program was ended by SIGSEGV`},
		"control characters":          {"printf 'a\\033[1mb\\377'; exit 67", `exited with 67: a \[1mb\?`},
		"nothing of it read":          {"exec true < /dev/null", `^\tok3 `},
		"no program":                  {" ", `error2? .*5\.1\.3 not a bar and a program`},
		"no shell":                    {"/bin/cat /dev/null", `^\tok3 the program took it$`},
		"an argument that is no code": {"/bin/echo $(id)", `^\tok3 the program took it: uid=`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPipePost(t)
			queued := p.queue("s@example.org", "Subject: x\n\n", strings.Repeat("a line\n", 40000), programTo(c.command, runner(), ""))
			got := p.do(queued)
			p.oneLike(got, c.want)
			if strings.ContainsRune(got[0], 0x1b) || !utf8.ValidString(got[0]) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	assert.Must(t, err)
	fd, err := unix.PidfdOpen(n, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	assert.Must(t, err)
	defer unix.Close(fd)
	for deadline := time.Now().Add(time.Minute); ; {
		left := int(time.Until(deadline).Milliseconds())
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(left, 0))
		switch {
		case ready == 1:
			return
		case left <= 0 || err != nil && !errors.Is(err, unix.EINTR):
			t.Fatalf("process %s lives: %v", pid, err)
		}
	}
}

func TestProgramIsKilledAtItsLimitWithAllItsProcesses(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	p.mailbox.c.Pipe.Limit = 200 * time.Millisecond
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", strings.Repeat("x\n", 1<<20), programTo(
		"sleep 1000 & echo $! $$ > "+dir+"/pids; wait", runner(), "")))
	p.oneLike(got, "deferred .*the program was killed, it had run for 200ms")
	pids := strings.Fields(p.read(dir + "/pids"))
	if len(pids) != 2 {
		t.Fatalf("pids: got %q", pids)
	}
	for _, pid := range pids {
		gone(t, pid)
	}
}

// A process that the program leaves behind keeps its output open; that does not hold
// the delivery up.
func TestProgramThatLeavesAProcessBehindIsDone(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo(
		"cat > /dev/null; setsid sleep 1000 & echo $! > "+dir+"/pid; echo done", runner(), "")))
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(strings.TrimSpace(p.read(dir + "/pid"))); err == nil {
			if left, err := os.FindProcess(pid); err == nil {
				left.Kill()
			}
		}
	})
	p.one(got, "\tok3 the program took it: done")
}

// Sec1: a program has no controlling terminal, also where its agent has one: it could type
// into it what root's shell then reads.
func TestSec1ProgramHasASessionOfItsOwn(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo(
		"cat > /dev/null; read pid comm state parent group session rest < /proc/$$/stat; echo $$ $group $session > "+dir+"/ids", runner(), "")))
	p.one(got, "\tok3 ")
	ids := strings.Fields(p.read(dir + "/ids"))
	if len(ids) != 3 || ids[1] != ids[0] || ids[2] != ids[0] {
		t.Errorf("process, group and session are %q, want the same number", ids)
	}
}

func TestOutputIsKeptInPart(t *testing.T) {
	p := newPipePost(t)
	name := p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("cat > /dev/null; yes line | head -c 3000000; exit 67", runner(), ""))
	p.one(p.do(name), "exited with 67: line")
	d := p.Spec(name).Diagnostics
	if len(d) != 1 || len(d[0].Text) < maxOutput/2 || len(d[0].Text) > 2*maxOutput {
		t.Errorf("diagnostics: got %d, want one of about %d bytes", len(d), maxOutput)
	}
}

// M48: never as root, never as nobody, unless that is configured.
func TestProgramIsRefusedWithoutAnOwner(t *testing.T) {
	for name, c := range map[string]struct {
		uid    string
		config Pipe
		want   string
	}{
		"root's file":                    {"0", Pipe{}, `deferred .*4\.3\.5 .*set PIPEUSER`},
		"root's file, user unknown":      {"0", Pipe{User: "no-such-user-here"}, `deferred .*4\.3\.5 .*PIPEUSER in zmailer.conf cannot be looked up`},
		"root's file, user is root":      {"0", Pipe{User: "root"}, `deferred .*4\.3\.5 .*PIPEUSER in zmailer.conf is root`},
		"a file that others write to":    {"65534", Pipe{}, `deferred .*4\.3\.5 .*may be written by other users`},
		"no privilege at all":            {"what?", Pipe{}, `deferred .*4\.3\.5 .*may be written by other users`},
		"PIPEUSER is not for uid nobody": {"65534", Pipe{User: "nobody"}, `deferred .*4\.3\.5 .*may be written by other users`},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir := newPipePost(t), openDir(t)
			p.mailbox.c.Pipe = c.config
			p.mailbox.c.Pipe.Limit = time.Minute
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("echo ran > "+dir+"/ran", c.uid, "")))
			p.oneLike(got, c.want)
			if names := p.names(dir); len(names) != 0 {
				t.Errorf("it ran: %q", names)
			}
		})
	}
}

func TestProgramRunsAsWhomIsConfigured(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as others")
	}
	for name, c := range map[string]struct {
		uid    string
		config Pipe
	}{
		"root's file":                 {"0", Pipe{User: "nobody"}},
		"a file that others write to": {"65534", Pipe{Nobody: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir := newPipePost(t), openDir(t)
			p.mailbox.c.Pipe = c.config
			p.mailbox.c.Pipe.Limit = time.Minute
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("id -u > "+dir+"/uid", c.uid, "")))
			if len(got) != 1 || !strings.HasPrefix(got[0], "\tok3") || p.read(dir+"/uid") != "65534\n" {
				t.Errorf("got %q, uid %q", got, p.read(dir+"/uid"))
			}
		})
	}
}

// The program has the whole message from its start: an agent that is killed leaves no
// part of it.
func TestProgramReadsAFileThatIsWhole(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	body := strings.Repeat("a line\n", 40000)
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", body, programTo(
		"stat -L -c '%F %s %h' /dev/stdin; cat /dev/stdin > "+dir+"/again; cat > "+dir+"/message; echo x 1>&0", runner(), "")))
	if len(got) != 1 || !strings.Contains(got[0], "deferred") { // the last write fails
		t.Fatalf("got %q, want an input that cannot be written", got)
	}
	message := p.read(dir + "/message")
	if !strings.HasSuffix(message, "Subject: x\n\n"+body) || p.read(dir+"/again") != message {
		t.Errorf("got %d bytes, and %d of /dev/stdin", len(message), len(p.read(dir+"/again")))
	}
	if want := "regular file " + strconv.Itoa(len(message)) + " 0"; !strings.Contains(got[0], want) {
		t.Errorf("input: got %q, want %s", got, want)
	}
	if names := p.names(filepath.Join(p.Dir, "transport")); len(names) > 1 {
		t.Errorf("in transport/: %q", names)
	}
}

// What cannot be written whole is given to no program.
func TestProgramInputThatIsNotWhole(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"message cannot be read": {unix.EIO, "4.3.0"},
		"disk is full":           {unix.ENOSPC, "4.3.1"},
		"quota":                  {unix.EDQUOT, "4.3.1"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := inputFile(t.TempDir(), func(w io.Writer) error {
				_, err := w.Write([]byte("Subject: x\n"))
				return errors.Join(err, c.err)
			})
			if code, _ := classify(err); in != nil || !errors.Is(err, c.err) || code.String() != c.want {
				t.Errorf("got %v, %v, want %s", in, err, c.want)
			}
		})
	}
}

func TestProgramWaitsForAPostofficeThatCanBeWritten(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	p.mailbox.c.PostOffice = filepath.Join(p.Dir, "nowhere")
	name := p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("echo ran > "+dir+"/ran", runner(), ""))
	got := p.do(name)
	p.oneLike(got, `deferred .*4\.3\.0 the message cannot be given`)
	if names := p.names(dir); len(names) != 0 {
		t.Errorf("it ran: %q", names)
	}
}

// Trouble with the look-up does not make a user one without an account.
func TestProgramWaitsForItsUser(t *testing.T) {
	for name, fails := range map[string]int{"group": 1, "home": 2} {
		t.Run(name, func(t *testing.T) {
			p, dir := newPipePost(t), openDir(t)
			lookup, calls := p.mailbox.users.lookupID, 0
			p.mailbox.users.lookupID = func(uid string) (*user.User, error) {
				if calls++; calls == fails {
					return nil, unix.EIO
				}
				return lookup(uid)
			}
			name := p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("echo ran > "+dir+"/ran", runner(), ""))
			got := p.do(name)
			p.oneLike(got, `deferred .*4\.3\.0 users cannot be looked up`)
			if names := p.names(dir); len(names) != 0 {
				t.Errorf("it ran: %q", names)
			}
		})
	}
}

// Whose agent died while its program ran is in doubt, and run again.
func TestProgramOfADeadAgentIsInDoubtAndRunAgain(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	name := p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("echo ran >> "+dir+"/ran", runner(), ""))
	rcpt := p.Spec(name).Groups[0].Recipients[0].Offset
	p.Event(name, workspec.Event{Time: testTime, Recipient: rcpt, Event: workspec.EventSent,
		Attrs: []workspec.Attr{{Key: "owner", Value: "999"}}})
	p.one(p.do(name), "\tok3")
	assert.Equal(t, p.read(dir+"/ran"), "ran\n")
	if !strings.Contains(p.log.String(), "msg=in-doubt") {
		t.Errorf("the doubt was not said:\n%s", p.log)
	}
}

// M18: a program whose agent is killed while it runs may have done its work: that is recorded before
// it starts, so that the next agent knows.
func TestProgramIsRecordedBeforeItRuns(t *testing.T) {
	p, dir := newPipePost(t), openDir(t)
	name := p.queue("s@example.org", "Subject: x\n\n", "b\n", programTo("echo once >> "+dir+"/runs", runner(), ""))
	p.one(p.do(name), "\tok3 ")
	assert.Equal(t, p.again(name), true, "in doubt")
	assert.Equal(t, p.read(dir+"/runs"), "once\nonce\n", "runs")
}
