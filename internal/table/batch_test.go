package table

import (
	"context"
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// counting is a table that has every key.
type counting struct{ asked map[string]int }

func (c *counting) Lookup(_ context.Context, key string) (Value, bool, error) {
	c.asked[key]++
	return Value{Text: key}, true, nil
}

func (c *counting) Close() error { return nil }

// Del4: what a batch remembers does not grow with the message.
func TestDel4BatchForgets(t *testing.T) {
	c := &counting{asked: map[string]int{}}
	var b Batch
	b.Begin(t.Context(), NoWaiter{}, NewPermits(1))
	const keys = 100_000
	for i := range keys {
		for range 2 {
			if v, ok, err := b.Lookup(c, fmt.Sprint(i)); v.Text != fmt.Sprint(i) || !ok || err != nil {
				t.Fatalf("%d: got %v, %v, %v", i, v, ok, err)
			}
		}
	}
	if n := len(b.recent) + len(b.older); n > 2*batchAnswers {
		t.Errorf("%d answers are remembered", n)
	}
	for key, n := range c.asked {
		if n != 1 {
			t.Fatalf("%s was asked for %d times", key, n)
		}
	}
	b.End()
	b.Begin(t.Context(), NoWaiter{}, NewPermits(1))
	defer b.End()
	if _, _, err := b.Lookup(c, "0"); err != nil || c.asked["0"] != 2 {
		t.Errorf("the next message has the answers of the last: %v", err)
	}
}

// A lookup ahead that panics ends nothing: the message meets the same when its turn comes.
func TestDel4PanicAheadIsTheMessagesWhenItsTurnComes(t *testing.T) {
	var b Batch
	b.Begin(t.Context(), NoWaiter{}, NewPermits(2))
	b.Go(func() { panic("ahead") })
	b.End()
}

// breaking is a table whose lookups panic, once they may.
type breaking struct{ begun, may chan struct{} }

func (b *breaking) Lookup(context.Context, string) (Value, bool, error) {
	b.begun <- struct{}{}
	<-b.may
	panic("broken")
}

func (b *breaking) Close() error { return nil }

// The message does not wait for ever for the answer of a lookup ahead that panicked: it asks,
// and panics, itself.
func TestDel4MessageDoesNotWaitForALookupThatPanicked(t *testing.T) {
	for name, early := range map[string]bool{"it waits already": true, "it comes later": false} {
		t.Run(name, func(t *testing.T) {
			tab := &breaking{begun: make(chan struct{}, 2), may: make(chan struct{})}
			var b Batch
			b.Begin(t.Context(), NoWaiter{}, NewPermits(1))
			b.Go(func() { _, _, _ = b.Prefetch(tab, "k") })
			<-tab.begun
			if !early {
				close(tab.may)
				b.working.Wait()
			}
			ended := make(chan any, 1)
			go func() {
				defer func() { ended <- recover() }()
				_, _, _ = b.Lookup(tab, "k")
			}()
			if early {
				close(tab.may)
			}
			select {
			case got := <-ended:
				assert.Equal(t, got, "broken")
			case <-time.After(10 * time.Second):
				t.Fatal("it waits for ever")
			}
			b.End()
		})
	}
}
