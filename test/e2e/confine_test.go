package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/smtp"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// daemonUser is the user of the daemons in these tests.
const daemonUser = "daemon"

// idsOf returns the uid and gid of a user that the test needs.
func idsOf(t *testing.T, login string) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup(login)
	if err != nil {
		t.Skipf("this system has no user %s", login)
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	if uerr != nil || gerr != nil {
		t.Fatal(uerr, gerr)
	}
	return uid, gid
}

// confined returns a system whose daemons run as daemonUser, started by root, for users of
// the machine.
func confined(t *testing.T, sink *peer.Sink, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	needRoot(t)
	idsOf(t, daemonUser)
	return prepare(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{
			"DAEMONUSER": daemonUser, "LOCALUSERS": "passwd",
			"METRICS": "unix",
			"FORWARD": filepath.Join(s.Dir, "forward") + "/%u/forward",
		}
		s.Files["scheduler.conf"] = pipeConf
		assert.Must(t, os.Mkdir(filepath.Join(s.Dir, "forward"), 0o755))
		if change != nil {
			change(s)
		}
	})
}

// submitUID submits as a user of the machine.
func submitUID(t *testing.T, s *suite.Suite, uid, gid int, message string, args ...string) {
	t.Helper()
	cmd := s.Command("submit", append([]string{"-i"}, args...)...)
	cmd.Stdin = strings.NewReader(message)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if said, code := run(t, cmd); code != 0 {
		t.Fatalf("submit as uid %d %q: exit code %d\n%s", uid, args, code, said)
	}
}

// standing is a process's rights.
type standing struct{ uid, effective, bounds, noNew string }

func standingOf(t *testing.T, pid int) standing {
	t.Helper()
	var is standing
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", pid))) {
		key, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		switch key {
		case "Uid":
			is.uid = strings.Join(f, " ")
		case "CapEff":
			is.effective = f[0]
		case "CapBnd":
			is.bounds = f[0]
		case "NoNewPrivs":
			is.noNew = f[0]
		}
	}
	return is
}

// Least privilege: mail of two uids, of root and by SMTP reaches a Maildir, an mbox, a
// program behind a closed .forward and another host, and its report comes back, with no
// daemon that is root.
func TestMailFlowsThroughDaemonsThatAreNotRoot(t *testing.T) {
	t.Parallel()
	games, gamesGroup := idsOf(t, "games")
	news, newsGroup := idsOf(t, "news")
	daemon, _ := idsOf(t, daemonUser)
	for name, box := range map[string]string{"Maildir": "/%u/", "mbox": "/%u"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t, &peer.Sink{Final: func(m *peer.Message) string {
				if strings.HasPrefix(m.Recipients[0], "no@") {
					return "550 5.1.1 no such user"
				}
				return ""
			}})
			s := confined(t, sink, func(s *suite.Suite) {
				s.Settings["MAILBOX"] = filepath.Join(s.Dir, "mail") + box
				s.Launch = startLeaky(t)
				s.SMTPAddr = fmt.Sprintf("127.%d.%d.%d:26", os.Getpid()/250%250, os.Getpid()%250+1, len(name)) // root alone listens there
			})
			forward, out := filepath.Join(s.Dir, "forward", "news"), filepath.Join(s.Dir, "out")
			for dir, mode := range map[string]os.FileMode{forward: 0o700, out: 0o777} {
				assert.Must(t, os.MkdirAll(dir, 0o755))
				assert.Must(t, os.Chmod(dir, mode))
			}
			file := filepath.Join(forward, "forward")
			write(t, file, strings.ReplaceAll("games\n\"|cat > $OUT/message; id -u > $OUT/uid; "+listFDs+"\"\n", "$OUT", out))
			for _, name := range []string{forward, file} {
				assert.Must(t, os.Chown(name, news, newsGroup))
			}
			assert.Must(t, os.Chmod(file, 0o600))
			begin(t, s)

			submitUID(t, s, games, gamesGroup, "Subject: one\n\n", "news@mta.example")
			event(t, s, "delivered", "channel", "pipe")
			event(t, s, "delivered", "channel", "local")
			submitUID(t, s, nobody, nobody, "Subject: two\n\n", "games@mta.example", "far@sink.example")
			submit(t, s, "Subject: three\n\n", "-f", "games@mta.example", "games@mta.example")
			assert.Must(t, smtp.SendMail(s.SMTPAddr, nil, "out@far.example", []string{"games@mta.example"}, []byte("Subject: four\r\n\r\n")))
			submitUID(t, s, games, gamesGroup, "Subject: five\n\n", "no@sink.example")
			event(t, s, "report", "rcpt", "games@mta.example")
			awaitEmpty(t, s)

			wantNothingInherited(t, s, out)
			assert.Equal(t, strings.TrimSpace(read(t, out+"/uid")), strconv.Itoa(news), news)
			mailbox := filepath.Join(s.Dir, "mail", "games")
			if got := allIn(t, mailbox); strings.Count(got, "Subject: ") < 5 {
				t.Errorf("got %q, want one, two, three, four and a report", got)
			} else {
				wantIn(t, got, "Subject: one", "Subject: two", "Subject: three", "Subject: four", "no such user")
			}
			info, err := os.Stat(mailbox)
			assert.Must(t, err)
			assert.Equal(t, int(info.Sys().(*syscall.Stat_t).Uid), games)
			wantEach(t, sink, 1, "far@sink.example")
			checkStandings(t, s, daemon)
			if name == "mbox" {
				// While the helper that opens closed files restarts, none is taken for unreadable.
				for _, p := range processes(t, s) {
					if roleOf(t, p) == "opener" {
						assert.Must(t, p.Kill())
					}
				}
				submitUID(t, s, games, gamesGroup, "Subject: six\n\n", "news@mta.example")
				await(t, s, "the program behind the .forward", func() (bool, error) {
					return strings.Contains(read(t, out+"/message"), "Subject: six"), nil
				})
				awaitEmpty(t, s)
				wantNone(t, s, "forward-ignored")
			}
			exits(t, s, 0, "zmctl", "check", "--problems")
			for _, name := range []string{"smtpserver", "router", "scheduler"} {
				if _, err := os.Stat(path(s, ".metrics."+name)); err != nil {
					t.Errorf("no metrics of %s: %v", name, err)
				}
			}
			wantNone(t, s, "not-routed", "ledger-trouble", "agent-killed")
			stop(t, s)
			if left := processes(t, s); len(left) > 0 {
				t.Errorf("after the stop there are %v", left)
			}
		})
	}
}

// allIn returns all that is in a mailbox, a file or a directory.
func allIn(t *testing.T, path string) string {
	t.Helper()
	mail := assert.Get(suite.Mail(path))(t)
	if len(mail) == 0 {
		return read(t, path)
	}
	all := ""
	for _, m := range mail {
		all += string(m)
	}
	return all
}

// roleOf returns a process's program, or the role that its command line gives it.
func roleOf(t *testing.T, p suite.Process) string {
	t.Helper()
	args := read(t, fmt.Sprintf("/proc/%d/cmdline", p.Pid))
	switch {
	case strings.Contains(args, "--start-agents"):
		return "launcher"
	case strings.Contains(args, "--open-files"):
		return "opener"
	case strings.Contains(args, "--open-keys"):
		return "keys of " + p.Name
	}
	return p.Name
}

// checkStandings wants each process to have the rights that docs/privileges.md lists.
func checkStandings(t *testing.T, s *suite.Suite, daemon int) {
	t.Helper()
	own := strings.TrimSpace(strings.Repeat(strconv.Itoa(daemon)+" ", 4))
	// Bits of capabilities(7): dac_read_search; with net_bind_service; chown to setuid; with setpcap and sys_nice.
	const none, search, opening, becoming, starting = "0000000000000000", "0000000000000004", "0000000000000404", "00000000000000ff", "00000000008001ff"
	want := map[string]standing{
		"smtpserver":         {own, none, none, "1"},
		"router":             {own, none, none, "1"},
		"opener":             {own, search, search, "1"},
		"keys of smtpserver": {own, opening, opening, "1"},
		"keys of scheduler":  {own, search, search, "1"},
		"scheduler":          {own, none, none, "1"},
		"ta-smtp":            {own, none, none, "1"},
		"ta-mailbox":         {"0 0 0 0", becoming, becoming, "0"},
		"launcher":           {"0 0 0 0", starting, starting, "0"},
	}
	seen := map[string]int{}
	for _, p := range processes(t, s) {
		name := roleOf(t, p)
		seen[name]++
		if w, got := want[name], standingOf(t, p.Pid); w != (standing{}) && got != w {
			t.Errorf("%s is %+v, want %+v", name, got, w)
		}
	}
	for name := range want {
		if seen[name] == 0 {
			t.Errorf("no %s runs", name)
		}
	}
}

// M41: each program of a confined system tries to do what it must not, and fails.
func TestEachProgramIsHeldByItsSandbox(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, func(s *suite.Suite) { delete(s.Settings, "METRICS") })
	begin(t, s)
	submit(t, s, "Subject: x\n\n", "hold@mta.example")
	if e := event(t, s, "confined", "program", "smtpserver"); !strings.HasPrefix(e.Get("landlock"), "abi ") {
		t.Skipf("the kernel has no Landlock: %s", e.Get("landlock"))
	}
	var list []struct {
		Program, Try string
		Refused      bool
	}
	assert.Must(t, json.Unmarshal([]byte(zmctl(t, s, "check", "--confinement", "--json")), &list))
	tries := map[string]int{}
	for _, l := range list {
		tries[l.Program]++
		if !l.Refused {
			t.Errorf("%s could %s", l.Program, l.Try)
		}
	}
	if len(list) < 50 || len(tries) < 6 {
		t.Errorf("%d tries by %v", len(list), tries)
	}
}

// CONFINE=yes holds the programs of an ordinary user to their directories.
func TestConfinementNeedsNoRoot(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"CONFINE": "yes"} })
	event(t, s, "confined", "program", "router")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example", "far@sink.example")
	awaitMail(t, s, "alice", 1)
	assert.Must(t, sink.Wait(1, patience))
	event(t, s, "confined", "program", "ta-smtp")
	awaitEmpty(t, s)
}

// Op5 (drain): a confined smtpserver follows the file of suspensions, which each change replaces,
// also one that an earlier version has left beside the directories.
func TestOp5ConfinedSystemIsDrained(t *testing.T) {
	t.Parallel()
	for name, prepared := range map[string]func(t *testing.T) *suite.Suite{
		"a user of its own": func(t *testing.T) *suite.Suite { return confined(t, nil, nil) },
		"an ordinary user": func(t *testing.T) *suite.Suite {
			return prepare(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"CONFINE": "yes"} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := prepared(t)
			later := []string{postoffice.Suspended, postoffice.Clients, postoffice.Verify} // an earlier version has made none of them
			for _, dir := range later {
				assert.Must(t, os.Remove(path(s, dir)))
			}
			earlier := path(s, postoffice.EarlierSuspensions)
			write(t, earlier, "zmailer-suspensions 1\naccepting order=20261126-000000-drain-1 since=2026-11-26T00:00:00Z by=\"ann\"\n")
			if uid := os.Getuid(); uid == 0 && name != "an ordinary user" {
				daemon, group := idsOf(t, daemonUser)
				assert.Must(t, os.Chown(earlier, daemon, group))
			}
			begin(t, s)
			event(t, s, "confined", "program", "smtpserver")
			greeting := func(want string) {
				t.Helper()
				await(t, s, "the greeting "+want, func() (bool, error) {
					c, err := net.Dial("tcp", s.SMTPAddr)
					if err != nil {
						return false, err
					}
					defer c.Close()
					line, err := bufio.NewReader(c).ReadString('\n')
					return strings.HasPrefix(line, want), err
				})
			}
			greeting("421")
			office := assert.Get(os.Stat(s.PostOffice()))(t).Sys().(*syscall.Stat_t)
			for _, name := range append(later, postoffice.SuspensionFile) {
				own := assert.Get(os.Stat(path(s, name)))(t).Sys().(*syscall.Stat_t)
				assert.Equal(t, [2]uint32{own.Uid, own.Gid}, [2]uint32{office.Uid, office.Gid}, name)
			}
			if _, err := os.Stat(earlier); err == nil {
				t.Error("the file of the earlier version is still there")
			}
			zmctl(t, s, "start", "--accepting")
			greeting("220")
			zmctl(t, s, "stop", "--accepting")
			greeting("421")
			cmd := s.Command("submit", "alice@mta.example")
			cmd.Stdin = strings.NewReader("Subject: x\n\n")
			if os.Getuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			_, code := run(t, cmd)
			assert.Equal(t, code, config.ExitTempFail)
			wantNone(t, s, "suspensions-unread")
		})
	}
}

// zmctl init gives a postoffice that root's daemons have used to DAEMONUSER, with its mail; before
// that the daemons do not start.
func TestPostofficeOfRootIsGivenToTheDaemonsUser(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := confined(t, sink, func(s *suite.Suite) {
		delete(s.Settings, "DAEMONUSER")
		s.Settings["MAILBOX"] = filepath.Join(s.Dir, "mail") + "/%u/"
		s.Files["scheduler.conf"] = strings.ReplaceAll(pipeConf, "interval=1s", "interval=1h")
	})
	sink.Close()
	begin(t, s)
	submitAs(t, s, "Subject: queued\n\n", "far@sink.example")
	event(t, s, "deferred", "rcpt", "far@sink.example")
	stop(t, s)
	submitAs(t, s, "Subject: accepted\n\n", "games@mta.example")
	configure(t, s, "zmailer.conf", read(t, s.Config())+"DAEMONUSER="+daemonUser+"\n")
	exits(t, s, 78, "router", "--once")
	zmctl(t, s, "init")
	zmctl(t, s, "init") // again, and nothing is changed
	restart(t, s)
	event(t, s, "delivered", "rcpt", "games@mta.example")
	s.Forget()
	yes(t, s, "retry", "--all")
	event(t, s, "deferred", "rcpt", "far@sink.example")
	wantNone(t, s, "not-routed")
}

// The daemons die with a zmctl run that is killed, although the kernel drops PDEATHSIG when a
// process changes its user.
func TestConfinedDaemonsDieWithKilledZmctl(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, nil)
	begin(t, s)
	s.KillMain()
	await(t, s, "end of all processes", func() (bool, error) { return len(processes(t, s)) == 0, nil })
}

// The launcher starts agents as the user= of scheduler.conf, also after a reload, and refuses a
// file that others may write.
func TestLauncherFollowsSchedulerConf(t *testing.T) {
	t.Parallel()
	games, _ := idsOf(t, "games")
	sink := newSink(t, &peer.Sink{})
	s := confined(t, sink, nil)
	begin(t, s)
	submit(t, s, "Subject: x\n\n", "one@sink.example")
	event(t, s, "delivered", "rcpt", "one@sink.example")
	out := openDir(t)
	assert.Must(t, os.Chmod(out, 0o777))
	agent := filepath.Join(s.Dir, "agent")
	write(t, agent, "#!/bin/sh\nid -u > "+out+"/new && mv "+out+"/new "+out+"/uid\nexec cat > /dev/null\n")
	assert.Must(t, os.Chmod(agent, 0o755))
	configure(t, s, "scheduler.conf", strings.Replace(pipeConf, "smtp/*\n", "smtp/*\n\tuser=games command=\""+agent+"\"\n", 1))
	zmctl(t, s, "reload")
	event(t, s, "conf-read", "program", "scheduler")
	submit(t, s, "Subject: y\n\n", "two@sink.example")
	await(t, s, "an agent of games", func() (bool, error) {
		_, err := os.Stat(out + "/uid")
		return err == nil, nil
	})
	assert.Equal(t, strings.TrimSpace(read(t, out+"/uid")), strconv.Itoa(games), games)
	file := filepath.Join(filepath.Dir(s.Config()), "scheduler.conf")
	stop(t, s)
	assert.Must(t, os.Chmod(file, 0o666))
	wantIn(t, exits(t, s, 78, "scheduler"), file)
}
