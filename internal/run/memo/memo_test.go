package memo

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestAnswersAreKeptForTheirTimeAndBounded(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	m := New[int](100)
	m.Put("a", 1, now, time.Minute)
	m.Put("never", 1, now, 0)
	for at, want := range map[time.Duration]bool{0: true, 59 * time.Second: true, time.Minute: false, -time.Second: false} {
		_, ok := m.Get("a", now.Add(at))
		assert.Equal(t, ok, want, "%v later", at)
	}
	if _, ok := m.Get("never", now); ok {
		t.Error("an answer is kept for no time")
	}
	for i := range 300 {
		m.Put(fmt.Sprint(i), i, now, time.Minute)
	}
	if n := m.Len(); n > 100 {
		t.Errorf("%d answers are kept, at most 100 may be", n)
	}
}
