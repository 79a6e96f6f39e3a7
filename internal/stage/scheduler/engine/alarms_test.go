package engine

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/scheduler/thread"
)

// A25: what is too old, orphaned, duplicated or makes no progress is raised in the log
// and in the file of alarms, and cleared when it is over.
func TestAlarmsAreRaisedAndCleared(t *testing.T) {
	t.Parallel()
	hour := time.Now().Add(-time.Hour)
	tests := map[string]struct {
		limits  alarm.Limits
		plant   func(r *rig) (mend func())
		kind    alarm.Kind
		subject string
	}{
		"too old in router/": {alarm.Limits{Router: time.Minute}, func(r *rig) func() {
			name := filepath.Join(r.dir, "router", "4711")
			assert.Must(t, os.WriteFile(name, []byte("to bond\n\n"), 0o700))
			assert.Must(t, os.Chtimes(name, hour, hour))
			return func() { assert.Must(t, os.Remove(name)) }
		}, alarm.TooOld, "router"},
		"frozen for long": {alarm.Limits{Frozen: time.Minute}, func(r *rig) func() {
			name := filepath.Join(r.dir, "freezer", "4711.size")
			assert.Must(t, os.WriteFile(name, []byte("to bond\n\n"), 0o700))
			assert.Must(t, os.Chtimes(name, hour, hour))
			return func() { assert.Must(t, os.Remove(name)) }
		}, alarm.TooOld, "freezer"},
		"too old in the queue": {alarm.Limits{Queue: time.Nanosecond}, func(r *rig) func() {
			r.queue("smtp h gate@h")
			return r.atGate()
		}, alarm.TooOld, "queue"},
		"no progress": {alarm.Limits{Progress: time.Nanosecond}, func(r *rig) func() {
			r.queue("smtp h gate@h")
			return r.atGate()
		}, alarm.NoProgress, "smtp/h"},
		"a specification without its message": {alarm.Limits{}, func(r *rig) func() {
			name := r.queue("smtp h gate@h")
			open := r.atGate()
			queue, aside := filepath.Join(r.dir, "queue", name), filepath.Join(r.dir, "aside")
			assert.Must(t, os.Rename(queue, aside))
			text := r.Read("transport/" + name)
			assert.Must(t, os.WriteFile(filepath.Join(r.dir, "copy"), []byte(text), 0o644))
			assert.Must(t, os.Rename(filepath.Join(r.dir, "copy"), filepath.Join(r.dir, "transport", name)))
			return func() {
				assert.Must(t, os.Rename(aside, queue))
				open()
			}
		}, alarm.Orphan, "transport/"},
		"a second specification of one message": {alarm.Limits{}, func(r *rig) func() {
			name := r.queue("smtp h gate@h")
			open := r.atGate()
			number, _, _ := strings.Cut(name, "-")
			copied := filepath.Join(r.dir, "transport", number+"-99")
			assert.Must(t, os.WriteFile(filepath.Join(r.dir, "planted"), []byte(r.Read("transport/"+name)), 0o644))
			assert.Must(t, os.Link(filepath.Join(r.dir, "queue", name), filepath.Join(r.dir, "queue", number+"-99")))
			assert.Must(t, os.Rename(filepath.Join(r.dir, "planted"), copied))
			return func() {
				assert.Must(t, errors.Join(os.Remove(copied), os.Remove(filepath.Join(r.dir, "queue", number+"-99"))))
				open()
			}
		}, alarm.Duplicate, "transport/"},
		"one message in queue/ and in router/": {alarm.Limits{Router: time.Hour}, func(r *rig) func() {
			name := r.queue("smtp h gate@h")
			open := r.atGate()
			number, _, _ := strings.Cut(name, "-")
			copied := filepath.Join(r.dir, "router", number)
			assert.Must(t, os.Link(filepath.Join(r.dir, "queue", name), copied))
			return func() {
				assert.Must(t, os.Remove(copied))
				open()
			}
		}, alarm.Duplicate, "router/"},
		"a specification that cannot be read": {alarm.Limits{}, func(r *rig) func() {
			name := filepath.Join(r.dir, "transport", "4711")
			// Whole at once: an empty one looks like what finishing has left.
			assert.Must(t, os.WriteFile(filepath.Join(r.dir, "planted"), []byte("@ 0x00000080\n"), 0o644))
			assert.Must(t, os.Rename(filepath.Join(r.dir, "planted"), name))
			return func() { assert.Must(t, os.Remove(name)) }
		}, alarm.Unusable, "transport/4711"},
		"a server that gives another daemon no answer": {alarm.Limits{}, func(r *rig) func() {
			smtpserver := assert.Get(lastgood.Open(r.dir, "smtpserver", slog.New(slog.DiscardHandler)))(r.T)
			smtpserver.Away("policy:127.0.0.1:1", time.Now(), errors.New("connection refused"), "start it")
			return func() { smtpserver.Good("policy:127.0.0.1:1", nil, 0, nil) }
		}, alarm.Refused, "policy:127.0.0.1:1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, nil)
			r.config.Alarms, r.config.MonitorEvery, r.config.Look = tt.limits, 20*time.Millisecond, 50*time.Millisecond
			r.config.tuning.alone = time.Hour
			r.start()
			mend := tt.plant(r)
			r.wait(1, "msg=alarm-raised", "kind="+string(tt.kind), tt.subject)
			logtest.Eventually(t, "the file has the alarm", func() bool {
				b, err := r.PO.ReadAlarms()
				assert.Must(t, err)
				return slices.ContainsFunc(alarm.Parse(b), func(a alarm.Alarm) bool { return a.Kind == tt.kind && strings.HasPrefix(a.Subject, tt.subject) })
			})
			mend()
			r.wait(1, "msg=alarm-cleared", "kind="+string(tt.kind), tt.subject)
			// After it is cleared the same may come again: each limit is shorter than a look.
			raised := false
			for line := range strings.Lines(r.events.String()) {
				switch {
				case strings.Contains(line, "msg=alarm-cleared"):
					raised = false
				case strings.Contains(line, "msg=alarm-raised") && raised:
					t.Error("raised again before it was cleared")
				case strings.Contains(line, "msg=alarm-raised"):
					raised = true
				}
			}
		})
	}
}

// A scheduler that is to deliver nothing makes no progress, which is no alarm.
func TestNoProgressIsExpectedOfAFrozenScheduler(t *testing.T) {
	now := time.Now()
	e := monitor{base: &base{core: thread.New(rand.New(rand.NewPCG(1, 2))), now: now}}
	e.scanner = &scanner{base: e.base}
	e.conf.Alarms.Progress = time.Nanosecond
	r := e.core.Ring("r", thread.Policy{Interval: time.Minute, Retries: []int{1}})
	e.core.Add(&thread.Message{Number: 1, Open: 1}, r, "smtp", "h", []thread.Recipient{thread.NewRecipient(1, "")}, thread.History{}, now)
	for _, freeze := range []bool{false, true} {
		e.conf.Start.Freeze = freeze
		e.stillThreads()
		e.now = e.now.Add(time.Hour)
		if got := len(e.stillThreads()); got > 0 == freeze {
			t.Errorf("frozen %v: %d alarms", freeze, got)
		}
	}
}

// outages is a config.Keeper that counts.
type outages struct {
	config.Keeper
	mu           sync.Mutex
	begun, ended int
	reason       string
}

func (o *outages) Names(string)               {}
func (o *outages) OutageAfter() time.Duration { return 0 }

func (o *outages) Away(_ string, _ time.Time, reason error, _ string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun, o.reason = o.begun+1, reason.Error()
}

func (o *outages) Good(string, []byte, uint32, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended++
}

// Op4: a content filter that takes no mail is an alarm, until it takes some; other hosts are none.
func TestOp4ContentFilterThatIsAwayIsAnAlarm(t *testing.T) {
	t.Parallel()
	o := &outages{}
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	r.config.Filter = NewContentFilter(o, "smtp", "filter")
	r.start()
	r.queue("smtp other host3@h")
	r.wait(1, "msg=delivered", "rcpt=host3@h")
	assert.Equal(t, o.begun+o.ended, 0, "alarms about another host")
	r.queue("smtp Filter ok@h")
	r.wait(1, "msg=delivered", "rcpt=ok@h")
	assert.Equal(t, o.begun+o.ended, 0, "alarms about a filter that works")
	r.queue("smtp filter host4@h")
	r.wait(1, "msg=delivered", "rcpt=host4@h")
	logtest.Eventually(t, "the alarm ends", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.ended > 0
	})
	if o.begun != 1 || o.ended != 1 || !strings.Contains(o.reason, "connection refused") {
		t.Errorf("got %+v", o)
	}
}
