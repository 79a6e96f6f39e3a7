package e2e

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"zmailer/internal/admin/otlp"
	"zmailer/test/suite"
)

// collector takes traces as OTLP/HTTP has them, and reads them by opentelemetry-proto's
// own types; a request is a TracesData.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	refuse int // so many requests are told 503
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

// names are the spans of a message, "" until they have come.
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
	must(t, cmd.Start())
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
	// It follows when it has told of what ended: mail goes through until it does.
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
