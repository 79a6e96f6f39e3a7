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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/assert"
)

// source emits events, and as a trace has the IDs of its messages. Events end when there
// are no more, and are not followed again before the test ends.
func source(events ...*view.Event) *Exporter {
	return &Exporter{Percent: 100, Follow: func(ctx context.Context, emit func(*view.Event) error) error {
		for _, e := range events {
			if err := emit(e); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	}, Trace: func(_ context.Context, ids []string) ([]byte, error) { return []byte(strings.Join(ids, " ")), nil }}
}

func ended(from, to int) (list []*view.Event) {
	for i := from; i < to; i++ {
		list = append(list, &view.Event{Event: "finished", By: "ledger", ID: fmt.Sprintf("S%dA2", i)})
	}
	return list
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
	done := make(chan struct{})
	go func() {
		e.Run(ctx)
		close(done)
	}()
	return func() string {
		t.Helper()
		cancel()
		<-done
		return log.String()
	}
}

// What a collector cannot take now is sent again, what it never takes is not.
func TestCollectorsAnswersAreMinded(t *testing.T) {
	t.Parallel()
	s := newSink(t, says(503, "later"), says(400, "what is that"), says(200, `{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}`), says(200, "{}"))
	e := source(ended(1000, 1000+2*batchMost+1)...)
	e.Endpoint = s.URL
	end := run(t, e)
	got := s.await(t, 4)
	if len(strings.Fields(got[0])) != batchMost || !strings.HasPrefix(got[0], "S1000A2 S1001A2 ") {
		t.Errorf("first request: %q", got[0])
	}
	if got[1] != got[0] || got[2] == got[1] || got[3] != "S1200A2" {
		t.Errorf("got %q", got)
	}
	log := end()
	for _, want := range []string{"msg=export-trouble", "answered 503", "msg=export-recovered", "dropped=2"} {
		assert.Contains(t, log, want)
	}
	if strings.Count(log, "msg=export-trouble") != 1 {
		t.Errorf("said more than once: %s", log)
	}
}

// A collector that wants to be left alone is, whatever ends meanwhile.
func TestFailingCollectorIsNotAskedForEachBatch(t *testing.T) {
	t.Parallel()
	busy := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "900")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	s := newSink(t, busy, busy, busy, busy, busy, busy, busy)
	traced := make(chan struct{}, 3)
	e := source(ended(1000, 1000+2*batchMost+1)...)
	e.Endpoint = s.URL
	trace := e.Trace
	e.Trace = func(ctx context.Context, ids []string) ([]byte, error) {
		traced <- struct{}{}
		return trace(ctx, ids)
	}
	end := run(t, e)
	for range 3 {
		<-traced
	}
	log := end()
	// Once for the first batch, once at the end.
	if got := s.await(t, 2); len(got) != 2 || got[0] != got[1] {
		t.Errorf("it was asked %d times: %q", len(got), got)
	}
	assert.Contains(t, log, "msg=export-dropped requests=3 ", "what was not sent")
}

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "999999999": mostWait, "99999999999999": 0,
		"Fri, 31 Dec 1999 23:59:59 GMT": 0, "Fri, 31 Dec 2199 23:59:59 GMT": mostWait,
	} {
		assert.Equal(t, leastWait(http.Header{"Retry-After": {text}}), want, "%q", text)
	}
}

// A batch that is under way when the exporter is stopped is sent.
func TestBatchUnderWayIsSentAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	began := make(chan struct{})
	e := source(ended(1, 3)...)
	e.Endpoint = s.URL
	trace, once := e.Trace, sync.Once{}
	e.Trace = func(ctx context.Context, ids []string) ([]byte, error) {
		first := false
		once.Do(func() { first = true })
		if first {
			close(began)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return trace(ctx, ids)
	}
	end := run(t, e)
	<-began
	log := end()
	if got := s.await(t, 1); len(got) != 1 || got[0] != "S1A2 S2A2" {
		t.Errorf("got %q", got)
	}
	if strings.Contains(log, "export-") {
		t.Errorf("there was trouble: %s", log)
	}
}

// While the collector does not answer, the newest are kept.
func TestOldestRequestsMakeRoom(t *testing.T) {
	t.Parallel()
	e := source()
	e.Log = slog.New(slog.DiscardHandler)
	for i := range heldMost + 5 {
		e.trace(t.Context(), []string{fmt.Sprint("S", i)})
	}
	if len(e.held) != heldMost || e.dropped != 5 || string(e.held[0]) != "S5" {
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

// A message that ended before the exporter was stopped is sent, and trouble of the
// postoffice is logged and tried again.
func TestExportEndsInOrder(t *testing.T) {
	t.Parallel()
	s := newSink(t)
	first := make(chan struct{})
	s.answers = []func(http.ResponseWriter){func(http.ResponseWriter) { close(first) }}
	e := source(append(ended(1, 2), &view.Event{Event: "delivered", ID: "S9A2"}, &view.Event{Event: "finished", ID: "S9A2"})...)
	e.Endpoint = s.URL
	follow, once := e.Follow, sync.Once{}
	e.Follow = func(ctx context.Context, emit func(*view.Event) error) (err error) {
		once.Do(func() { err = errors.New("no ledger") })
		if err != nil {
			return err
		}
		return follow(ctx, emit)
	}
	end := run(t, e)
	<-first
	log := end()
	// A request that was under way is sent again: it is the same trace.
	if got := slices.Compact(s.await(t, 1)); len(got) != 1 || got[0] != "S1A2" {
		t.Errorf("got %q", got)
	}
	assert.Contains(t, log, "msg=export-trouble")
}
