package e2e

import (
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

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/test/peer"
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

// A18 K4 K7: with relays, aliases, local mail, deferrals, failures and reports, and all
// of the system killed at random moments, the ledger balances: under load and when
// everything is done. Then files are removed by hand, and it says whose.
func TestLedgerBalancesThroughKills(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	refused := func(n int) bool { return n%10 == 3 }
	x := &traffic{arrivals: map[string]int{}, unsure: map[string]int{}}
	x.sink = newSink(t, &peer.Sink{Discard: true, Rcpt: func(address string, attempt int) string {
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
	}})
	x.s = start(t, x.sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERPOLL": "1s"}
		s.Files["aliases"] = "all: alice, bob, n0@sink.example, /dev/null\n"
	})
	const count = 300
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	sent := x.send(ctx, count)
	for round := range 4 {
		if err := x.sink.Wait((round+1)*count/6, patience); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"all@mta.example", "nobody@mta.example"} {
			src := peer.Source{Addr: x.s.SMTPAddr, Connections: 1, Messages: 1, From: "bob@mta.example",
				To: func(int) string { return to }, Body: func(int) []byte { return []byte("Subject: x\r\n\r\n") }}
			if err := src.Run(ctx); err != nil {
				t.Fatal(err)
			}
		}
		submit(t, x.s, "Subject: x\n\n", "-f", "bob@mta.example", "alice", "c@sink.example")
		balanced(t, x.s, "under load")
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // a random moment has no event
		x.s.Kill()
		restart(t, x.s)
	}
	<-sent
	if ctx.Err() != nil {
		t.Fatal("the messages were not accepted in time")
	}
	x.drained(t)
	b := balanced(t, x.s, "when all is done")
	if b.Unknown != 0 || b.Gone != 0 || b.Found != 0 {
		t.Errorf("kills took something: %+v", b)
	}
	// Four times an alias of four, a user who is not there, and a submission to two;
	// failures have their reports, to one local user each.
	if b.Added < 4*3 || b.Failed < count/10+4 || b.Accepted < count+4*4 || b.Delivered < int64(count-count/10)+4*6 {
		t.Errorf("got %+v", b)
	}
	removedByHand(t, x)
}

// removedByHand takes a message's files away while no daemon runs.
func removedByHand(t *testing.T, x *traffic) {
	t.Helper()
	x.sink.Close()
	submit(t, x.s, "Subject: x\n\n", "-f", "bob@mta.example", "a@sink.example", "b@sink.example")
	id, err := postoffice.ParseSpoolID(event(t, x.s, "deferred", "rcpt", "a@sink.example").Get("id"))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, x.s)
	balanced(t, x.s, "stopped")
	for _, dir := range []string{"queue", "transport"} {
		if err := os.Remove(path(x.s, dir+"/"+only(t, x.s, dir))); err != nil {
			t.Fatal(err)
		}
	}
	b, code := books(t, x.s)
	if code != 2 || len(b.Wrong) != 1 || b.Wrong[0].ID != id || b.Difference.Recipients != 2 {
		t.Errorf("after rm: exit code %d, %+v, want 2 and %s", code, b, id)
	}
	out, err := x.s.Command("zmctl", "check", "--ledger").Output()
	if err == nil || !strings.Contains(string(out), id.String()+"  missing, 2 recipients") {
		t.Errorf("%v\n%s", err, out)
	}
	// The next start does not explain it away.
	restart(t, x.s)
	if b, code := books(t, x.s); code != 2 || len(b.Wrong) != 1 {
		t.Errorf("after the next start: exit code %d, %+v", code, b)
	}
	if out, err := x.s.Command("zmctl", "settle", id.String()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if b := balanced(t, x.s, "settled"); b.Gone != 2 {
		t.Errorf("got %+v", b)
	}
}

// fileCounts counts a postoffice's messages as ls does.
func fileCounts(t *testing.T, s *suite.Suite) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, dir := range []string{"public", "router", "queue", "transport", "deferred", "freezer", "postman"} {
		err := filepath.WalkDir(path(s, dir), func(_ string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				counts[dir]++
			}
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return counts
}

// overview is what zmctl status and queue count.
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
	out, err := s.Command("zmctl", "queue", "--json").Output()
	if err != nil {
		t.Fatalf("zmctl queue --json: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		var m struct{ ID string }
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		ids[m.ID]++
	}
	return files, ids
}

func ask(t *testing.T, s *suite.Suite, into any, args ...string) {
	t.Helper()
	out, err := s.Command("zmctl", args...).Output()
	// status exits with 1 when it tells of alarms, as of a scheduler that is stopped.
	if alarm := (*exec.ExitError)(nil); err == nil || errors.As(err, &alarm) && alarm.ExitCode() == 1 {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("zmctl %q: %v\n%s", args, err, out)
	}
}

// A18: status and queue count the files: while the queue grows, no less than there were
// before and no more than there are after; when nothing moves, exactly.
func TestCountsComeFromTheDisk(t *testing.T) {
	t.Parallel()
	x := newTraffic(t, func(string, int) string { return "451 4.2.1 later" })
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
	if ctx.Err() != nil {
		t.Fatal("the messages were not accepted in time")
	}
	await(t, x.s, "all messages in queue/", func() (bool, error) { return fileCounts(t, x.s)["transport"] == count, nil })
	stop(t, x.s)
	files, ids := overview(t, x.s)
	want := fileCounts(t, x.s)
	for dir, n := range want {
		if files[dir] != n {
			t.Errorf("status counts %d in %s/, there are %d", files[dir], dir, n)
		}
	}
	if len(files) != len(want) || len(ids) != count {
		t.Errorf("got %v and %d messages, want %v and %d", files, len(ids), want, count)
	}
	if b := balanced(t, x.s, "stopped"); b.Queued["queue"] != (ledger.Count{Recipients: count, Messages: count}) || b.Accepted != count {
		t.Errorf("got %+v", b)
	}
}
