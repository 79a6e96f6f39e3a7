package export

import (
	"bufio"
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
	"syscall"
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
	return command(t, "events) cat "+dir+"/events; exec sleep 60;;\ntrace) shift; echo \"$*\";;\n*) exit 78;;")
}

// command makes a program of these cases.
func command(t *testing.T, cases string) []string {
	t.Helper()
	script := "#!/bin/sh\ncase $2 in\n" + cases + "\nesac\n"
	path := filepath.Join(t.TempDir(), "zmctl")
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

// fifo is a file that a program can write lines to without waiting.
func fifo(t *testing.T) (name string, lines *bufio.Scanner) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return name, bufio.NewScanner(f)
}

// A collector that wants to be left alone is, whatever ends meanwhile.
func TestFailingCollectorIsNotAskedForEachBatch(t *testing.T) {
	t.Parallel()
	busy := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "900")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	s := newSink(t, busy, busy, busy, busy, busy, busy, busy)
	name, told := fifo(t)
	zmctl := pretended(t, ended(1000, 1000+2*batchMost+1))
	cases := "trace) shift; echo told >" + name + "; echo \"$*\";;\n*) exec " + zmctl[0] + " \"$@\";;"
	end := run(t, &Exporter{Zmctl: command(t, cases), Endpoint: s.URL, Percent: 100})
	for i := range 3 {
		if !told.Scan() {
			t.Fatalf("batch %d: %v", i, told.Err())
		}
	}
	log := end()
	// Once for the first batch, once at the end.
	if got := s.await(t, 2); len(got) != 2 || got[0] != got[1] {
		t.Errorf("it was asked %d times: %q", len(got), got)
	}
	if !strings.Contains(log, "msg=export-dropped requests=3 ") {
		t.Errorf("what was not sent is not told: %s", log)
	}
}

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "999999999": mostWait, "99999999999999": 0,
		"Fri, 31 Dec 1999 23:59:59 GMT": 0, "Fri, 31 Dec 2199 23:59:59 GMT": mostWait,
	} {
		if got := leastWait(http.Header{"Retry-After": {text}}); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

// What is being asked about when the exporter is told to end is sent.
func TestBatchUnderWayIsSentAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	name, told := fifo(t)
	zmctl := pretended(t, ended(1, 3))
	once := filepath.Join(t.TempDir(), "once")
	cases := "trace) if mkdir " + once + " 2>/dev/null; then echo told >" + name + "; exec sleep 60; fi; shift; echo \"$*\";;\n*) exec " + zmctl[0] + " \"$@\";;"
	end := run(t, &Exporter{Zmctl: command(t, cases), Endpoint: s.URL, Percent: 100, Addresses: true})
	if !told.Scan() {
		t.Fatal(told.Err())
	}
	log := end()
	if got := s.await(t, 1); len(got) != 1 || got[0] != "trace --otlp S1A2 S2A2\n" {
		t.Errorf("got %q", got)
	}
	if strings.Contains(log, "export-") {
		t.Errorf("there was trouble: %s", log)
	}
}

// A line of any length is read over.
func TestLongLineOfEventsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	long := `{"event":"routed","id":"S9A2","text":"` + strings.Repeat("x", 2<<20) + `"}` + "\n"
	end := run(t, &Exporter{Zmctl: pretended(t, ended(1, 2)+long+ended(2, 3)), Endpoint: s.URL, Percent: 100, Addresses: true})
	for !strings.Contains(strings.Join(s.await(t, 1), ""), "S2A2") {
	}
	end()
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
