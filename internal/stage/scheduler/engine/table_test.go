package engine

import (
	"math/rand/v2"
	"testing"

	"zmailer/internal/stage/scheduler/thread"
)

// The table says the same as a map after any sequence of changes.
func TestTableHoldsWhatAMapHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var got table
	want := map[uint64]*thread.Message{}
	for range 200_000 {
		number := random.Uint64N(20_000) + 1e6
		if m := want[number]; m != nil {
			got.remove(m)
			got.remove(&thread.Message{Number: number}) // another message: nothing
			delete(want, number)
			continue
		}
		m := &thread.Message{Number: number}
		got.put(m)
		want[number] = m
	}
	if got.len() != len(want) {
		t.Errorf("%d messages, want %d", got.len(), len(want))
	}
	for number := uint64(1e6); number < 1e6+20_000; number++ {
		if got.get(number) != want[number] {
			t.Fatalf("%d: got %p, want %p", number, got.get(number), want[number])
		}
	}
	seen := 0
	for i := range got.parts {
		got.parts[i].each(func(m *thread.Message) {
			if want[m.Number] != m {
				t.Fatalf("%d is not to be there", m.Number)
			}
			seen++
		})
	}
	if seen != len(want) {
		t.Errorf("%d messages were given, want %d", seen, len(want))
	}
	for _, m := range want {
		got.remove(m)
	}
	for i := range got.parts {
		if got.parts[i].slots != nil {
			t.Fatal("an empty table keeps its slots")
		}
	}
}
