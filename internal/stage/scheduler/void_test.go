package scheduler

import (
	"testing"
	"time"

	"zmailer/internal/postoffice/operations"
)

// An end that a person took back is not reported, whatever becomes of the recipient then.
func TestEndThatWasTakenBackIsNotReported(t *testing.T) {
	tests := map[string]struct {
		then func(b *box, name string)
		want int // reports
	}{
		"removed": {func(b *box, name string) { b.ordered(operations.Remove(b.request(name), name))(1) }, 0},
		"given up again": {func(b *box, name string) {
			q := b.request(name)
			q.Report = true
			b.ordered(operations.Expire(q, name))(1)
		}, 1},
		"removed, and back": {func(b *box, name string) {
			b.ordered(operations.Remove(b.request(name), name))(1)
			b.ordered(operations.Undo(b.request(name), name))(1)
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.queue("a@b", rcpt{line: "smtp h x@h"})
			q := b.request(file)
			q.Report = true
			b.ordered(operations.Expire(q, file))(1)
			q = b.request(file)
			q.Failed = true
			b.ordered(operations.Retry(q, file))(1)
			tt.then(b, file)
			b.now = b.now.Add(time.Hour)
			b.settle(file)
			if got := len(b.reports()); got != tt.want {
				t.Errorf("%d reports, want %d", got, tt.want)
			}
		})
	}
}
