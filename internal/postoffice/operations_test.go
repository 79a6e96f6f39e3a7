package postoffice

import (
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M41: an operation is a file with its messages, listed by age and dropped after its time.
func TestOperationsAreKeptAndSwept(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, os.Remove(dir+"/"+Orders))
	if list, err := p.Operations.List(); err != nil || len(list) != 0 {
		t.Fatalf("without the directory: %v, %v", list, err)
	}
	now := time.Date(2026, 11, 21, 3, 15, 2, 0, time.UTC)
	old, young := NewOperationID(now.Add(-time.Hour), "hold", 17), NewOperationID(now, "expire", 3)
	for _, id := range []OperationID{young, old} {
		o := assert.Get(p.Operations.Create(id, []byte("verb x\n")))(t)
		assert.Must(t, errors.Join(o.Append([]byte("S1A1\n")), o.Close()))
		if _, err := p.Operations.Continue(id); err != nil {
			t.Errorf("when it was given: %v", err)
		}
		if _, err := p.Operations.Create(id, nil); err == nil {
			t.Error("an operation was begun twice")
		}
	}
	if list, err := p.Operations.List(); err != nil || !slices.Equal(list, []OperationID{old, young}) {
		t.Errorf("got %v, %v", list, err)
	}
	f := assert.Get(p.Operations.Open(old))(t)
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "verb x\nS1A1\n" {
		t.Errorf("got %q, %v", b, err)
	}
	assert.Must(t, p.Operations.Sweep(now, time.Hour))
	if list, _ := p.Operations.List(); !slices.Equal(list, []OperationID{young}) {
		t.Errorf("after the sweep: %v", list)
	}
	if _, err := p.Operations.Continue(old); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if young.Verb() != "expire" || !young.Time().Equal(now) {
		t.Errorf("%s: verb %q, time %v", young, young.Verb(), young.Time())
	}
}

func TestOperationIDsAreNoOtherNames(t *testing.T) {
	for _, s := range []string{"", "20261121-031502-hold-4711", "20261121-031502-hold-", "20261121-031502--1", "20261121-031502-../x-1",
		"20261321-031502-hold-1", "20261121-031502", "20261121-031502-hold-4711/..", "20261121-031502-Hold-1"} {
		if _, ok := ParseOperationID(s); ok != (s == "20261121-031502-hold-4711") {
			t.Errorf("%q: got %v", s, ok)
		}
	}
}

// M41 A13: what is not routed is frozen by name, and goes back to the router by name.
func TestFreezeAndRecallCheckTheMessage(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	a := submit(t, p, "from <a@b>\n")
	other := a.ID
	other.MTime++
	base := a.Name[len(Router)+1:]
	if _, err := p.Aside.Freeze(Router, base, other, "person"); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	name, err := p.Aside.Freeze(Router, base, a.ID, "person")
	if err != nil || name != base+".person" {
		t.Fatalf("got %s, %v", name, err)
	}
	if _, err := p.Aside.Recall(Freezer, name, other); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	back, err := p.Aside.Recall(Freezer, name, a.ID)
	if err != nil || back.Name != a.Name {
		t.Errorf("got %s, %v, want %s", back.Name, err, a.Name)
	}
}
