package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// books runs zmctl check --ledger and gives its exit code, too.
func books(t *testing.T, s *suite.Suite) (b ledger.Balance, code int) {
	t.Helper()
	out, err := s.Command("zmctl", "check", "--ledger", "--json").Output()
	exit := (*exec.ExitError)(nil)
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &b); err != nil {
		t.Fatalf("%v: %v\n%s", exit, err, out)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return b, code
}

// balanced wants the ledger to agree with the disk.
func balanced(t *testing.T, s *suite.Suite, when string) ledger.Balance {
	t.Helper()
	b, code := books(t, s)
	if code != 0 || len(b.Wrong) > 0 {
		t.Errorf("%s: exit code %d: %+v", when, code, b)
	}
	return b
}

// A18, K4, K7: with relays, aliases, local mail, deferrals, failures and reports, and the whole
// system killed at random moments, every message arrives, each failure is reported, and the
// ledger agrees with the files: under load and at the end.
func TestKilledSystemLosesNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	refused := func(n int) bool { return n%10 == 3 }
	x := newTraffic(t, func(address string, attempt int) string {
		var n int
		if _, err := fmt.Sscanf(address, "n%d@", &n); err != nil {
			return ""
		}
		switch {
		case refused(n):
			return "550 5.1.1 no such user"
		case n%10 == 5 && attempt == 1:
			return "451 4.2.1 later"
		}
		return ""
	}, func(s *suite.Suite) { s.Files["aliases"] = "all: alice, bob, c@sink.example, /dev/null\n" })
	const count = 300
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	sent := x.send(ctx, count)
	for round := range 4 {
		assert.Must(t, x.sink.Wait((round+1)*count/6, patience))
		sendSMTP(t, x.s, "bob@mta.example", "all@mta.example", "Subject: x\n\n")
		submit(t, x.s, "Subject: x\n\n", "-f", "bob@mta.example", "nobody")
		submit(t, x.s, "Subject: x\n\n", "-f", "bob@mta.example", "alice", "c@sink.example")
		balanced(t, x.s, "under load")
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // a random moment has no event
		x.s.Kill()
		restart(t, x.s)
	}
	<-sent
	assert.Must(t, ctx.Err())
	x.drained(t)
	x.check(t, count, refused)
	b := balanced(t, x.s, "at the end")
	if b.Unknown != 0 || b.Gone != 0 || b.Found != 0 {
		t.Errorf("kills took something: %+v", b)
	}
	// Four times an alias of four, an unknown user, and a submission to two; failures have their
	// reports, to one local user each.
	if b.Added < 4*3 || b.Failed < count/10+4 || b.Accepted < count+4*4 || b.Delivered < int64(count-count/10)+4*6 {
		t.Errorf("got %+v", b)
	}
	// Each failure is reported once, unless the message or its report was sent again.
	text := string(bytes.Join(awaitMail(t, x.s, "bob", 1), nil))
	doubt := x.s.Count("in-doubt")
	for n := range count {
		if to := recipientOf(n); refused(n) {
			got := strings.Count(text, "\nFinal-Recipient: rfc822; "+to+"\n")
			if got < 1 || got > 1+x.unsure[to]+doubt {
				t.Errorf("%s was reported %d times, want once", to, got)
			}
		}
	}
}

// fileCounts counts the files of a postoffice's directories.
func fileCounts(t *testing.T, s *suite.Suite) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, dir := range []string{"public", "router", "queue", "transport", "deferred", "freezer", "postman", "quarantine"} {
		err := filepath.WalkDir(path(s, dir), func(_ string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				counts[dir]++
			}
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
		assert.Must(t, err)
	}
	return counts
}

// overview returns the counts of zmctl status and the spool IDs of zmctl queue.
func overview(t *testing.T, s *suite.Suite) (files map[string]int, ids map[string]int) {
	t.Helper()
	var st struct {
		Directories []struct {
			Name  string
			Files int
		}
	}
	ask(t, s, &st, "status", "--json")
	files, ids = map[string]int{}, map[string]int{}
	for _, d := range st.Directories {
		if d.Files > 0 {
			files[d.Name] = d.Files
		}
	}
	for line := range strings.Lines(zmctl(t, s, "queue", "--json")) {
		var m struct{ ID string }
		assert.Must(t, json.Unmarshal([]byte(line), &m))
		ids[m.ID]++
	}
	return files, ids
}

func ask(t *testing.T, s *suite.Suite, into any, args ...string) {
	t.Helper()
	out, err := s.Command("zmctl", args...).Output()
	// status exits with 1 when there are alarms, for example for a stopped scheduler.
	if alarm := (*exec.ExitError)(nil); err == nil || errors.As(err, &alarm) && alarm.ExitCode() == 1 {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("zmctl %q: %v\n%s", args, err, out)
	}
}

// A18: zmctl status and queue count the files: while the queue grows, no less than there were
// before and no more than there are after; when nothing moves, exactly.
func TestCountsComeFromTheDisk(t *testing.T) {
	t.Parallel()
	x := newTraffic(t, func(string, int) string { return "451 4.2.1 later" }, nil)
	const count = 150
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sent := x.send(ctx, count)
	for running := true; running; {
		select {
		case <-sent:
			running = false
		default:
		}
		before := fileCounts(t, x.s)
		files, ids := overview(t, x.s)
		after := fileCounts(t, x.s)
		for _, dir := range []string{"queue", "transport"} {
			if n := files[dir]; n < before[dir] || n > after[dir] {
				t.Errorf("status counts %d in %s/, there were %d and are %d", n, dir, before[dir], after[dir])
			}
		}
		if n := len(ids); n < before["queue"] || n > after["queue"]+after["router"]+after["public"] {
			t.Errorf("queue lists %d messages, there were %d and are %d", n, before["queue"], after["queue"]+after["router"])
		}
	}
	assert.Must(t, ctx.Err())
	await(t, x.s, "all messages in queue/", func() (bool, error) { return fileCounts(t, x.s)["transport"] == count, nil })
	stop(t, x.s)
	files, ids := overview(t, x.s)
	want := fileCounts(t, x.s)
	for dir, n := range want {
		assert.Equal(t, files[dir], n, dir)
	}
	if len(files) != len(want) || len(ids) != count {
		t.Errorf("got %v and %d messages, want %v and %d", files, len(ids), want, count)
	}
	if b := balanced(t, x.s, "stopped"); b.Queued["queue"] != (ledger.Count{Recipients: count, Messages: count}) || b.Accepted != count {
		t.Errorf("got %+v", b)
	}
}
