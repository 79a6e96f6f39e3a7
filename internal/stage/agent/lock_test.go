package agent

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// M18: of very many recipients those on adjacent lines are locked together. No other
// line is touched: neither another host's nor one that is final or locked by
// another process.
func TestManyRecipientsAreLockedTogether(t *testing.T) {
	s := newSpool(t)
	var rcpts []rcpt
	for i := range 3000 {
		host := "h.example"
		if i%700 == 5 {
			host = "other.example"
		}
		rcpts = append(rcpts, rcpt{"smtp", host, fmt.Sprintf("u%d@%s", i, host), "NOTIFY=FAILURE"})
	}
	name := s.queue(rcpts...)
	other := s.owner()
	s.Mark(name, 10, workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
	s.Mark(name, 11, workspec.TagBytes(workspec.FormatOurs, workspec.TagFailed))
	s.Mark(name, 20, workspec.LockBytes(other.Number()))
	before := s.Text(name)
	want := []byte(before)
	n := 0
	for _, r := range s.Spec(name).Groups[0].Recipients {
		if r.Host == "h.example" && r.Tag == workspec.TagToDo {
			copy(want[workspec.TagOffset(r.Offset):], workspec.LockBytes(s.agent.Owner.Number()))
			n++
		}
	}
	lines := s.agent.Do(context.Background(), taproto.Job{Name: name, Host: "h.example"}, deliverFunc(func(_ context.Context, d *Delivery) {
		if got := s.Text(name); got != string(want) {
			t.Error("the file is not as it was with the locks of this job")
		}
		assert.Equal(t, string(d.Header(d.Recipients[0].Group)), "Received: here\nSubject: x\n", "header")
		for i, r := range d.Recipients {
			if i%2 == 0 {
				d.Done(r, Result{Outcome: status.Delivered, Reply: "250 ok"})
			}
		}
	}))
	if len(lines) != n+1 || n != 2992 {
		t.Errorf("%d lines for %d recipients", len(lines), n)
	}
	tags := s.Tags(name)
	if got := strings.Count(tags, "+"); got != n/2+1 || tags[20] != '~' || tags[11] != '-' || tags[5] != ' ' {
		t.Errorf("%d delivered, want %d; %q", got, n/2+1, tags[:30])
	}
}

// All or none, also of many: what was locked before a write failed is given back.
func TestManyLocksThatFailAreGivenBack(t *testing.T) {
	s := newSpool(t)
	var rcpts []rcpt
	for i := range 3000 {
		rcpts = append(rcpts, rcpt{"smtp", "h.example", fmt.Sprintf("u%d@h.example", i), ""})
	}
	name := s.queue(rcpts...)
	before := s.Text(name)
	writes := 0
	s.fs.failing(func(op, _ string) error {
		if op == "writeat" {
			if writes++; writes == 3 {
				return syscall.EIO
			}
		}
		return nil
	})
	lines := s.agent.Do(context.Background(), taproto.Job{Name: name, Host: "h.example"}, deliverFunc(func(context.Context, *Delivery) {
		t.Error("delivered without all locks")
	}))
	if len(lines) != len(rcpts) || lines[0].Answer.Word != taproto.Deferred {
		t.Errorf("%d answers: %+v", len(lines), lines[0])
	}
	if got := s.Text(name); got != before {
		t.Error("locks are left")
	}
}
