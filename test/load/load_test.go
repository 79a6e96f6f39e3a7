package load

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
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
	assert.Equal(t, len(audit(t, l).Unwanted), 1)
	first.Fate, first.Token = Accepted, "t999999t"
	assert.Equal(t, len(audit(t, l).Lost), 1)
	*first = was
	box := assert.Get(os.ReadFile(l.Box()))(t)
	assert.Must(t, os.WriteFile(l.Box(), append(box, box[:len(box)-20]...), 0o600))
	if a := audit(t, l); len(a.Torn) != 1 || len(a.Duplicated) != 6 {
		t.Errorf("the mbox file holds everything twice, the last message cut: %v", a)
	}
	assert.Must(t, os.WriteFile(l.Suite.PostOffice()+"/deferred/1.crash", nil, 0o600))
	assert.Equal(t, len(audit(t, l).Orphans), 1)
}

func audit(t *testing.T, l *Load) *Audit {
	t.Helper()
	a := assert.Get(l.Audit())(t)
	return a
}

// run has a system take three rounds.
func run(t *testing.T) *Load {
	t.Helper()
	bin := t.TempDir()
	assert.Must(t, suite.Build(bin))
	s := &suite.Suite{Bin: bin, Dir: t.TempDir()}
	l, err := Prepare(s)
	assert.Must(t, err)
	t.Cleanup(l.Close)
	assert.Must(t, s.Init())
	t.Cleanup(s.Kill)
	assert.Must(t, s.Start())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for round := range 3 {
		assert.Must(t, l.Round(ctx, round))
	}
	if _, err := l.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}
