package config

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// notes is a Keeper that keeps what is away.
type notes struct {
	Keeper
	after time.Duration
	since time.Time
	last  string
	away  int
	ended int
}

func (n *notes) Names(string)                             {}
func (n *notes) OutageAfter() time.Duration               { return n.after }
func (n *notes) Good(string, []byte, uint32, error)       { n.last, n.ended = "", n.ended+1 }
func (n *notes) Attach(*exec.Cmd, string) (func(), error) { return func() {}, nil }

func (n *notes) Away(_ string, since time.Time, reason error, _ string) {
	n.since, n.last, n.away = since, reason.Error(), n.away+1
}

// Op4: an alarm begins when the trouble has lasted for a while, not with one failure; it has the time
// of the first failure and the last error, and ends with the first answer.
func TestOp4AlarmBeginsAfterAWhileAndEndsWithAnAnswer(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	fail := func(text string) error { return errors.New(text) }
	for name, tt := range map[string]struct {
		of    Backend
		after time.Duration
		steps []any // an error: a failure, nil: an answer, a Duration: time passes, a string: the alarm
		since time.Duration
	}{
		"one failure":                    {Backend{}, 10 * time.Second, []any{fail("a"), time.Hour, ""}, 0},
		"many at once":                   {Backend{}, 10 * time.Second, []any{fail("a"), fail("b"), 9 * time.Second, fail("c"), ""}, 0},
		"a while":                        {Backend{}, 10 * time.Second, []any{fail("a"), 10 * time.Second, fail("b"), "b"}, 0},
		"an answer between":              {Backend{}, 10 * time.Second, []any{fail("a"), nil, 10 * time.Second, fail("b"), "", 10 * time.Second, fail("c"), "c"}, 10 * time.Second},
		"over":                           {Backend{}, 10 * time.Second, []any{fail("a"), 10 * time.Second, fail("b"), nil, ""}, 0},
		"again":                          {Backend{}, 10 * time.Second, []any{fail("a"), 10 * time.Second, fail("b"), nil, fail("c"), "", 10 * time.Second, fail("d"), "d"}, 10 * time.Second},
		"the last error, once a minute":  {Backend{}, 10 * time.Second, []any{fail("a"), 10 * time.Second, fail("b"), fail("c"), "b", time.Minute, fail("d"), "d"}, 0},
		"clients that have gone":         {Backend{}, 10 * time.Second, []any{fail("a"), 10 * time.Second, context.Canceled, ""}, 0},
		"too few failures":               {Backend{Failures: 3}, 10 * time.Second, []any{fail("a"), 10 * time.Second, fail("b"), "", fail("c"), "c"}, 0},
		"at once":                        {Backend{AtOnce: true}, 10 * time.Second, []any{fail("a"), "a"}, 0},
		"no such alarm":                  {Backend{AtOnce: true}, -1, []any{fail("a"), time.Hour, fail("b"), ""}, 0},
		"another process has ended that": {Backend{}, time.Second, []any{fail("a"), time.Second, fail("b"), "b", "end", "", time.Minute, fail("b"), "b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now, n := start, &notes{after: tt.after}
			o := NewOutage(n, tt.of)
			o.now = func() time.Time { return now }
			for i, step := range tt.steps {
				switch step := step.(type) {
				case time.Duration:
					now = now.Add(step)
				case string:
					if step == "end" {
						n.last = ""
						continue
					}
					assert.Equal(t, n.last, step, "alarm after step %d", i)
				case error:
					o.Note(step)
				default:
					o.Note(nil)
				}
			}
			if n.last != "" {
				assert.Equal(t, n.since, start.Add(tt.since), "since")
			}
		})
	}
}

// What works costs the Keeper one call.
func TestAnswersAreNotedOnce(t *testing.T) {
	n := &notes{}
	o := NewOutage(n, Backend{})
	for range 100 {
		o.Answers()
	}
	assert.Equal(t, n.ended, 1, "calls")
	assert.Equal(t, testing.AllocsPerRun(100, o.Answers), 0, "allocations")
}

func TestOutageAfterIsPartOfAlarms(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": DefaultOutageAfter, "router=5m": DefaultOutageAfter, "backend=3m router=1m": 3 * time.Minute, "backend=0": -1, "off": -1, "backend=x": DefaultOutageAfter,
	} {
		file := filepath.Join(t.TempDir(), "zmailer.conf")
		assert.Must(t, os.WriteFile(file, []byte("ALARMS=\""+text+"\"\n"), 0o600))
		c := assert.Get(Load(file))(t)
		assert.Equal(t, c.OutageAfter(), want, "%s", text)
	}
}
