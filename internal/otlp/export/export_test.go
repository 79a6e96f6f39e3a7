package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// pretended makes a program that says these events and then waits, and as a trace its
// arguments.
func pretended(t *testing.T, events string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "events"), []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\ncase $2 in\nevents) cat " + dir + "/events; exec sleep 60;;\ntrace) shift; echo \"$*\";;\n*) exit 78;;\nesac\n"
	path := filepath.Join(dir, "zmctl")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{path, "--config="}
}

func ended(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, `{"time":"2026-11-22T10:00:00Z","event":"finished","by":"ledger","id":"S%dA2"}`+"\n", i)
	}
	return b.String()
}

// sink takes requests, and answers them in turn.
type sink struct {
	*httptest.Server
	mu      sync.Mutex
	answers []func(w http.ResponseWriter)
	got     []string
	more    chan struct{}
}

func newSink(t *testing.T, answers ...func(w http.ResponseWriter)) *sink {
	s := &sink{answers: answers, more: make(chan struct{}, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.got = append(s.got, string(b)); len(s.got) <= len(s.answers) {
			s.answers[len(s.got)-1](w)
		}
		s.more <- struct{}{}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) await(t *testing.T, n int) []string {
	t.Helper()
	late := time.After(20 * time.Second)
	for range n {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("not %d requests: %q", n, s.got)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

func says(code int, text string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(code)
		io.WriteString(w, text)
	}
}

// run runs an exporter; end ends it and gives its log.
func run(t *testing.T, e *Exporter) (end func() string) {
	t.Helper()
	var log bytes.Buffer
	e.Log, e.Client, e.Header = slog.New(slog.NewTextHandler(&log, nil)), &http.Client{}, http.Header{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() string {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return log.String()
	}
}

// What a collector cannot take now is sent again, what it never takes is not.
func TestCollectorsAnswersAreMinded(t *testing.T) {
	t.Parallel()
	s := newSink(t, says(503, "later"), says(400, "what is that"), says(200, `{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}`), says(200, "{}"))
	e := &Exporter{Zmctl: pretended(t, ended(1000, 1000+2*batchMost+1)), Endpoint: s.URL, Percent: 100}
	end := run(t, e)
	got := s.await(t, 4)
	if strings.Count(got[0], " S") != batchMost || !strings.HasPrefix(got[0], "trace --otlp --no-addresses S1000A2 S1001A2 ") {
		t.Errorf("first request: %q", got[0])
	}
	if got[1] != got[0] || got[2] == got[1] || got[3] != "trace --otlp --no-addresses S1200A2\n" {
		t.Errorf("got %q", got)
	}
	log := end()
	for _, want := range []string{"msg=export-trouble", "answered 503", "msg=export-recovered", "dropped=2"} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is not in %s", want, log)
		}
	}
	if strings.Count(log, "msg=export-trouble") != 1 {
		t.Errorf("said more than once: %s", log)
	}
}

// While nobody takes them the newest are kept.
func TestOldestRequestsMakeRoom(t *testing.T) {
	t.Parallel()
	e := &Exporter{Zmctl: pretended(t, ""), Log: slog.New(slog.DiscardHandler)}
	for i := range heldMost + 5 {
		e.tell(t.Context(), []string{fmt.Sprint("S", i)})
	}
	if len(e.held) != heldMost || e.dropped != 5 || string(e.held[0]) != "trace --otlp --no-addresses S5\n" {
		t.Errorf("%d held, %d dropped, the first %q", len(e.held), e.dropped, e.held[0])
	}
}

// A part of the messages is the same part each time.
func TestPercentChoosesBySpoolID(t *testing.T) {
	t.Parallel()
	few, many := &Exporter{Percent: 5}, &Exporter{Percent: 50}
	n := 0
	for i := range 10000 {
		id := fmt.Sprintf("S%dA28CSN2b75Hb", i)
		if few.chosen(id) {
			n++
			if !many.chosen(id) {
				t.Fatalf("%s is among 5 of 100 and not among 50", id)
			}
		}
	}
	if n < 400 || n > 600 {
		t.Errorf("5 of 100 were %d of 10000", n)
	}
}

// What ended before the exporter is told to end is sent, and a zmctl that cannot go on ends
// it.
func TestExportEndsInOrder(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	first := make(chan struct{})
	s.answers = []func(http.ResponseWriter){func(http.ResponseWriter) { close(first) }}
	end := run(t, &Exporter{Zmctl: pretended(t, ended(1, 2)+`{"event":"delivered","id":"S9A2"}`+"\nno JSON\n"), Endpoint: s.URL, Percent: 100, Addresses: true})
	<-first
	end()
	// One that was under way is sent again: it is the same trace.
	if got := slices.Compact(s.await(t, 1)); len(got) != 1 || got[0] != "trace --otlp S1A2\n" {
		t.Errorf("got %q", got)
	}
	e := &Exporter{Zmctl: []string{pretended(t, "")[0], "--config=", "x"}, Log: slog.New(slog.DiscardHandler)}
	var code Unusable
	if err := e.Run(t.Context()); !errors.As(err, &code) || code != 78 {
		t.Errorf("got %v, want exit code 78", err)
	}
}
