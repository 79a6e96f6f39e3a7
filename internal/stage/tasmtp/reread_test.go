package tasmtp

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/tasmtp/replies"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// Z14: the rules are read again when they change; a file that cannot be used is
// refused, once, and the rules before it stay.
func TestRulesAreReadAgainWhenTheyChange(t *testing.T) {
	sink := (&Sink{Answer: On("RCPT", "550 5.7.1 no")}).Start(t, "", "")
	path := filepath.Join(t.TempDir(), "replies")
	var log strings.Builder
	s := newStation(t, sink.Port(), "", func(c *Config) {
		c.Replies, c.Log = path, slog.New(slog.NewTextHandler(&log, nil))
	})
	now := time.Now().Add(time.Hour)
	s.relay.rules = openRules(path, replies.Parse, "rules on replies", func() time.Time { return now }, nil, slog.New(slog.NewTextHandler(&log, nil)))
	steps := []struct {
		text string // "": no file
		want taproto.Word
	}{
		{"", taproto.Error2},
		{"smtp/* defer /./\n", taproto.Deferred},
		{"smtp/* defer /no/ \nsmtp/* defer /(/\n", taproto.Deferred},
		{"smtp/* host /./\n", taproto.DeferAll},
		{"", taproto.Error2},
	}
	for i, step := range steps {
		err := os.Remove(path)
		if step.text != "" {
			err = os.WriteFile(path, []byte(step.text), 0o600)
		} else if os.IsNotExist(err) {
			err = nil
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for try := range 3 {
			// A file that is gone is believed gone at the second look.
			if now = now.Add(time.Minute); try == 0 && step.text == "" {
				s.relay.rules.Current()
				now = now.Add(time.Minute)
			}
			if a := s.one("smtp", "[127.0.0.1]"); a.Word != step.want {
				t.Errorf("step %d: got %s, want %s", i, a.Word, step.want)
			}
		}
	}
	if got := strings.Count(log.String(), "table-refused"); got != 1 || !strings.Contains(log.String(), "replies:2:14") {
		t.Errorf("%d refusals in the log: %s", got, log.String())
	}
}
