package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

const simConf = `*/* interval=1m retries="1 1 2 3 4 8 13 21 34" expiry=3d maxring=10 maxthr=10
smtp/*
	command="ta-smtp --slots=20 $channel"
`

// queueConfig is a postoffice with the clauses under which it is played.
type queueConfig struct {
	dir     string
	levels  int
	clauses *conf.File
}

func (c queueConfig) run(a Options) (*Result, error) {
	po, err := postoffice.OpenDir(c.dir, c.levels, false)
	if err != nil {
		return nil, err
	}
	return play(context.Background(), po, c.clauses, a)
}

// simBox returns a queue to be simulated: 40 messages to each of three hosts, of which one is
// in trouble for ten minutes.
func simBox(t *testing.T) (*storetest.Box, queueConfig) {
	t.Helper()
	f, dir := storetest.Disk(t)
	b := storetest.New(t, f, 0)
	clauses, err := conf.Parse("scheduler.conf", []byte(simConf), func(string) (string, bool) { return "", false })
	assert.Must(t, err)
	for i := range 120 {
		name := b.Queue(fmt.Sprintf("s%d@b", i%3), storetest.Rcpt{Line: fmt.Sprintf("smtp h%d.test u%d@x", i%3, i)})
		if i%3 == 2 && i < 9 {
			deferSpec(t, b, name, time.Now().Add(-10*time.Minute), 3, "connect to 192.0.2.1:25: connection refused")
		}
	}
	return b, queueConfig{dir: dir, clauses: clauses}
}

// deferSpec has the first recipient of a specification deferred by its host.
func deferSpec(t *testing.T, b *storetest.Box, name string, at time.Time, tries int, text string) {
	t.Helper()
	spec := b.Parse(name)
	f, err := b.PO.Queue.Open(name)
	assert.Must(t, err)
	defer f.Close()
	attrs := []workspec.Attr{{Key: "attempt", Value: strconv.Itoa(tries)}, {Key: "next", Value: strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)},
		{Key: "host", Value: strconv.Itoa(tries)}}
	e := workspec.Event{Time: at, Recipient: storetest.OffsetOf(spec, 0), Event: workspec.EventDeferred, Attrs: attrs, Text: text}
	assert.Must(t, f.Append(workspec.AppendEvent(nil, &e)))
}

func simulated(t *testing.T, c queueConfig, a Options) *Result {
	t.Helper()
	r, err := c.run(a)
	assert.Must(t, err)
	return r
}

// dirPicture is every file of a directory with its bytes, mode and times.
func dirPicture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Mode(), info.ModTime().UnixNano(), info.Size())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		}
		return nil
	})
	assert.Must(t, err)
	return b.String()
}

// A simulation reads and does nothing else: every byte, mode and time stays, whatever
// there is to mend in the queue.
func TestSimulationChangesNothing(t *testing.T) {
	b, c := simBox(t)
	// Things that a start of the scheduler would mend, move or finish.
	dead := b.Queue("a@b", storetest.Rcpt{Line: "smtp h.test locked@x"})
	b.Lock(dead, 0, 4711)
	b.Queue("a@b", storetest.Rcpt{Line: "error nouser nobody@x"}, storetest.Rcpt{Line: "bitbucket - gone@x"}, storetest.Rcpt{Line: "nowhere h unserved@x"})
	for name, text := range map[string]string{"transport/77-1": "i 77-1\n", "transport/78-1": "no specification at all\n", "transport/79": ""} {
		assert.Must(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600))
	}
	lost := b.Queue("a@b", storetest.Rcpt{Line: "smtp h.test lost@x"})
	assert.Must(t, os.Remove(filepath.Join(c.dir, "queue", lost)))
	c.levels = 1 // a start would move every file
	before := dirPicture(t, c.dir)
	r := simulated(t, c, Options{Set: "smtp/* maxring=2"})
	if after := dirPicture(t, c.dir); after != before {
		t.Error("the postoffice was changed")
	}
	if r.Messages != 122 || r.Recipients != 124 || r.EndingAtOnce != 2 || r.Aside != 1 || len(r.Unread) == 0 {
		t.Errorf("got %d messages, %d recipients, %d ending, %d aside, unread %v", r.Messages, r.Recipients, r.EndingAtOnce, r.Aside, r.Unread)
	}
}

func hostOf(t *testing.T, c *Course, name string) *Host {
	t.Helper()
	for _, h := range c.Hosts {
		if h.Host == name {
			return h
		}
	}
	t.Fatalf("no host %s", name)
	return nil
}

// What is drained when: good hosts at once, one in trouble after as long again as it has
// been so, one that never answers loses its mail at its expiry.
func TestSimulationTellsWhatDrainsAndExpires(t *testing.T) {
	_, c := simBox(t)
	r := simulated(t, c, Options{})
	course := r.Courses[0]
	if course.Delivered != 120 || course.Expired != 0 || course.Left != 0 {
		t.Errorf("got %+v", course)
	}
	if h := hostOf(t, course, "smtp/h0.test"); h.Drained <= 0 || h.Drained > 60 {
		t.Errorf("a good host drained after %v s", h.Drained)
	}
	h := hostOf(t, course, "smtp/h2.test")
	if h.Drained < 600 || h.Drained > 3600 || !strings.Contains(h.Trouble, "connection refused") || h.Connects > 40+20 {
		t.Errorf("the host in trouble: %+v", h)
	}
	if h := hostOf(t, simulated(t, c, Options{Up: []string{"H2.test"}}).Courses[0], "smtp/h2.test"); h.Drained > 300 {
		t.Errorf("with --up: %+v", h)
	}
	h = hostOf(t, simulated(t, c, Options{Down: []string{"smtp/h2.test"}}).Courses[0], "smtp/h2.test")
	if days := h.Drained / 86400; h.Expired != 40 || days < 2.9 || days > 3.1 {
		t.Errorf("with --down: %+v", h)
	}
	h = hostOf(t, simulated(t, c, Options{Down: []string{"h2.test"}, Until: 4 * time.Hour}).Courses[0], "smtp/h2.test")
	if h.Left != 40 || h.Drained != -1 {
		t.Errorf("until 4h: %+v", h)
	}
}

// What if maxring were 1: the same queue side by side.
func TestSimulationComparesSettings(t *testing.T) {
	_, c := simBox(t)
	r := simulated(t, c, Options{Set: "smtp/* maxring=1\nsmtp/{h0,h1}.test maxthr=1", Up: []string{"h2.test"}})
	if len(r.Courses) != 2 || r.Courses[1].Delivered != 120 ||
		hostOf(t, r.Courses[1], "smtp/h0.test").Drained < 4*hostOf(t, r.Courses[0], "smtp/h0.test").Drained {
		t.Errorf("got %+v and %+v", r.Courses[0], r.Courses[1])
	}
	again := simulated(t, c, Options{Set: "smtp/* maxring=1\nsmtp/{h0,h1}.test maxthr=1", Up: []string{"h2.test"}})
	for i := range r.Courses {
		for k := range r.Courses[i].Hosts {
			if *r.Courses[i].Hosts[k] != *again.Courses[i].Hosts[k] && r.Courses[i].Hosts[k].Host != "smtp/h2.test" {
				t.Errorf("the same seed: %+v, then %+v", r.Courses[i].Hosts[k], again.Courses[i].Hosts[k])
			}
		}
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"drained_after":`) {
		t.Errorf("%v: %s", err, text)
	}
	for set, want := range map[string]string{"smtp/* maxring=x": "--set:1:", "smtp/* nothing=1": "--set:1:", "maxring=1": "--set:1:"} {
		if _, err := c.run(Options{Set: set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", set, err, want)
		}
	}
}

// A recipient that an operator holds is left out.
func TestSimulationLeavesOutWhatIsHeld(t *testing.T) {
	b, c := simBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h0.test held@x"})
	f, err := b.PO.Queue.Open(name)
	assert.Must(t, err)
	defer f.Close()
	off := strconv.FormatInt(storetest.OffsetOf(b.Parse(name), 0), 10)
	e := workspec.Event{Time: time.Now(), Event: workspec.EventHold, Attrs: []workspec.Attr{{Key: "id", Value: postoffice.SpoolID{Ino: 1, MTime: 1}.String()},
		{Key: "rcpts", Value: off}, {Key: "who", Value: "root"}}, Text: "look first"}
	assert.Must(t, f.Append(workspec.AppendEvent(nil, &e)))
	if r := simulated(t, c, Options{}); r.Aside != 1 || r.Courses[0].Delivered != 120 {
		t.Errorf("got %d aside, %+v", r.Aside, r.Courses[0])
	}
}
