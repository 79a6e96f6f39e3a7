package web

import (
	"context"
	"log/slog"
	"time"

	"zmailer/internal/postoffice/ledger"
)

const (
	// readEvery is how often the ledger is read on, askEvery how often it is asked how
	// much waits, saveEvery how often counts are written.
	readEvery = 2 * time.Second
	askEvery  = 20 * time.Second
	saveEvery = 5 * time.Minute
)

// Record counts what happens until ctx is done: the lines of the ledger, and how many
// messages wait, as count returns if it is known.
func (s *Samples) Record(ctx context.Context, tail *ledger.Tail, count func(context.Context) (int, error), log *slog.Logger) {
	read, ask, save := time.NewTicker(readEvery), time.NewTicker(askEvery), time.NewTicker(saveEvery)
	defer read.Stop()
	defer ask.Stop()
	defer save.Stop()
	told := ""
	trouble := func(err error) {
		switch {
		case err == nil:
			told = ""
		case told != err.Error():
			told = err.Error()
			log.Warn("samples-trouble", "reason", err)
		}
	}
	note := func() {
		if n, err := count(ctx); err == nil {
			s.Waiting(time.Now(), n)
		}
	}
	look := func() {
		err := tail.Read(s.Count)
		if err == nil {
			s.Seen(time.Now())
		}
		trouble(err)
	}
	look()
	note()
	for {
		select {
		case <-read.C:
			look()
		case <-ask.C:
			note()
		case <-save.C:
			trouble(s.Save())
		case <-ctx.Done():
			trouble(s.Save())
			return
		}
	}
}
