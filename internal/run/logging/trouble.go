package logging

import (
	"log/slog"
	"sync"
)

// Trouble logs a lasting trouble once when it begins and once when it is over. The zero
// value is ready for use by many goroutines.
type Trouble struct {
	mu sync.Mutex
	on bool
}

// Begin logs the trouble as an error, unless it was logged before and is not over.
func (t *Trouble) Begin(log *slog.Logger, event string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on {
		t.on = true
		log.Error(event, args...)
	}
}

// End logs that the trouble is over, if there was one.
func (t *Trouble) End(log *slog.Logger, event string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.on {
		t.on = false
		log.Info(event, args...)
	}
}
