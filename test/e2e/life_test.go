package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"zmailer/internal/admin/otlp"
	life "zmailer/internal/admin/trace"
	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// lives parses the output of zmctl trace --json.
func lives(t *testing.T, s *suite.Suite, args ...string) (list []life.Life) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(zmctl(t, s, append([]string{"trace", "--json"}, args...)...)))
	for d.More() {
		var l life.Life
		assert.Must(t, d.Decode(&l))
		list = append(list, l)
	}
	return list
}

// logFile writes the log so far into a file.
func logFile(t *testing.T, s *suite.Suite) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	assert.Must(t, os.WriteFile(name, []byte(s.Log()), 0o600))
	return name
}

// Z30: zmctl trace of a message that failed and is gone: each step once, the time of each stage, and
// the trace of the report that it caused.
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
		words := map[string]int{}
		for _, step := range l.Steps {
			words[step.Event]++
		}
		for word, n := range map[string]int{"routed": 1, "delivered": 1, "deferred": 2, "expired": 2, "report": 1} {
			assert.Equal(t, words[word], n, word)
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

// stateOf returns the state of a recipient in a trace.
func stateOf(r *life.Recipient) string {
	next := ""
	if !r.Next.IsZero() {
		next = r.Next.UTC().Format("15:04:05")
	}
	return fmt.Sprintf("%s %s/%s %s attempts=%d %s %q next=%s", r.Address, r.Channel, r.Host, r.State, r.Attempts, r.Status, r.Last, next)
}

// Z30: zmctl trace has the same state of each recipient from the log alone as from the files, after
// any operation, and over a restart.
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
				t.Errorf("%s: no operator: %+v", word, e)
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
				list = append(list, stateOf(r))
			}
			slices.Sort(list)
			return strings.Join(list, "\n")
		}
		if got, want := say(&fromLog), say(&fromFiles); got != want {
			t.Errorf("%s: the log says\n%s\nthe files say\n%s\nthe log:\n%s", name, got, want, zmctl(t, s, "trace", "--log", log, id))
		}
	}
}

// collector takes traces as OTLP/HTTP has them, and reads them by opentelemetry-proto's
// own types; a request is a TracesData.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	refuse int // requests that are answered 503
	asked  int
	wrong  []string
	traces map[string][]*tracepb.Span
}

func newCollector(t *testing.T, refuse int) *collector {
	c := &collector{refuse: refuse, traces: map[string][]*tracepb.Span{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if c.asked++; c.asked <= c.refuse {
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	var got tracepb.TracesData
	if err == nil {
		err = protojson.Unmarshal(body, &got)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer key" {
		c.wrong = append(c.wrong, r.Method+" "+r.URL.Path+" "+string(body))
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	c.take(&got)
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"partialSuccess":{}}`)
}

// take keeps spans by their trace. protobuf's JSON takes the digits of an identifier for
// base64: they are got back so.
func (c *collector) take(data *tracepb.TracesData) {
	for _, r := range data.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, x := range s.Spans {
				id := base64.StdEncoding.EncodeToString(x.TraceId)
				c.traces[id] = append(c.traces[id], x)
			}
		}
	}
}

// names returns the spans of a message, "" until they have come.
func (c *collector) names(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, x := range c.traces[otlp.TraceID(id)] {
		list = append(list, x.Name)
	}
	return strings.Join(list, ", ")
}

// exporter runs zmctl export otlp until the test stops it.
func exporter(t *testing.T, s *suite.Suite, c *collector) (stop func() string) {
	t.Helper()
	cmd := s.Command("zmctl", "export", "otlp", "--endpoint", c.URL+"/v1/traces")
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20key")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	assert.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return func() string {
		t.Helper()
		late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("export ended with %v", err)
		}
		return said.String()
	}
}

// Z30: messages that end are sent to a collector, also one that fails at first; a report and its
// message link to each other; no span contains an address.
func TestEndedMessagesAreSentToOpenTelemetry(t *testing.T) {
	t.Parallel()
	s, _ := service(t)
	zmctl(t, s, "start", "--direct")
	c := newCollector(t, 1)
	stop := exporter(t, s, c)
	// Mail is sent until the exporter has sent a trace, and so follows the log.
	await(t, s, "followed postoffice", func() (bool, error) {
		submit(t, s, "Subject: one\n\n", "-f", "bob@mta.example", "alice@mta.example")
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked > 0, nil
	})
	cmd := s.Command("submit", "--id", "-i", "-f", "bob@mta.example", "alice@mta.example", "nobody@mta.example")
	cmd.Stdin = strings.NewReader("Subject: two\n\n")
	said, code := run(t, cmd)
	if code != 0 {
		t.Fatal(said)
	}
	first := strings.TrimSpace(said)
	await(t, s, "trace of "+first, func() (bool, error) { return c.names(first) != "", nil })
	// The scheduler may have logged an attempt before the router logged the routing.
	if got := c.names(first); !strings.HasPrefix(got, "message, ") || !strings.Contains(got, "route, ") || !strings.Contains(got, "deliver local") {
		t.Errorf("got the spans %s, want message, then route and deliver local", got)
	}
	root := c.traces[otlp.TraceID(first)][0]
	if len(root.Links) != 1 {
		t.Fatalf("no link to a report: %v", root)
	}
	report := base64.StdEncoding.EncodeToString(root.Links[0].TraceId)
	await(t, s, "trace of its report", func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.traces[report]) > 0, nil
	})
	log := stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if links := c.traces[report][0].Links; len(links) != 1 || base64.StdEncoding.EncodeToString(links[0].TraceId) != otlp.TraceID(first) {
		t.Errorf("the report's links: %v", links)
	}
	if len(c.wrong) > 0 {
		t.Errorf("not what a collector takes: %s", c.wrong)
	}
	for id, spans := range c.traces {
		for _, x := range spans {
			if strings.Contains(x.String(), "alice") || strings.Contains(x.String(), "bob@") {
				t.Errorf("trace %s has an address: %v", id, x)
			}
		}
	}
	wantIn(t, log, "msg=export-trouble", "msg=export-recovered", "msg=stopped")
}
