package agent

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// Del2: what an agent holds of a message to 10,000 recipients is no more after a thousand
// attempts than three times as much as after the first.
func TestDel2ClaimIsBounded(t *testing.T) {
	s := newSpool(t)
	list := make([]rcpt, 10_000)
	for i := range list {
		list[i] = rcpt{channel: "smtp", host: "h", address: fmt.Sprintf("user%d@h", i)}
	}
	name := s.queue(list...)
	var offsets []int64
	spec := s.spec(name)
	for _, r := range spec.Groups[0].Recipients {
		offsets = append(offsets, r.Offset)
	}
	host := deliverFunc(func(_ context.Context, d *Delivery) {
		results := make([]Result, len(d.Recipients))
		for i := range results {
			results[i] = Result{Outcome: status.Deferred, Reply: "451 4.7.1 later"}
		}
		d.DoneAll(d.Recipients, results)
	})
	claim := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if got := s.do(name, "h", host); len(got) < len(list) {
			t.Fatalf("the agent says %q", got)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	file := []byte(s.text(name))
	first, most := uint64(0), uint64(0)
	for n := 1; n <= 1000; n++ {
		now := testTime.Add(time.Duration(n) * time.Minute)
		e := workspec.DeferredEvent(now, 0, n, now, status.Code{Class: 4, Subject: 7, Detail: 1}, "451 4.7.1 later")
		spec.SetAbout(&e, offsets)
		file = workspec.AppendEvent(file, &e)
		// The scheduler summarises when readers have gone over 64k recipients.
		summary := n%7 == 0
		if summary || n == 1 {
			if err := os.WriteFile(s.path(name), file, 0o600); err != nil {
				t.Fatal(err)
			}
			got := uint64(0)
			if n == 1 || n%70 == 0 {
				got = claim()
			}
			if most = max(most, got); n == 1 {
				first = got
			}
		}
		if summary {
			if file = workspec.Summarise(file, now); file == nil {
				t.Fatal("it was not summarised")
			}
		}
	}
	t.Logf("a job allocates %d bytes after the first attempt, at most %d", first, most)
	if most > 3*first {
		t.Errorf("a job allocates %d bytes after the first attempt, at most %d", first, most)
	}
}
