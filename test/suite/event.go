package suite

import "strings"

// Is reports whether an event has this word and, for each key that follows, an attribute
// that holds the text behind it.
func (e Event) Is(word string, pairs ...string) bool {
	if e.Word != word {
		return false
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(e.Get(pairs[i]), pairs[i+1]) {
			return false
		}
	}
	return true
}

// Count returns how often such an event was logged.
func (s *Suite) Count(word string, pairs ...string) int {
	n := 0
	for _, e := range s.Events() {
		if e.Is(word, pairs...) {
			n++
		}
	}
	return n
}
