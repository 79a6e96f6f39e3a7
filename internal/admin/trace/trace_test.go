package trace

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
)

const id, report = "S9978195A28Cb3lTyDjf", "S9977888A28Cb3rHWANz"

func fromText(t *testing.T, id, text string) (steps []Step) {
	t.Helper()
	for line := range strings.Lines(text) {
		l, ok := logging.ParseLine([]byte(line))
		if !ok {
			t.Fatalf("no line: %q", line)
		}
		if s, ok := FromLog(&l, id); ok {
			steps = append(steps, s)
		}
	}
	return steps
}

func at(t *testing.T, clock string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, "2026-11-21T"+clock+"Z")
	assert.Must(t, err)
	return when
}

// lived is the log of docs/log.md.
const lived = `time=2026-11-21T03:21:16.342Z level=INFO msg=routed program=router id=S9978195A28Cb3lTyDjf name=9978195-19115 from=bob@mta.example rcpts=2 size=269 took=211.275µs
time=2026-11-21T03:21:16.342Z level=INFO msg=accepted program=smtpserver id=S9978195A28Cb3lTyDjf from=bob@mta.example size=269 rcpts=1 client=127.0.0.1:37928
time=2026-11-21T03:21:16.413Z level=INFO msg=deferred program=scheduler id=S9978195A28Cb3lTyDjf name=9978195-19115 rcpt=ann@far.example channel=smtp host=far.example status=4.7.1 reply="451 4.7.1 come back a little later" attempt=1 routing=1ms queue=2ms delivery=3ms took=71ms next=2026-11-21T03:21:21Z
time=2026-11-21T03:21:17.413Z level=INFO msg=delivered program=scheduler id=S9978195A28Cb3lTyDjf name=9978195-19115 rcpt=ben@far.example channel=smtp host=far.example status=2.0.0 reply="250 Ok" attempt=1 routing=1ms queue=2ms delivery=3ms took=1.071s
time=2026-11-21T03:21:21.665Z level=INFO msg=failed program=scheduler id=S9978195A28Cb3lTyDjf name=9978195-19115 rcpt=ann@far.example channel=smtp host=far.example status=5.1.1 reply="550 5.1.1 no such user here" attempt=2 queue=1ms delivery=4ms took=5.323s
time=2026-11-21T03:21:21.667Z level=INFO msg=routed program=router id=S9977888A28Cb3rHWANz name=9977888-19115 from="" rcpts=1 size=2392 took=1.030118ms
time=2026-11-21T03:21:21.666Z level=INFO msg=report program=scheduler id=S9978195A28Cb3lTyDjf name=9978195-19115 kind=failed rcpt=bob@mta.example recipients=1 report=S9977888A28Cb3rHWANz
`

func TestLifeFromTheLog(t *testing.T) {
	l := New(id, at(t, "03:21:16.342"), fromText(t, id, lived), at(t, "04:00:00"))
	var words []string
	for _, s := range l.Steps {
		words = append(words, s.Event)
	}
	assert.Equal(t, fmt.Sprint(words), "[accepted routed deferred delivered failed report]")
	if l.From != "bob@mta.example" || l.Size != "269" || !l.Ended.Equal(at(t, "03:21:21.665")) || l.Untold != 0 || len(l.Caused) != 1 || l.Caused[0].ID != report {
		t.Errorf("got %+v", l)
	}
	ann := l.Recipient("Ann@far.example")
	if ann.State != Failed || ann.Attempts != 2 || ann.Status != "5.1.1" || ann.Routing != time.Millisecond || ann.Queue != 3*time.Millisecond ||
		ann.Delivery != 7*time.Millisecond || ann.Took != 5323*time.Millisecond || ann.Waited != 5312*time.Millisecond {
		t.Errorf("got %+v", ann)
	}
	// The trace of the report names its message, and has no events of another one.
	r := New(report, at(t, "03:21:21.666"), fromText(t, report, lived), at(t, "04:00:00"))
	if r.Origin == nil || r.Origin.ID != id || r.Origin.Kind != "failed" || len(r.Steps) != 2 || r.Untold != 1 || !r.Ended.IsZero() {
		t.Errorf("got %+v", r)
	}
}

// What log, history and ledger say of one step is one step; what they do not share stays.
func TestPlacesThatTellTheSameAreMerged(t *testing.T) {
	steps := fromText(t, id, lived)
	history := func(clock, event, rcpt string, attempt int) Step {
		return Step{Time: at(t, clock), Event: event, Recipients: []string{rcpt}, Attempt: attempt, Told: []string{History}, Text: "of the history"}
	}
	steps = append(steps, history("03:21:16.409", "deferred", "ANN@far.example", 1), history("03:21:21", "failed", "ann@far.example", 0),
		history("03:21:18", "held", "ann@far.example", 0), history("03:21:16.400", "sent", "ben@far.example", 0),
		Step{Time: at(t, "03:21:16.341"), Event: "accepted", Told: []string{Ledger}, Text: "entered"},
		Step{Time: at(t, "03:21:22"), Event: "finished", Told: []string{Ledger}, Text: "done with"})
	l := New(id, at(t, "03:21:16.342"), steps, at(t, "04:00:00"))
	told := map[string]string{}
	for _, s := range l.Steps {
		told[s.Event] += strings.Join(s.Told, "+") + " "
	}
	want := map[string]string{"accepted": "log+ledger ", "routed": "log ", "deferred": "log+history ", "delivered": "log ", "failed": "log+history ",
		"report": "log ", "held": "history ", "sent": "history ", "finished": "ledger "}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", told, want)
	}
	if !l.Ended.Equal(at(t, "03:21:22")) || fmt.Sprint(l.Told) != "[log ledger history]" {
		t.Errorf("got %v, %v", l.Ended, l.Told)
	}
}

// Each order leaves a recipient in the state that zmctl queue shows.
func TestOrdersDecideStates(t *testing.T) {
	for name, tt := range map[string]struct {
		orders string
		want   string
	}{
		"held":                      {"held", "held 1"},
		"held until a time":         {"held until=2026-11-21T05:00:00Z", "held 1"},
		"held until a time ago":     {"held until=2026-11-21T03:30:00Z", "waiting 1"},
		"released":                  {"held|released", "waiting 1"},
		"frozen, held and released": {"frozen cause=person|held|released", "frozen 1"},
		"thawed":                    {"frozen cause=person|thawed", "waiting 0"},
		"retried":                   {"retry", "waiting 1"},
		"failed and opened again":   {"failed|retry fresh=true", "waiting 0"},
		"given up":                  {"expired who=joe", "failed 1"},
		"removed":                   {"removed who=joe", "removed 1"},
		"put back":                  {"removed who=joe|restored who=joe", "waiting 1"},
		"routed again":              {"rerouted copy=S1A1 who=joe", "rerouted 1"},
		"without a clause":          {"unknown-channel", "unserved 1"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "time=2026-11-21T03:21:16Z level=INFO msg=deferred program=scheduler id=S1A2 rcpt=a@b channel=smtp host=b attempt=1 status=4.0.0 reply=later\n"
			for i, o := range strings.Split(tt.orders, "|") {
				word, rest, _ := strings.Cut(o, " ")
				text += fmt.Sprintf("time=2026-11-21T03:22:%02dZ level=INFO msg=%s program=scheduler id=S1A2 rcpt=a@b channel=smtp host=b %s\n", i, word, rest)
			}
			l := New("S1A2", at(t, "03:21:00"), fromText(t, "S1A2", text), at(t, "04:00:00"))
			if got := fmt.Sprint(l.Recipients[0].State, " ", l.Recipients[0].Attempts); len(l.Recipients) != 1 || got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Recipients with the same event at the same time share a line.
func TestGroupsShareALine(t *testing.T) {
	var text strings.Builder
	for i := range 5 {
		fmt.Fprintf(&text, "time=2026-11-21T03:21:16.%03dZ level=INFO msg=delivered program=scheduler id=S1A2 rcpt=r%d@b channel=smtp host=b attempt=1 status=2.0.0 reply=Ok\n", i, i)
	}
	text.WriteString("time=2026-11-21T03:21:16.9Z level=INFO msg=delivered program=scheduler id=S1A2 rcpt=other@c channel=smtp host=c attempt=1 status=2.0.0 reply=Ok\n")
	l := New("S1A2", at(t, "03:21:16"), fromText(t, "S1A2", text.String()), at(t, "04:00:00"))
	g := l.Groups()
	if len(l.Steps) != 6 || len(g) != 2 || len(g[0].Recipients) != 5 {
		t.Errorf("got %d steps, groups %+v", len(l.Steps), g)
	}
}
