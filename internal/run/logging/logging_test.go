package logging

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestFormatsShowEventProgramAndKeys(t *testing.T) {
	tests := map[string]struct{ format, want string }{
		"automatic is text where no terminal is": {"auto", `level=INFO msg=accepted program=router id=7`},
		"empty is automatic":                     {"", `level=INFO msg=accepted program=router id=7`},
		"text":                                   {"text", `level=INFO msg=accepted program=router id=7`},
		"tint":                                   {"tint", `INF accepted program=router id=7`},
	}
	t.Setenv("NO_COLOR", "1")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := assert.Get(New(&out, tt.format, "info", "router"))(t)
			log.Info("accepted", "id", "7")
			assert.Contains(t, out.String(), tt.want)
		})
	}
}

func TestJSONLinesCanBeRead(t *testing.T) {
	var out bytes.Buffer
	log := assert.Get(New(&out, "json", "debug", "scheduler"))(t)
	log.Debug("queued", "id", "x", "rcpt", "a\nb")
	var got map[string]any
	assert.Must(t, json.Unmarshal(out.Bytes(), &got))
	if got["msg"] != "queued" || got["program"] != "scheduler" || got["rcpt"] != "a\nb" {
		t.Errorf("got %v", got)
	}
}

func TestLevelHidesWhatIsBelow(t *testing.T) {
	for _, level := range []string{"debug", "info", "warn", "error"} {
		t.Run(level, func(t *testing.T) {
			var out bytes.Buffer
			log := assert.Get(New(&out, "text", level, "p"))(t)
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			log.Error("error")
			want := map[string]int{"debug": 4, "info": 3, "warn": 2, "error": 1}[level]
			assert.Equal(t, strings.Count(out.String(), "\n"), want, "lines in: %s", out.String())
		})
	}
}

func TestUnknownFormatAndLevelAreRefused(t *testing.T) {
	for _, tt := range [][2]string{{"xml", "info"}, {"text", "loud"}} {
		if _, err := New(&bytes.Buffer{}, tt[0], tt[1], "p"); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%v: got %v, want an error that names what is known", tt, err)
		}
	}
}
