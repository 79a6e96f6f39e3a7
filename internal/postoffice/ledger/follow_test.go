package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// A21: who follows the journal sees each line once, also when it is closed, numbered and
// folded meanwhile.
func TestTailSeesEachLineOnceWhileJournalsAreClosed(t *testing.T) {
	po, dir := realOffice(t)
	id := func(i int) postoffice.SpoolID {
		return postoffice.SpoolID{Ino: uint64(i), MTime: 1_790_000_000_000_000_000}
	}
	before := New(po, Config{Role: "test"})
	before.Routed(id(1), 1, false)
	now, all := NewTail(po, false), NewTail(po, true)
	defer now.Close()
	defer all.Close()
	seen := map[*Tail]map[postoffice.SpoolID]int{now: {}, all: {}}
	read := func() {
		t.Helper()
		for tail, m := range seen {
			assert.Must(t, tail.Read(func(l Line) error {
				if l.Verb == Routed {
					m[l.ID]++
				}
				return nil
			}))
		}
	}
	read()
	n := 1
	for round := range 5 {
		for range 20 {
			n++
			before.Routed(id(n), 1, false)
			if n%7 == 0 {
				read()
			}
		}
		assert.Must(t, rotate(po.FS()))
		if round%2 == 0 {
			read()
		}
		// The writer goes on to a new journal, and the old one is folded.
		n++
		before.Routed(id(n), 1, false)
		before.Close()
		read()
		before = New(po, Config{Role: "test"})
		n++
		before.Routed(id(n), 1, false)
		if _, err := fold(po); err != nil {
			t.Fatal(err)
		}
	}
	// A line that is torn, and the one behind it.
	h, err := os.OpenFile(filepath.Join(dir, "ledger", "journal"), os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(t, err)
	if _, err := h.WriteString("17900000"); err != nil {
		t.Fatal(err)
	}
	read()
	n++
	l := Line{Time: 1_790_000_000_000, Verb: Routed, ID: id(n), N: 1}
	if _, err := fmt.Fprintf(h, "\n%s", l.Append(nil)); err != nil {
		t.Fatal(err)
	}
	assert.Must(t, h.Close())
	read()
	for i := 1; i <= n; i++ {
		assert.Equal(t, seen[all][id(i)], 1, "times that line %d was seen", i)
		assert.Equal(t, seen[now][id(i)], min(1, i-1), "times that the later reader saw line %d", i)
	}
	before.Close()
}
