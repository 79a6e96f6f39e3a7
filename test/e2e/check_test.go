package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// deferSome defers every fifth recipient's first attempt.
func deferSome(address string, attempt int) string {
	var n int
	if _, err := fmt.Sscanf(address, "n%d@", &n); err == nil && n%5 == 0 && attempt == 1 {
		return "451 4.2.1 come back later"
	}
	return ""
}

// findings returns the problems that zmctl check reports, and its exit code.
func findings(t *testing.T, s *suite.Suite, args ...string) (found map[string][]string, text string, code int) {
	t.Helper()
	text, code = call(t, s, "zmctl", append([]string{"check", "--json", "--problems"}, args...)...)
	var list []struct {
		File     string
		Problems []string
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	found = map[string][]string{}
	for _, f := range list {
		found[f.File] = append(found[f.File], f.Problems...)
	}
	return found, text, code
}

// A25: while mail flows, check reports no problem and repair finds nothing to do, at any moment.
func TestCheckIsSilentWhileMailFlows(t *testing.T) {
	count := 1000
	if testing.Short() {
		count = 400
	}
	x := newTraffic(t, deferSome, nil)
	sent := x.send(context.Background(), count)
	runs, steps := 0, 0
	for flowing := true; flowing; runs++ {
		select {
		case <-sent:
			flowing = false
		default:
		}
		if _, text, code := findings(t, x.s); code != 0 {
			t.Fatalf("run %d of check: exit code %d\n%s", runs, code, text)
		}
		if text, code := call(t, x.s, "zmctl", "check", "--dry-run"); code != 0 {
			t.Fatalf("run %d: a repair finds something to do: exit code %d\n%s", runs, code, text)
		}
		left := assert.Get(x.s.Left())(t)
		steps += len(left)
	}
	t.Logf("%d runs of check, with %d files in the postoffice on average", runs, steps/runs)
	x.drained(t)
	x.check(t, count, nil)
	if _, text, code := findings(t, x.s); code != 0 {
		t.Errorf("when all is delivered: exit code %d\n%s", code, text)
	}
}

// restore puts a copy of the postoffice, made by cp -a, in its place: every inode is
// another.
func restore(t *testing.T, s *suite.Suite) {
	t.Helper()
	need(t, "cp")
	old := s.PostOffice() + ".old"
	assert.Must(t, os.Rename(s.PostOffice(), old))
	if out, err := exec.Command("cp", "-a", old, s.PostOffice()).CombinedOutput(); err != nil {
		t.Fatalf("cp -a: %v\n%s", err, out)
	}
	// The old inodes stay in use, so that none of the copy's is one of theirs.
	t.Cleanup(func() { os.RemoveAll(old) })
}

// K7 K9 K10, and the trap "inode changed by copy or restore": a system is killed with
// mail in every state, its postoffice is copied, checked, repaired and started; every
// message arrives once, also those that some recipients had already.
func TestRestoredPostofficeDeliversEverythingOnce(t *testing.T) {
	for _, levels := range []string{"0", "2"} {
		t.Run(levels+" hash levels", func(t *testing.T) {
			t.Parallel()
			restored(t, levels)
		})
	}
}

func restored(t *testing.T, levels string) {
	const count = 60
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, attempt int) string {
		if strings.HasPrefix(address, "later") && attempt == 1 {
			return "451 4.2.1 come back later"
		}
		return ""
	}})
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERPOLL": "1s", "HASHLEVELS": levels}
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "interval=1s", "interval=1h", 1)
		s.Files["aliases"] = "list: :include:/nowhere/list\n"
	})
	begin(t, s)
	for i := range count {
		// One recipient has it before the copy, one waits, one is local.
		submit(t, s, fmt.Sprintf("Subject: m%d\n\nbody\n", i), "-f", "bob@mta.example",
			fmt.Sprintf("now%d@sink.example", i), fmt.Sprintf("later%d@sink.example", i), "alice@mta.example")
	}
	for range 3 {
		submit(t, s, "Subject: aside\n\n", "-f", "bob@mta.example", "list@mta.example")
	}
	awaitMail(t, s, "alice", count)
	assert.Must(t, sink.Wait(count, patience))
	await(t, s, "deferred mail", func() (bool, error) {
		return len(names(t, s, "deferred")) == 3 && s.Count("deferred", "program", "scheduler") == count, nil
	})
	s.Kill()
	// Mail that was accepted while no daemon ran.
	for range 3 {
		submit(t, s, "Subject: waits\n\n", "-f", "bob@mta.example", "bob@mta.example")
	}
	restore(t, s)
	found, text, code := findings(t, s)
	n := 0
	for _, words := range found {
		if slices.Contains(words, "misnumbered") {
			n++
		}
	}
	if code != 1 || n != count+3+3 {
		t.Errorf("check of the copy: exit code %d and %d misnumbered, want 1 and %d\n%s", code, n, count+3+3, abbreviate(text))
	}
	plan, code := call(t, s, "zmctl", "check", "--dry-run")
	if code != 1 || strings.Count(plan, "renumber ") != count+3+3 {
		t.Errorf("--dry-run: exit code %d\n%s", code, abbreviate(plan))
	}
	done := zmctl(t, s, "check", "--repair")
	if strings.Replace(plan, "to be done; nothing was changed", "done", 1) != done {
		t.Errorf("--repair did\n%s\nand --dry-run said\n%s", abbreviate(done), abbreviate(plan))
	}
	// The wait is over, and so is the reason to set mail aside.
	configure(t, s, "scheduler.conf", schedulerConf)
	configure(t, s, "aliases", "list: bob\n")
	for _, name := range transports(t, s) {
		due(t, s, name)
	}
	restart(t, s)
	zmctl(t, s, "resubmit", "all")
	assert.Must(t, sink.Wait(2*count, patience))
	awaitMail(t, s, "bob", 6)
	awaitEmpty(t, s)
	got := map[string]int{}
	for _, m := range sink.Messages() {
		for _, r := range m.Recipients {
			got[r]++
		}
	}
	for i := range count {
		for _, who := range []string{"now", "later"} {
			assert.Equal(t, got[fmt.Sprintf("%s%d@sink.example", who, i)], 1)
		}
	}
	for user, want := range map[string]int{"alice": count, "bob": 6} {
		if mail, err := suite.Mail(s.Maildir(user)); err != nil || len(mail) != want {
			t.Errorf("%s has %d messages, %v, want %d", user, len(mail), err, want)
		}
	}
	wantNone(t, s, "message-lost")
	balance(t, s)
}

// transports lists the work specifications, with their hash directories.
func transports(t *testing.T, s *suite.Suite) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(path(s, "transport"), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(path(s, "transport"), p)
			list = append(list, rel)
		}
		return err
	})
	assert.Must(t, err)
	return list
}

// A7: files that no program will finish do not keep daemons from starting. With --strict they are
// listed and the exit code is 78.
func TestUnfinishedFilesAtTheStart(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	const name = "public/smtp.77.dn0kpsb1upkv.1"
	write(t, path(s, name), "comment octets 0000000000009999\nfrom <a@b>\n")
	old := time.Now().Add(-time.Hour)
	assert.Must(t, errors.Join(os.Chmod(path(s, name), 0o700), os.Chtimes(path(s, name), old, old)))
	for _, c := range [][]string{{"router", "--strict"}, {"router", "--strict", "--once"}, {"scheduler", "--strict"}, {"zmctl", "run", "--strict"}} {
		said, code := call(t, s, c[0], c[1:]...)
		assert.Equal(t, code, config.ExitConfig, c)
		wantIn(t, said, "unfinished files are here", name)
		if _, err := os.Stat(path(s, name)); err != nil {
			t.Errorf("%q has changed something: %v", c, err)
		}
	}
	begin(t, s)
	event(t, s, "recovered", "action", postoffice.Quarantined, "name", "quarantine/public.smtp.77.dn0kpsb1upkv.1.incomplete")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	if found, text, _ := findings(t, s); !slices.Contains(found["quarantine/public.smtp.77.dn0kpsb1upkv.1.incomplete"], "quarantined") || len(found) != 1 {
		t.Errorf("got %s", text)
	}
	stop(t, s)
	exits(t, s, 0, "router", "--strict", "--once")
}

// K9, and the trap "listing that deletes a live writer's temporary file": drafts that smtpserver
// and submit are writing survive every command that lists, checks or repairs, and the starts and
// sweeps of the daemons, although their files look hours old. A dead writer's draft is swept
// meanwhile.
func TestDraftsOfLiveWritersSurvive(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"ROUTERPOLL": "1s"} })
	part := strings.Repeat("0123456789abcde\n", 16<<10)
	k := connect(t, s.SMTPAddr)
	k.envelope("bob@mta.example", "alice@mta.example")
	k.write("Subject: half\r\n\r\n" + wire(part))
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "alice@mta.example")
	in, err := cmd.StdinPipe()
	assert.Must(t, err)
	assert.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	_, err = io.WriteString(in, "Subject: half\n\n"+part)
	assert.Must(t, err)
	const drafts = 2
	await(t, s, "two drafts", func() (bool, error) {
		large := 0
		for _, name := range names(t, s, "public") {
			if info, err := os.Stat(path(s, "public/"+name)); err == nil && info.Size() > int64(len(part)/2) {
				large++
			}
		}
		return large == drafts, nil
	})
	age := func() {
		t.Helper()
		old := time.Now().Add(-3 * time.Hour)
		for _, name := range names(t, s, "public") {
			assert.Must(t, os.Chtimes(path(s, "public/"+name), old, old))
		}
	}
	age()
	dead := path(s, "public/smtp.77.dn0kpsb1upkv.1i")
	there := func(after string) {
		t.Helper()
		got := 0
		for _, name := range names(t, s, "public") {
			if path(s, "public/"+name) != dead {
				got++
			}
		}
		if got != drafts {
			t.Fatalf("after %s public/ holds %q, want the two that are being written", after, names(t, s, "public"))
		}
	}
	for _, c := range [][]string{{"status"}, {"queue"}, {"removed"}, {"check"}, {"check", "--ledger"}, {"check", "--stuck", "1s", "--older", "1s"},
		{"check", "--repair", "--dry-run"}, {"check", "--repair"}, {"resubmit", "all"}, {"init"}} {
		if said, code := call(t, s, "zmctl", c...); code > 2 {
			t.Errorf("zmctl %q: exit code %d, %s", c, code, said)
		}
		there("zmctl " + strings.Join(c, " "))
	}
	write(t, dead, "comment oct")
	age()
	for _, program := range []string{"router", "scheduler"} {
		s.Forget()
		assert.Must(t, syscall.Kill(oneOf(t, s, program).Pid, syscall.SIGTERM))
		event(t, s, "started", "program", program)
		there("the start of the " + program)
	}
	await(t, s, "sweep of the dead writer's draft", func() (bool, error) {
		_, err := os.Stat(dead)
		return os.IsNotExist(err), nil
	})
	there("the sweep")
	left, err := s.Left()
	assert.Must(t, err)
	s.DropDrafts(left)
	k.say(wire(part)+".", "250")
	_, err = io.WriteString(in, part)
	assert.Must(t, errors.Join(err, in.Close(), cmd.Wait()))
	for _, m := range awaitMail(t, s, "alice", drafts) {
		if !strings.HasSuffix(string(m), "\n\n"+part+part) {
			t.Errorf("a message of %d bytes arrived, want both halves", len(m))
		}
	}
	awaitEmpty(t, s)
}
