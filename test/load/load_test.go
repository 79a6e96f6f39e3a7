package load

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"zmailer/test/suite"
)

// Without any fault nothing is lost, duplicated or left, and what is missing, came
// twice, torn or unasked is found.
func TestAuditFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	l := run(t)
	a := audit(t, l)
	if a.Bad() || a.Accepted != 3*len(Kinds()) || len(a.Repeated) > 0 {
		t.Fatalf("without a fault: %v", a)
	}
	first := l.tries[slices.IndexFunc(l.tries, func(t *Try) bool { return t.Kind == Relay })]
	was := *first
	first.Fate = Refused
	if a := audit(t, l); len(a.Unwanted) != 1 {
		t.Errorf("a refused message arrived: %v", a)
	}
	first.Fate, first.Token = Accepted, "t999999t"
	if a := audit(t, l); len(a.Lost) != 1 {
		t.Errorf("a message is missing: %v", a)
	}
	*first = was
	box, err := os.ReadFile(l.Box())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Box(), append(box, box[:len(box)-20]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := audit(t, l); len(a.Torn) != 1 || len(a.Duplicated) != 6 {
		t.Errorf("the mbox file holds everything twice, the last message cut: %v", a)
	}
	if err := os.WriteFile(l.Suite.PostOffice()+"/deferred/1.crash", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := audit(t, l); len(a.Orphans) != 1 {
		t.Errorf("a file is left: %v", a)
	}
}

func audit(t *testing.T, l *Load) *Audit {
	t.Helper()
	a, err := l.Audit()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// run has a system take three rounds.
func run(t *testing.T) *Load {
	t.Helper()
	bin := t.TempDir()
	if err := suite.Build(bin); err != nil {
		t.Fatal(err)
	}
	s := &suite.Suite{Bin: bin, Dir: t.TempDir()}
	l, err := Prepare(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if err := s.Init(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range 3 {
		if err := l.Round(ctx, round); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}
