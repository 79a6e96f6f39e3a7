package smtpserver

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/metrics"
)

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

// Whoever has read that the server listens finds its metrics.
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
