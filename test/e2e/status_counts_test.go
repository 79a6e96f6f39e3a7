package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/workspec"
	"zmailer/test/suite"
)

// Del8: of a long queue zmctl status prints the counts of the running scheduler, which are those of
// the files. Without a scheduler it counts the files itself.
func TestDel8StatusTakesTheSchedulersCounts(t *testing.T) {
	t.Parallel()
	const messages = 20_001 // one more than status counts file by file
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = "*/*\n\tqueueonly interval=1h maxta=1\n\tcommand=\"ta-smtp $channel\"\n"
	})
	for i := range messages {
		plantQueued(t, s, strconv.Itoa(i)+"@a.example")
	}
	begin(t, s)
	event(t, s, "scanned", "messages", strconv.Itoa(messages))
	type told struct {
		Directories []struct {
			Name   string
			States []struct {
				State string
				Files int
			}
		}
		Counts *struct{ Messages, Recipients int } `json:"scheduler_counts"`
	}
	status := func() (got told, queued map[string]int) {
		t.Helper()
		said, code := call(t, s, "zmctl", "status", "--json")
		if err := json.Unmarshal([]byte(said), &got); err != nil || code > 1 { // 1: there are alarms
			t.Fatalf("exit code %d, %v: %s", code, err, abbreviate(said))
		}
		queued = map[string]int{}
		for _, d := range got.Directories {
			for _, g := range d.States {
				if g.State == "queued" {
					queued[d.Name] = g.Files
				}
			}
		}
		return got, queued
	}
	got, byScheduler := status()
	if got.Counts == nil || got.Counts.Messages != messages || got.Counts.Recipients != messages {
		t.Fatalf("got %+v, want the scheduler's counts", got.Counts)
	}
	must(t, s.Stop())
	got, byFiles := status()
	if got.Counts != nil {
		t.Errorf("got %+v, the counts of a scheduler that does not run", got.Counts)
	}
	for _, dir := range []string{"queue", "transport"} {
		if byScheduler[dir] != messages || byFiles[dir] != messages {
			t.Errorf("%s: the scheduler counts %d, the files are %d, want %d", dir, byScheduler[dir], byFiles[dir], messages)
		}
	}
}

// plantQueued makes a message as a router hands it over, without its fsyncs.
func plantQueued(t *testing.T, s *suite.Suite, address string) {
	t.Helper()
	const envelope, header = "channel error\nto x\nenv-end\nFrom: a@b\n\n", "From: a@b\n"
	work := path(s, "router/..plant")
	must(t, os.WriteFile(work, []byte(envelope+"Body.\n"), 0o600))
	var st unix.Stat_t
	must(t, unix.Stat(work, &st))
	name := strconv.FormatUint(st.Ino, 10)
	must(t, os.Rename(work, path(s, "queue/"+name)))
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(envelope))})
	w.Group(workspec.Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1"},
		[]workspec.Recipient{{Channel: "smtp", Host: "a.example", Address: address, Privilege: "1"}}, []byte(header))
	must(t, w.Close())
	must(t, os.WriteFile(work, b.Bytes(), 0o600))
	must(t, os.Rename(work, path(s, "transport/"+name)))
}
