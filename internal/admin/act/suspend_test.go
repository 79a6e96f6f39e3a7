package act

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
)

func suspensionOffice(t *testing.T) *postoffice.PostOffice {
	t.Helper()
	disk := assert.Get(durable.NewOS(t.TempDir()))(t)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, postoffice.Init(disk))
	return assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
}

func inForce(t *testing.T, po *postoffice.PostOffice) string {
	t.Helper()
	var subjects []string
	for _, s := range assert.Get(suspension.Read(po))(t).Active(time.Now()) {
		subjects = append(subjects, s.Subject())
	}
	return strings.Join(subjects, "; ")
}

// Op5: suspending and resuming are in the log of operations, with who and why, and each can be
// undone once.
func TestOp5SuspensionsAreRecordedAndUndone(t *testing.T) {
	po := suspensionOffice(t)
	undo := func(id postoffice.OperationID) error {
		_, err := (&Undoer{PostOffice: po, Who: "x"}).Operation(t.Context(), id)
		return err
	}
	s := assert.Get(Suspend(po, suspension.Suspension{Host: "a.example", Who: "ann", Reason: "their\nmaintenance", Until: time.Now().Add(time.Hour)}, 0))(t)
	o := assert.Get(ReadOperation(po, s.Order, nil))(t)
	assert.Equal(t, o.Verb+" "+o.Who+" "+o.Selector+" "+o.Reason, "suspend ann host a.example their maintenance", "operation")
	drain := assert.Get(Suspend(po, suspension.Suspension{Accepting: true, Who: "ann"}, 0))(t)
	if _, err := Suspend(po, suspension.Suspension{Accepting: true, Who: "bob"}, 0); !errors.Is(err, ErrSuspended) {
		t.Errorf("a second drain: got %v", err)
	}

	ended, resumed, err := Resume(po, Resumption{All: true, Who: "bob"})
	assert.Must(t, err)
	assert.Equal(t, len(ended), 1, "ended by --all, which leaves the drain")
	assert.Equal(t, inForce(t, po), "new mail", "after resuming")
	assert.Must(t, undo(resumed))
	assert.Equal(t, inForce(t, po), "new mail; host a.example", "after undoing that")
	again := assert.Get(suspension.Read(po))(t).Find(s.Order)
	assert.Equal(t, again.Who+" "+again.Reason, "ann their maintenance", "who and why")
	if err := undo(resumed); !errors.Is(err, ErrUndo) {
		t.Errorf("a second undo: got %v", err)
	}
	assert.Must(t, undo(s.Order))
	assert.Must(t, undo(drain.Order))
	assert.Equal(t, inForce(t, po), "", "at the end")
	if err := undo(drain.Order); !errors.Is(err, ErrUndo) {
		t.Errorf("undo of what has ended: got %v", err)
	}
}

// Op5: what is resumed is what was named, and nothing else.
func TestOp5ResumeEndsWhatItNames(t *testing.T) {
	po := suspensionOffice(t)
	for _, s := range []suspension.Suspension{{Host: "a"}, {Host: "a", Channel: "smtp"}, {Sender: "@b"}} {
		s.Who = "ann"
		assert.Must(t, second(Suspend(po, s, 0)))
	}
	if _, _, err := Resume(po, Resumption{Like: &suspension.Suspension{Host: "*"}}); !errors.Is(err, ErrNotSuspended) {
		t.Errorf("a pattern that was not suspended: got %v", err)
	}
	assert.Must(t, third(Resume(po, Resumption{Like: &suspension.Suspension{Host: "a"}})))
	assert.Equal(t, inForce(t, po), "channel smtp, host a; sender @b", "left")
	if _, _, err := Resume(po, Resumption{Orders: []postoffice.OperationID{"20200101-000000-suspend-1"}}); !errors.Is(err, ErrNotSuspended) {
		t.Errorf("an order that is none: got %v", err)
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }

// The time of an end may be one of the day: the next one.
func TestUntilIsATimeOfTheDay(t *testing.T) {
	now := time.Date(2026, 11, 26, 17, 30, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"18:00": time.Date(2026, 11, 26, 18, 0, 0, 0, time.Local),
		"17:30": time.Date(2026, 11, 27, 17, 30, 0, 0, time.Local),
		"06:15": time.Date(2026, 11, 27, 6, 15, 0, 0, time.Local),
	} {
		got := assert.Get(ParseUntil(text, now))(t)
		if !got.Equal(want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"25:00", "0s", "0d", "2026-11-26T17:30", "-1h"} {
		if until, err := ParseUntil(text, now); err == nil {
			t.Errorf("%s is taken as %v", text, until)
		}
	}
}
