package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// K10: a message file that is longer or shorter than it was is not sent, however small.
func TestSmallMessageOfAnotherSizeIsDeferred(t *testing.T) {
	for change, octets := range map[string]int{"cut": 1, "grown": -1} {
		t.Run(change, func(t *testing.T) {
			s := newSpool(t)
			const rest = "from <s@example.org>\nto <r@example.org>\nenv-end\n"
			size := len("comment octets 0123456789abcdef 00000000\n") + len(rest+"Subject: x\n\nbody\n")
			name, at := s.messageOf(fmt.Sprintf("comment octets %016d 00000000\n", size+octets)+rest, "Subject: x\n", "\nbody\n")
			s.specify(name, at+1, "Subject: x\n", rcpt{"smtp", "h.example", "u@h.example", ""})
			assert.Contains(t, s.do(name, "h.example", give(ok)), "deferred", "answer")
		})
	}
}

// Results that come together are marked together, and those between them left alone.
func TestResultsOfOneTransactionAreMarkedTogether(t *testing.T) {
	s := newSpool(t)
	var rcpts []rcpt
	for i := range 300 {
		rcpts = append(rcpts, rcpt{"smtp", "h.example", fmt.Sprintf("u%d@h.example", i), "NOTIFY=NEVER"})
	}
	name := s.queue(rcpts...)
	s.fs.taken()
	s.do(name, "h.example", deliverFunc(func(_ context.Context, d *Delivery) {
		s.fs.taken()
		for _, part := range [][]*Recipient{d.Recipients[:100], d.Recipients[110:112], append(slices.Clone(d.Recipients[120:140]), d.Recipients[150:]...)} {
			d.DoneAll(part, slices.Repeat([]Result{ok}, len(part)))
		}
		assert.Equal(t, len(s.fs.taken()), 8, "reads and writes")
		for _, r := range d.Recipients[100:] {
			if !r.done {
				d.Done(r, later)
			}
		}
	}))
	want := strings.Repeat("+", 100) + strings.Repeat(" ", 10) + "++" + strings.Repeat(" ", 8) + strings.Repeat("+", 20) +
		strings.Repeat(" ", 10) + strings.Repeat("+", 150)
	assert.Equal(t, s.Tags(name), want, "tags")
}
