package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	life "zmailer/internal/admin/trace"
	"zmailer/test/suite"
)

// lives reads what zmctl trace --json says.
func lives(t *testing.T, s *suite.Suite, args ...string) (list []life.Life) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(zmctl(t, s, append([]string{"trace", "--json"}, args...)...)))
	for d.More() {
		var l life.Life
		must(t, d.Decode(&l))
		list = append(list, l)
	}
	return list
}

// logFile writes the log so far into a file.
func logFile(t *testing.T, s *suite.Suite) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(name, []byte(s.Log()), 0o600))
	return name
}

// words are the events of a life, without those that log at level debug alone.
func words(l *life.Life) string {
	var list []string
	for _, s := range l.Steps {
		list = append(list, s.Event)
	}
	return strings.Join(list, " ")
}

// Z30: the life of a message that failed, after it is gone: each step once, where its time
// went, and the report that it caused with its own life.
func TestLifeOfAMessageAcrossStages(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	zmctl(t, s, "expire", id)
	report := event(t, s, "report", "id", id).Get("report")
	awaitEmpty(t, s)
	event(t, s, "delivered", "id", report)
	log := logFile(t, s)
	for _, only := range []bool{false, true} {
		args := []string{"--log", log, id}
		if only {
			args = append([]string{"--logs-only"}, args...)
		}
		l := lives(t, s, args...)[0]
		if !slices.Contains(l.Told, "log") {
			t.Errorf("the sources are %q, want the log among them", l.Told)
		}
		if l.From != "bob@mta.example" || len(l.Recipients) != 3 || l.Untold != 0 || l.Ended.IsZero() {
			t.Fatalf("got %+v", l)
		}
		for _, r := range l.Recipients {
			want := "failed"
			if strings.HasPrefix(r.Address, "ok") {
				want = "delivered"
			}
			if r.State != want || r.Attempts != 1 || r.Routing <= 0 || r.Delivery <= 0 || r.Took < r.Routing+r.Queue+r.Delivery {
				t.Errorf("got %+v", r)
			}
		}
		for word, n := range map[string]int{"routed": 1, "delivered": 1, "deferred": 2, "expired": 2, "report": 1} {
			if got := len(slices.DeleteFunc(strings.Fields(words(&l)), func(w string) bool { return w != word })); got != n {
				t.Errorf("%d times %s, want %d: %s", got, word, n, words(&l))
			}
		}
		if !slices.IsSortedFunc(l.Steps, func(a, b life.Step) int { return a.Time.Compare(b.Time) }) {
			t.Error("the steps are not in order")
		}
		if len(l.Caused) != 1 || l.Caused[0].ID != report || l.Caused[0].Life == nil || l.Caused[0].Life.Origin == nil || l.Caused[0].Life.Origin.ID != id ||
			len(l.Caused[0].Life.Recipients) != 1 || l.Caused[0].Life.Recipients[0].State != "delivered" {
			t.Errorf("caused: %+v", l.Caused)
		}
	}
	wantIn(t, zmctl(t, s, "trace", "--log", log, id), id, "<one@sink.example>", report)
	// Without a log the ledger is its source.
	if l := lives(t, s, id)[0]; strings.Join(l.Told, " ") != "ledger" || !strings.Contains(l.Steps[len(l.Steps)-1].Text, "1 delivered, 2 expired") {
		t.Errorf("got %+v, want the outcomes from the ledger", l)
	}
	exits(t, s, 1, "zmctl", "trace", "--log", log, "--logs-only", "S1A2")
	exits(t, s, 1, "zmctl", "trace", "--log", "/nonexistent", id)
}

// told is what a life says of a recipient that the files say too.
func told(r *life.Recipient) string {
	next := ""
	if !r.Next.IsZero() {
		next = r.Next.UTC().Format("15:04:05")
	}
	return fmt.Sprintf("%s %s/%s %s attempts=%d %s %q next=%s", r.Address, r.Channel, r.Host, r.State, r.Attempts, r.Status, r.Last, next)
}

// Z30: the log alone tells of each recipient what zmctl queue and show tell from the files,
// whatever a person has ordered meanwhile, and over a restart.
func TestLifeFromTheLogAloneIsThatOfTheFiles(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	orders := map[string][][]string{
		"as it is":               nil,
		"held":                   {{"hold", "--reason", "their disk is full"}},
		"held for a time":        {{"hold", "--until", "2h"}},
		"released":               {{"hold"}, {"release"}},
		"frozen":                 {{"freeze"}},
		"thawed":                 {{"freeze"}, {"thaw"}},
		"tried again":            {{"retry"}},
		"one of them given up":   {{"expire", "--to", "one@*", "--silent", "--yes"}},
		"one of them taken out":  {{"remove", "--to", "one@*", "--yes"}},
		"one held, both retried": {{"hold", "--to", "one@*", "--yes"}, {"retry"}},
	}
	ids := map[string]string{}
	for name, list := range orders {
		id, _ := waits(t, s)
		ids[name] = id
		for _, o := range list {
			s.Forget()
			args := append(o[:len(o):len(o)], id)
			if slices.Contains(o, "--to") {
				args = append(o[:len(o):len(o)], "--id", id)
			}
			zmctl(t, s, args...)
			word := map[string]string{"hold": "held", "release": "released", "freeze": "frozen", "thaw": "thawed", "retry": "retry", "expire": "expired", "remove": "removed"}[o[0]]
			e := event(t, s, word, "id", id, "rcpt", "@sink.example")
			if e.Get("who") == "" {
				t.Errorf("%s: nobody: %+v", word, e)
			}
		}
		if list != nil && slices.Contains([]string{"thaw", "retry"}, list[len(list)-1][0]) {
			// It was tried at once.
			who := "two@sink.example"
			event(t, s, "deferred", "id", id, "rcpt", who)
		}
	}
	stop(t, s)
	log := logFile(t, s)
	for name, id := range ids {
		fromLog, fromFiles := lives(t, s, "--logs-only", "--log", log, id)[0], lives(t, s, "--log", os.DevNull, id)[0]
		say := func(l *life.Life) string {
			var list []string
			for i := range l.Recipients {
				r := &l.Recipients[i]
				if r.State == "delivered" {
					// The files have no answer of those.
					r.Status, r.Last, r.Attempts = "", "", 0
				}
				list = append(list, told(r))
			}
			slices.Sort(list)
			return strings.Join(list, "\n")
		}
		if got, want := say(&fromLog), say(&fromFiles); got != want {
			t.Errorf("%s: the log says\n%s\nthe files say\n%s\nthe log:\n%s", name, got, want, zmctl(t, s, "trace", "--log", log, id))
		}
		// What show says is the files' own.
		said := zmctl(t, s, "show", id)
		for _, r := range fromLog.Recipients {
			wantIn(t, said, r.Address)
		}
	}
}
