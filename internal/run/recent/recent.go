// Package recent remembers the keys that were added last, a bounded number of them, in
// constant time and without a list of their order.
//
// It owns nothing on the disk, and nothing survives a crash.
//
// Diagnostics: there are no errors.
package recent

// Set holds the keys that were added last: at least as many as its bound, less than twice
// as many. It is used by one goroutine at a time.
type Set[K comparable] struct {
	most       int
	young, old map[K]struct{}
}

// New makes a set with a bound.
func New[K comparable](most int) Set[K] {
	return Set[K]{most: most, young: map[K]struct{}{}, old: map[K]struct{}{}}
}

// Has reports whether a key is in the set.
func (s *Set[K]) Has(k K) bool {
	if _, ok := s.young[k]; ok {
		return true
	}
	_, ok := s.old[k]
	return ok
}

// Add puts a key into the set, or makes it the one that was added last. When so many were
// added as the bound says, those that were not among them are forgotten.
func (s *Set[K]) Add(k K) {
	if _, ok := s.young[k]; ok {
		return
	}
	if len(s.young) >= s.most {
		s.young, s.old = s.old, s.young
		clear(s.young)
	}
	s.young[k] = struct{}{}
}

// Drop takes a key out.
func (s *Set[K]) Drop(k K) {
	delete(s.young, k)
	delete(s.old, k)
}

// Len returns how many keys are kept; one that is kept twice counts twice.
func (s *Set[K]) Len() int { return len(s.young) + len(s.old) }
