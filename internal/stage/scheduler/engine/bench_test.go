package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// BenchmarkSchedule is one message from transport/ to the unlink, with an agent in
// a process of its own that marks and answers. The messages are made outside of the
// time.
func BenchmarkSchedule(b *testing.B) {
	b.ReportAllocs()
	r := newRig(b, scriptConf("TEST_SLOTS=20", ""), 0, nil)
	done := &finishes{Handler: slog.NewTextHandler(io.Discard, nil), left: b.N, ended: make(chan struct{})}
	r.config.Log = slog.New(done)
	for i := range b.N {
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp host%d ok@h", i%10)})
	}
	b.ResetTimer()
	r.start()
	<-done.ended
	b.StopTimer()
	if err := r.stop(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLoad is reading one specification with ten recipients.
func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	x, _ := diskBox(b)
	var list []storetest.Rcpt
	for i := range 10 {
		list = append(list, storetest.Rcpt{Line: fmt.Sprintf("smtp host%d user%d@host.example", i%3, i)})
	}
	name := x.Queue("a@b", list...)
	for b.Loop() {
		if _, err := x.spool.Load(name); err != nil {
			b.Fatal(err)
		}
	}
}

// finishes is a log that counts finished messages.
type finishes struct {
	slog.Handler
	left  int
	ended chan struct{}
}

func (f *finishes) Enabled(context.Context, slog.Level) bool { return true }

func (f *finishes) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "finished" {
		if f.left--; f.left == 0 {
			close(f.ended)
		}
	}
	if r.Level < slog.LevelInfo {
		return nil
	}
	return f.Handler.Handle(ctx, r)
}
