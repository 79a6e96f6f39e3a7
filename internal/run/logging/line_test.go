package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// What is written in any of the forms is read back as it was.
func TestLinesAreReadBack(t *testing.T) {
	odd := "a \"b\" c=d\\ \x1b[31m\nnächste"
	write := func(log *slog.Logger) {
		log.Warn("deferred", "id", "S1A2", "rcpt", "joe@a.example", "from", "", "reply", odd, "took", 1500*time.Microsecond,
			"attempt", 3, "reason", errors.New("no route"), "dropped", true)
	}
	for name, prefix := range map[string]string{"text": "", "json": "", "tint": "",
		"text behind a journal's words": "Nov 22 18:00:00 host zmctl[12]: ", "json behind a journal's words": "Nov 22 18:00:00 host zmctl[12]: "} {
		t.Run(name, func(t *testing.T) {
			format, _, _ := strings.Cut(name, " ")
			var out bytes.Buffer
			log := assert.Get(New(&out, format, "info", "scheduler"))(t)
			write(log)
			got, ok := ParseLine([]byte(prefix + out.String()))
			if !ok {
				t.Fatalf("not read: %q", out.String())
			}
			if got.Event != "deferred" || got.Level != slog.LevelWarn || got.Program != "scheduler" {
				t.Errorf("got %+v", got)
			}
			if now := time.Now(); format != "tint" && now.Sub(got.Time).Abs() > time.Minute {
				t.Errorf("time %v at %v", got.Time, now)
			}
			for key, want := range map[string]string{"id": "S1A2", "rcpt": "joe@a.example", "from": "", "reply": odd, "attempt": "3", "reason": "no route", "dropped": "true"} {
				if format == "tint" && key == "reply" {
					continue // colours that stand in a value are taken out with the others
				}
				assert.Equal(t, got.Get(key), want, "%s of %q", key, out.String())
			}
			if d, ok := got.Duration("took"); !ok || d != 1500*time.Microsecond {
				t.Errorf("took %v, %v", d, ok)
			}
		})
	}
}

// Other programs write an object's keys in another order.
func TestKeysMayStandInAnyOrder(t *testing.T) {
	l, ok := ParseLine([]byte(`{"id":"S1A2","level":"INFO","msg":"routed","time":"2026-11-22T18:56:46.009819756Z","took":12}`))
	if d, known := l.Duration("took"); !ok || l.Event != "routed" || l.Get("id") != "S1A2" || !known || d != 12 {
		t.Errorf("got %+v", l)
	}
}

func TestWhatIsNoLineIsTold(t *testing.T) {
	for _, line := range []string{"", "postoffice     /tmp/po", "time=x level=INFO msg=y", `{"time":"2026-11-21T03:21:16Z","msg":`, "time=2026-11-21T03:21:16.342Z level=INFO",
		`time=2026-11-21T03:21:16.342Z level=INFO msg=x reply="torn`, "12:00:00.000 LOUD x", "12:00:00.000 INF", "panic: time=", `{"time":"x"}`} {
		if l, ok := ParseLine([]byte(line)); ok {
			t.Errorf("%q: read as %+v", line, l)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte("time=2026-11-21T03:21:16.342Z level=INFO msg=accepted program=smtpserver id=S1A2 reply=\"a b\""))
	f.Add([]byte(`{"time":"2026-11-21T03:21:16.342Z","level":"INFO","msg":"accepted","took":12,"x":{"y":[1]}}`))
	f.Add([]byte("\x1b[2m12:00:00.000\x1b[0m \x1b[92mINF\x1b[0m accepted \x1b[2mid=\x1b[0mS1A2"))
	f.Fuzz(func(t *testing.T, line []byte) {
		l, ok := ParseLine(line)
		if !ok {
			return
		}
		if l.Event == "" {
			t.Errorf("no event in %q", line)
		}
	})
}
