package store

import (
	"testing"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// An end that a person took back is not reported, whatever becomes of the recipient then.
func TestEndThatWasTakenBackIsNotReported(t *testing.T) {
	tests := map[string]struct {
		then func(b *box, name string)
		want int // reports
	}{
		"removed": {func(b *box, name string) { b.Ordered(operations.Remove(b.Request(name), name))(1) }, 0},
		"given up again": {func(b *box, name string) {
			q := b.Request(name)
			q.Report = true
			b.Ordered(operations.Expire(q, name))(1)
		}, 1},
		"removed, and back": {func(b *box, name string) {
			b.Ordered(operations.Remove(b.Request(name), name))(1)
			b.Ordered(operations.Undo(b.Request(name), name))(1)
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
			q := b.Request(file)
			q.Report = true
			b.Ordered(operations.Expire(q, file))(1)
			q = b.Request(file)
			q.Failed = true
			b.Ordered(operations.Retry(q, file))(1)
			tt.then(b, file)
			b.Now = b.Now.Add(time.Hour)
			b.settle(file)
			if got := len(b.Reports()); got != tt.want {
				t.Errorf("%d reports, want %d", got, tt.want)
			}
		})
	}
}
