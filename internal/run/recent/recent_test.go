package recent

import "testing"

func TestTheLastAreKeptAndNoMoreThanTwiceTheBound(t *testing.T) {
	const most = 1000
	s := New[int](most)
	for i := range 5*most + most/2 {
		s.Add(i)
		if n := s.Len(); n > 2*most {
			t.Fatalf("%d keys are kept after %d", n, i)
		}
		if i >= most && (!s.Has(i) || !s.Has(i-most+1)) {
			t.Fatalf("one of the last %d is forgotten after %d", most, i)
		}
	}
	if s.Has(0) {
		t.Error("the oldest is kept")
	}
}

func TestAKeyThatIsAddedAgainStays(t *testing.T) {
	s := New[int](10)
	for i := range 1000 {
		s.Add(-1)
		s.Add(i)
	}
	if !s.Has(-1) {
		t.Error("it is forgotten")
	}
	if s.Drop(-1); s.Has(-1) {
		t.Error("it is kept after Drop")
	}
}

func TestAKnownKeyCostsNoMemory(t *testing.T) {
	s := New[string](10)
	s.Add("a")
	if n := testing.AllocsPerRun(100, func() { s.Add("a"); s.Has("b") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
