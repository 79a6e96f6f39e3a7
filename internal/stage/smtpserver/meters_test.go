package smtpserver

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/metrics"
	"zmailer/test/suite"
)

// Z26: each reply to a message, a recipient and a connection is counted once, also while
// the metrics are read.
func TestAnswersAreCounted(t *testing.T) {
	t.Parallel()
	set := metrics.New("smtpserver", "unix")
	r := start(t, func(c *Config) {
		c.Metrics, c.Limits = set, LimitsConfig{MaxSize: 1000, MaxConnections: 1, MaxRecipients: 2}
	})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				set.Append(nil)
			}
		}
	}()
	p := r.greeted()
	for _, tt := range []struct{ content, code string }{
		{"x\n", "250"}, {strings.Repeat("0123456789\n", 200), "552"}, {"y\n", "250"},
	} {
		p.begin().say("RCPT TO:<b@mx.example.org> NOTIFY=NEVER NOTIFY=NEVER", "501")
		p.content(tt.content, tt.code)
	}
	r.connect(0).end("421")
	close(stop)
	<-done
	m := assert.Get(suite.ParseMetrics(set.Append(nil)))(t)
	for name, want := range map[string]float64{
		"zmailer_smtpserver_messages_total accepted":       2,
		"zmailer_smtpserver_messages_total refused":        1,
		"zmailer_smtpserver_messages_total deferred":       0,
		"zmailer_smtpserver_messages_total lost":           0,
		"zmailer_smtpserver_recipients_total accepted":     3,
		"zmailer_smtpserver_recipients_total refused":      3,
		"zmailer_smtpserver_connections":                   1,
		"zmailer_smtpserver_connections_turned_away_total": 1,
		"zmailer_smtpserver_receive_seconds":               3,
		"zmailer_smtpserver_commit_seconds":                2,
		"zmailer_smtpserver_connections_total":             1,
	} {
		family, result, _ := strings.Cut(name, " ")
		var labels []string
		if result != "" {
			labels = []string{"result", result}
		}
		assert.Equal(t, m.Sum(family, labels...), want, name)
	}
}

// listeningHook is a log handler that looks at the system when it gets "listening".
type listeningHook struct {
	slog.Handler
	look func()
}

func (h listeningHook) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "listening" {
		h.look()
	}
	return h.Handler.Handle(ctx, r)
}

func (h listeningHook) WithAttrs(a []slog.Attr) slog.Handler {
	return listeningHook{h.Handler.WithAttrs(a), h.look}
}

func (h listeningHook) WithGroup(name string) slog.Handler {
	return listeningHook{h.Handler.WithGroup(name), h.look}
}

// A program that has read "listening" in the log finds the metrics.
func TestMetricsAreServedBeforeListeningIsLogged(t *testing.T) {
	seen := make(chan error, 1)
	start(t, func(c *Config) {
		c.Metrics = metrics.New("smtpserver", "unix")
		socket := filepath.Join(c.PostOffice, ".metrics.smtpserver")
		c.Log = slog.New(listeningHook{c.Log.Handler(), func() {
			_, err := os.Lstat(socket)
			seen <- err
		}})
	})
	if err := <-seen; err != nil {
		t.Errorf("when listening is logged: %v", err)
	}
}
