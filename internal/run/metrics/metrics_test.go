package metrics

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// parse reads the text as Prometheus does.
func parse(t *testing.T, text []byte) suite.Metrics {
	t.Helper()
	m, err := suite.ParseMetrics(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func TestTextIsWhatPrometheusReads(t *testing.T) {
	s := New("router", "unix")
	c := s.Counter("zmailer_test_total", `Back\slash and "quotes".`, "channel", "clause")
	c.With("smtp", "smtp/*").Add(3)
	c.With("smtp", "smtp/*").Add(0)
	c.With(`we"ird\`, "two\nlines \xff").Add(1)
	h := s.Histogram("zmailer_test_seconds", "Some time.", []float64{0.1, 1}, "channel").With("local")
	for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second, -time.Second} {
		h.Observe(d)
	}
	s.Histogram("zmailer_plain_seconds", "No labels.", Short()).With().Observe(time.Millisecond)
	s.Ask(0, func(put Put) {
		put("zmailer_test", 1.5, "a")
		put("zmailer_test", 2, "a")
		put("zmailer_unknown", 2, "a")
	}, Family{"zmailer_test", "A gauge.", []string{"kind"}})
	text := s.Append(nil)
	f := parse(t, text)
	assert.Equal(t, f.Sum("zmailer_test_total", "channel", "smtp", "clause", "smtp/*"), 3, "smtp")
	assert.Equal(t, f.Sum("zmailer_test_total", "channel", `we"ird\`, "clause", "two\nlines ?"), 1, "what needs quotes")
	got := f["zmailer_test_seconds"].Samples[0]
	if got.Value != 3 || math.Abs(got.Sum-3.1) > 1e-9 || got.Buckets[0] != 1 || got.Buckets[1] != 2 {
		t.Errorf("%v: want the bounds to be part of their buckets", got)
	}
	assert.Equal(t, f.Sum("zmailer_test"), 3.5)
	if len(f["zmailer_unknown"].Samples) > 0 {
		t.Error("a family that no one made")
	}
	for _, name := range []string{"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
		"process_start_time_seconds", "go_goroutines", "go_memstats_heap_alloc_bytes", "zmailer_program_info"} {
		if len(f[name].Samples) != 1 {
			t.Errorf("%s: %v", name, f[name])
		}
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// Z26: whatever a table gives as a channel, the label sets are of bounded number, and
// nothing is lost of the count.
func TestLabelSetsAreBounded(t *testing.T) {
	s := New("router", "unix")
	c := s.Counter("zmailer_test_total", "x", "channel", "clause")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 1000 {
				c.With(fmt.Sprintf("channel%d", n*(i+1)), "*/*").Add(1)
			}
		})
	}
	all.Wait()
	f := parse(t, s.Append(nil))
	sets, sum, others := len(f["zmailer_test_total"].Samples), f.Sum("zmailer_test_total"), f.Sum("zmailer_test_total", "channel", Other, "clause", Other)
	if sets != most+1 || sum != 4000 || others < 1000 {
		t.Errorf("%d label sets, sum %v, %v of them other", sets, sum, others)
	}
}

func TestNoSetCountsNothing(t *testing.T) {
	s := New("router", "")
	if s != nil {
		t.Fatal("there is a Set")
	}
	log := slog.New(slog.DiscardHandler)
	if s.Log(log) != log {
		t.Error("the log is another one")
	}
	counters, histograms := s.Counter("a", "b", "c"), s.Histogram("a", "b", nil, "c")
	assert.Equal(t, testing.AllocsPerRun(100, func() {
		counters.With("d").Add(1)
		h := histograms.With("d")
		h.Observe(h.Since(time.Unix(1, 0)))
	}), 0, "allocations")
	s.Ask(0, nil)
	s.Serve("", nil, log)()
}

func TestEventsAreCountedAlsoBelowTheLevelOfTheLog(t *testing.T) {
	s := New("router", "unix")
	var text bytes.Buffer
	log := s.Log(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})).With("program", "x"))
	log.Info("routed", "id", "1")
	log.With("a", "b").WithGroup("c").Info("routed")
	log.Warn("deferred")
	log.Debug("queued")
	f := parse(t, s.Append(nil))
	const events = "zmailer_log_events_total"
	if len(f[events].Samples) != 2 || f.Sum(events, "event", "routed", "level", "info") != 2 || f.Sum(events, "event", "deferred", "level", "warn") != 1 {
		t.Errorf("got %v", f[events])
	}
	if strings.Count(text.String(), "\n") != 1 {
		t.Errorf("the log: %s", text.String())
	}
	const lines = "zmailer_log_lines_total"
	if len(f[lines].Samples) != 3 || f.Sum(lines, "level", "info") != 2 || f.Sum(lines, "level", "warn") != 1 || f.Sum(lines, "level", "error") != 0 {
		t.Errorf("got %v", f[lines])
	}
}

func TestWhatALookHasFoundIsKeptForAWhile(t *testing.T) {
	s := New("scheduler", "unix")
	n := 0
	s.Ask(time.Hour, func(put Put) { n++; put("zmailer_test", float64(n)) }, Family{Name: "zmailer_test", Help: "x"})
	first, second := parse(t, s.Append(nil)), parse(t, s.Append(nil))
	if n != 1 || first.Sum("zmailer_test") != 1 || second.Sum("zmailer_test") != 1 {
		t.Errorf("%d looks", n)
	}
}

func BenchmarkOff(b *testing.B) {
	var c *Counters
	var h *Histograms
	for b.Loop() {
		c.With("smtp", "smtp/*", "delivered").Add(1)
		h.With("smtp", "smtp/*").Observe(time.Millisecond)
	}
}

func BenchmarkOn(b *testing.B) {
	s := New("scheduler", "unix")
	c := s.Counter("zmailer_test_total", "x", "channel", "clause", "result")
	h := s.Histogram("zmailer_test_seconds", "x", Short(), "channel", "clause")
	b.ReportAllocs()
	for b.Loop() {
		c.With("smtp", "smtp/*", "delivered").Add(1)
		h.With("smtp", "smtp/*").Observe(time.Millisecond)
	}
}

func BenchmarkLogOn(b *testing.B) {
	s := New("scheduler", "unix")
	log := s.Log(slog.New(slog.NewTextHandler(io.Discard, nil)))
	b.ReportAllocs()
	for b.Loop() {
		log.Info("delivered", "id", "S1Ax")
	}
}
