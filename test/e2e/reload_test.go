package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pipeline "zmailer/internal/admin/service"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/suite"
	"zmailer/test/wrongconf"
)

// hangUp sends SIGHUP to a daemon.
func hangUp(t *testing.T, s *suite.Suite, daemon string) {
	t.Helper()
	assert.Must(t, syscall.Kill(oneOf(t, s, daemon).Pid, syscall.SIGHUP))
}

// lineOf returns the line of a text that begins with a word.
func lineOf(t *testing.T, text, word string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, word+" ") {
			return line
		}
	}
	t.Fatalf("no line of %s in %s", word, text)
	return ""
}

// Op11: a reload has every daemon and the agents go by the new zmailer.conf without a restart;
// zmctl names what is applied and what needs a restart, until it is restarted. A zmailer.conf that
// cannot be used changes nothing, and an alarm names it until it is mended.
func TestOp11ReloadAppliesSettingsInEveryDaemon(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"ROUTERTRIES": "4", "MAXSIZE": "10M"} })
	sendSMTP(t, s, "a@client.example", "alice@mta.example", "Subject: one\n\n")
	awaitMail(t, s, "alice", 1)
	before := map[string]int{}
	for _, d := range pipeline.Daemons() {
		before[d] = oneOf(t, s, d).Pid
	}

	good := read(t, s.Config())
	other := strings.Replace(good, "/mail/%u/", "/mail/%u.new/", 1)
	other = strings.Replace(other, "MAXSIZE=10M", "MAXSIZE=1000000", 1)
	other = strings.Replace(other, "ROUTERTRIES=4", "ROUTERTRIES=6", 1) + "REMOVEDKEEP=5d\nSCHEDULERPOLL=2m\nGREYLIST=rules\nPREGREETWAIT=1s\nADDRESSVERIFY=relay\nSMTPMEMORY=20M\nMETRICS=unix\n"
	configure(t, s, "zmailer.conf", other)
	said := zmctl(t, s, "reload")
	wantIn(t, lineOf(t, said, "smtpserver"), "MAXSIZE", "GREYLIST", "PREGREETWAIT", "ADDRESSVERIFY", "SMTPMEMORY", "restart smtpserver will apply METRICS")
	wantIn(t, lineOf(t, said, "router"), "ROUTERTRIES", "MAXSIZE", "restart router will apply METRICS")
	wantIn(t, lineOf(t, said, "scheduler"), "REMOVEDKEEP", "SCHEDULERPOLL", "MAILBOX", "restart scheduler will apply METRICS")
	for _, d := range pipeline.Daemons() {
		assert.Equal(t, oneOf(t, s, d).Pid, before[d])
	}
	k := connect(t, s.SMTPAddr)
	wantIn(t, k.say("EHLO again.example", "250"), "SIZE 1000000")
	k.say("QUIT", "221")
	sendSMTP(t, s, "a@client.example", "alice@mta.example", "Subject: two\n\n")
	awaitMail(t, s, "alice.new", 1)
	if said := zmctl(t, s, "reload"); strings.Contains(said, "MAXSIZE") || !strings.Contains(lineOf(t, said, "router"), "METRICS") {
		t.Errorf("the second reload: %s", said)
	}

	configure(t, s, "zmailer.conf", other+"MAXRCPT=many\n")
	exits(t, s, config.ExitConfig, "zmctl", "reload")
	for _, d := range pipeline.Daemons() {
		hangUp(t, s, d) // as a script would do it that checks nothing
		event(t, s, "conf-refused", "program", d)
	}
	sendSMTP(t, s, "a@client.example", "alice@mta.example", "Subject: three\n\n")
	awaitMail(t, s, "alice.new", 2)
	alarms := func() int {
		said, _ := call(t, s, "zmctl", "status", "--json")
		return strings.Count(said, strconv.Quote(s.Config()))
	}
	assert.Equal(t, alarms(), len(pipeline.Daemons()))
	configure(t, s, "zmailer.conf", other)
	zmctl(t, s, "reload")
	assert.Equal(t, alarms(), 0)
}

// Op11, Op4: a scheduler.conf that is refused at a reload raises the alarm that tables raise, until
// it is mended.
func TestOp11RefusedSchedulerConfRaisesAnAlarm(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	file := filepath.Join(filepath.Dir(s.Config()), "scheduler.conf")
	good := read(t, file)
	raised := func() bool {
		said, _ := call(t, s, "zmctl", "status", "--json")
		return strings.Contains(said, strconv.Quote(file))
	}
	configure(t, s, "scheduler.conf", good+"smtp/*\n\tnonsense=1\n")
	hangUp(t, s, "scheduler")
	await(t, s, "the alarm", func() (bool, error) { return raised(), nil })
	configure(t, s, "scheduler.conf", good)
	hangUp(t, s, "scheduler")
	await(t, s, "the end of the alarm", func() (bool, error) { return !raised(), nil })
}

// sampled are the wrong configurations that every run of the tests tries; WRONGCONF=all tries all.
var sampled = []string{
	"MAXSIZE 5", "MAILBOX=${NOPE}/x", "SMTPLISTEN=192.0.2.77:2525", "TLSCERT=none.pem", "SENDERLOGIN=nofile", "AUTH=file:nofile", "ROUTES=ldap:nofile",
	"an alias without a colon", "an access rule with a bad network", "an unknown setting of a clause", "a damaged certificate", "a route twice", "a domain in two classes",
}

// Op1: with each of these configurations zmctl reload leaves a running system as it was, or takes
// it if there are only warnings, and mail goes on; zmctl start starts all daemons, perhaps with the
// copy of a file as it was, or none.
func TestOp1WrongConfigurationsStrandNoRealSystem(t *testing.T) {
	t.Parallel()
	system := func(s *suite.Suite) {
		dir := filepath.Join(s.Dir, "conf")
		s.Settings = map[string]string{"LOCALUSERS": filepath.Join(dir, "local"), "LOG": "text", "LOGFILE": filepath.Join(s.Dir, "log")}
		s.Files = map[string]string{"local": "alice\n", "scheduler.conf": "*/*\n\tcommand=\"ta-mailbox\"\n"}
	}
	running, idle := start(t, nil, func(s *suite.Suite) { system(s); delete(s.Settings, "LOGFILE"); s.Settings["LOG"] = "json" }), prepare(t, nil, system)
	t.Cleanup(func() { call(t, idle, "zmctl", "stop", "--direct") })
	texts, tried := wrongconf.MakeTexts(t), 0
	deliver := func(t *testing.T, s *suite.Suite) {
		t.Helper()
		had := len(assert.Get(suite.Mail(s.Maildir("alice")))(t))
		sendSMTP(t, s, "bob@client.example", "alice@mta.example", "Subject: x\n\n")
		awaitMail(t, s, "alice", had+1)
	}
	for _, w := range wrongconf.Cases() {
		if os.Getenv("WRONGCONF") != "all" && !slices.Contains(sampled, w.Name) {
			continue
		}
		if w.Name == "POSTOFFICE=rel" {
			continue // these systems name it in the environment, which overrides the file
		}
		tried++
		t.Run(w.Name, func(t *testing.T) {
			began := time.Now()
			code := map[wrongconf.Outcome]int{wrongconf.Refused: config.ExitConfig, wrongconf.Held: config.ExitConfig}[w.Want]
			c := wrongCase{w, texts}
			running.Forget()
			undo := c.put(t, running)
			t.Cleanup(func() {
				if t.Failed() { // the next case begins with a right configuration all the same
					t.Log(running.Log())
					undo()
					zmctl(t, running, "reload")
				}
			})
			if w.File != "" {
				exits(t, running, 0, "zmctl", "reload")
			}
			c.spoil(t, running)
			exits(t, running, code, "zmctl", "reload")
			for _, d := range pipeline.Daemons() { // as a script would do it that checks nothing
				if strings.HasPrefix(w.Name, "LOCALUSERS=/") {
					break // local mail waits for the list then, as for one that was removed
				}
				answers := func() int {
					return running.Count("conf-read", "program", d) + running.Count("conf-refused", "program", d)
				}
				before := answers()
				hangUp(t, running, d)
				await(t, running, d+" reads it", func() (bool, error) { return answers() > before, nil })
			}
			deliver(t, running)
			undo()
			exits(t, running, 0, "zmctl", "reload")

			undo = c.put(t, idle)
			defer undo()
			if w.Want == wrongconf.Held { // there is a copy
				exits(t, idle, 0, "zmctl", "start", "--direct")
				exits(t, idle, 0, "zmctl", "stop", "--direct")
			}
			c.spoil(t, idle)
			if w.Want == wrongconf.Refused {
				exits(t, idle, config.ExitConfig, "zmctl", "start", "--direct")
				if n := len(processes(t, idle)); n != 0 {
					t.Errorf("%d processes run", n)
					exits(t, idle, 0, "zmctl", "stop", "--direct")
				}
				return
			}
			exits(t, idle, 0, "zmctl", "start", "--direct")
			for _, d := range pipeline.Daemons() {
				oneOf(t, idle, d)
			}
			sendSMTP(t, idle, "bob@client.example", "alice@mta.example", "Subject: x\n\n")
			awaitEmpty(t, idle)
			exits(t, idle, 0, "zmctl", "stop", "--direct")
			t.Logf("%s in %s", w.Want, time.Since(began).Round(time.Millisecond))
		})
	}
	if tried < len(sampled) {
		t.Errorf("%d configurations were tried, want %d", tried, len(sampled))
	}
}

// wrongCase is put into the configuration of a system.
type wrongCase struct {
	wrongconf.Case
	texts wrongconf.Texts
}

// served has a clause start an agent that delivers.
func served(text string) string { return strings.ReplaceAll(text, "/bin/true", "ta-mailbox") }

// put puts the case's files as they are right; undo removes them.
func (w wrongCase) put(t *testing.T, s *suite.Suite) (undo func()) {
	t.Helper()
	dir := filepath.Dir(s.Config())
	main := read(t, s.Config())
	files, modes := map[string]string{}, map[string]os.FileMode{}
	keep := func(name string) {
		if _, had := files[name]; !had {
			b, _ := os.ReadFile(filepath.Join(dir, name)) // one that is not there is removed by undo
			files[name] = string(b)
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
				modes[name] = info.Mode()
			}
		}
	}
	if strings.Contains(w.Conf, "mx.pem") {
		keep("mx.pem")
		keep("mx.key")
		w.texts.Write(t, dir, "mx.pem", "CERT")
		w.texts.Write(t, dir, "mx.key", "KEY")
	}
	if w.File != "" {
		keep(w.File)
		w.texts.Write(t, dir, w.File, served(w.Good))
		write(t, s.Config(), main+w.Conf+"\n")
	}
	return func() {
		write(t, s.Config(), main)
		for name, text := range files {
			if text == "" {
				assert.Must(t, os.RemoveAll(filepath.Join(dir, name)))
			} else {
				write(t, filepath.Join(dir, name), text)
				assert.Must(t, os.Chmod(filepath.Join(dir, name), modes[name]))
			}
		}
	}
}

// spoil makes them wrong.
func (w wrongCase) spoil(t *testing.T, s *suite.Suite) {
	t.Helper()
	if w.File == "" {
		write(t, s.Config(), read(t, s.Config())+fmt.Sprintln(w.Conf))
		return
	}
	dir := filepath.Dir(s.Config())
	if w.Name == "a certificate that ends soon" {
		w.texts.Write(t, dir, "mx.key", "ENDSKEY")
	}
	w.texts.Write(t, dir, w.File, served(w.Bad))
}

// Op11: zmctl reload returns when each daemon has read the file, also one that was written a moment
// ago, which they wait for, with the text that it had.
func TestOp11ReloadAwaitsEachDaemonThoughNothingHasChanged(t *testing.T) {
	t.Parallel()
	s := start(t, nil, nil)
	text := read(t, s.Config())
	for range 3 {
		at := lastgood.Now()
		write(t, s.Config(), text)
		zmctl(t, s, "reload")
		for _, d := range pipeline.Daemons() {
			if v := assert.Get(lastgood.FollowedBy(s.PostOffice(), d, s.Config()))(t); v.Answer.Began < at {
				t.Errorf("%s has not answered when zmctl reload returns", d)
			}
		}
	}
}
