package alarm

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// A25: raised once, standing with its first time, cleared once.
func TestAlarmIsRaisedOnceAndClearedOnce(t *testing.T) {
	var b Board
	old := Alarm{Kind: TooOld, Subject: "router", Since: noon, Text: "1"}
	lost := Alarm{Kind: Orphan, Subject: "transport/1-2", Since: noon, Text: "2"}
	steps := []struct {
		name            string
		found           []Alarm
		raised, cleared []Alarm
		standing        []Alarm
	}{
		{"nothing", nil, nil, nil, nil},
		{"two, one of them twice", []Alarm{old, lost, old}, []Alarm{lost, old}, nil, []Alarm{lost, old}},
		{"the same later, with another text", []Alarm{{Kind: TooOld, Subject: "router", Since: noon.Add(time.Hour), Text: "9"}, lost},
			nil, nil, []Alarm{lost, {Kind: TooOld, Subject: "router", Since: noon, Text: "9"}}},
		{"one is over", []Alarm{lost}, nil, []Alarm{{Kind: TooOld, Subject: "router", Since: noon, Text: "9"}}, []Alarm{lost}},
		{"it comes again", []Alarm{old, lost}, []Alarm{old}, nil, []Alarm{lost, old}},
		{"all is well", nil, nil, []Alarm{lost, old}, nil},
	}
	for _, s := range steps {
		raised, cleared := b.Update(s.found)
		if d := cmp.Diff(s.raised, raised) + cmp.Diff(s.cleared, cleared); d != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, d)
		}
		if len(b.Raised()) != len(s.standing) || len(s.standing) > 0 && !cmp.Equal(s.standing, b.Raised()) {
			t.Errorf("%s: %v stand, want %v", s.name, b.Raised(), s.standing)
		}
	}
}

func TestFileKeepsAlarms(t *testing.T) {
	list := []Alarm{
		{Kind: TooOld, Subject: "router", Since: noon, Text: "3 messages, the oldest since yesterday"},
		{Kind: NoProgress, Subject: "smtp/example.com", Since: noon, Text: "line\nbreak \x1b[2J"},
	}
	b := Append(nil, list)
	assert.Equal(t, strings.Count(string(b), "\n"), 2, "lines in: %s", b)
	list[1].Text = "line?break ?[2J"
	assert.Same(t, Parse(append(b, "torn 2026"...)), list)
}

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		text string
		want Limits
		err  string
	}{
		"defaults": {"", Limits{time.Hour, 15 * time.Minute, 96 * time.Hour, 24 * time.Hour, 168 * time.Hour, 15 * time.Minute, 10 * time.Second}, ""},
		"some":     {"router=5m frozen=0", Limits{time.Hour, 5 * time.Minute, 96 * time.Hour, 24 * time.Hour, 0, 15 * time.Minute, 10 * time.Second}, ""},
		"off":      {"off", Limits{}, ""},
		"unknown":  {"rooter=5m", Limits{}, "rooter=5m: it must be NAME=TIME with one of backend, deferred, frozen, progress, public, queue, router"},
		"no time":  {"router=soon", Limits{}, "router=soon: it must be like"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseLimits(tt.text)
			if tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestOldestCountsFromItsLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		oldest time.Time
		limit  time.Duration
		want   bool
	}{
		"none":      {time.Time{}, time.Minute, false},
		"young":     {noon.Add(-59 * time.Second), time.Minute, false},
		"old":       {noon.Add(-time.Minute), time.Minute, true},
		"no limit":  {noon.Add(-time.Hour), 0, false},
		"from then": {noon.Add(time.Hour), time.Minute, false},
	} {
		if a, ok := Age("router", 3, tt.oldest, tt.limit, noon); ok != tt.want || ok && !strings.Contains(a.Text, "3 messages") {
			t.Errorf("%s: got %v, %+v", name, ok, a)
		}
	}
}
