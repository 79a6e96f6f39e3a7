package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// M41: an order of more messages than are noted at a time is about each of them, and so
// is its undo.
func TestBulkOrderIsAboutEachMessage(t *testing.T) {
	o := office.New(t)
	o.Run(t, "scheduler")
	const count = 3*64 + 5
	plantMany(t, o, count-1)
	sum := fmt.Sprintf("%d recipients of %d messages", count, count)
	wantIn(t, mustDo(t, "hold", "--dry-run", "--all"), sum)
	wantIn(t, mustDo(t, "hold", "--all", "--yes", "--quiet"), sum+" held")
	list, err := o.Operations.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d orders, %v", len(list), err)
	}
	assert.Equal(t, len(strings.Fields(mustDo(t, "orders", string(list[0])))), count, "messages in the operation")
	wantIn(t, mustDo(t, "queue", "--summary"), fmt.Sprintf("%d held", count))
	wantIn(t, mustDo(t, "undo"), fmt.Sprintf("undone for %d messages", count))
	wantIn(t, mustDo(t, "queue", "--summary"), fmt.Sprintf("%d waiting", count))
}

// M41: an order that was cut off is known by its file; undo takes back what was done.
func TestCutOrderIsUndone(t *testing.T) {
	o := office.New(t)
	plantMany(t, o, 2*64)
	a := app()
	a.ExitErrHandler = func(*cli.Context, error) {}
	// The person's terminal goes away in the middle.
	a.Writer, a.ErrWriter = &gone{4000}, io.Discard
	_ = a.RunContext(t.Context(), []string{"zmctl", "hold", "--all", "--yes", "--json"})
	heldBefore := 0
	for _, state := range statesByID(t) {
		if state == view.Held {
			heldBefore++
		}
	}
	if heldBefore == 0 {
		t.Fatal("nothing was done before it was cut off")
	}
	mustDo(t, "undo")
	for id, state := range statesByID(t) {
		if state == view.Held {
			t.Errorf("%s is held still", id)
		}
	}
}

// statesByID returns the state of each message's only recipient.
func statesByID(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(mustDo(t, "queue", "--json")) {
		var m view.Message
		assert.Must(t, json.Unmarshal([]byte(line), &m))
		all[m.ID] = m.Recipients[0].State
	}
	return all
}

// A15: an order that is still being given is not undone by half.
func TestOrderIsUndoneWhenItWasGiven(t *testing.T) {
	o := office.New(t)
	file, err := o.Operations.Create(postoffice.NewOperationID(time.Now(), "remove", 17), []byte("verb remove\n\n"))
	assert.Must(t, err)
	exits(t, config.ExitTempFail, "undo")
	assert.Must(t, file.Close())
	exits(t, 1, "undo")
}

// M41: on a terminal the command asks the operator, with the numbers, and accepts only yes.
func TestVerbsAskOnATerminal(t *testing.T) {
	for answer, want := range map[string]string{"y": view.Held, "n": view.Waiting} {
		o := office.New(t)
		o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
		person, program := terminals(t)
		if _, err := io.WriteString(person, answer+"\n"); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		a := app()
		a.ExitErrHandler = func(*cli.Context, error) {}
		a.Reader, a.Writer, a.ErrWriter = program, &out, io.Discard
		err := a.RunContext(t.Context(), []string{"zmctl", "hold", "--all"})
		assert.Equal(t, config.Exit(err), map[string]int{"y": 0, "n": 1}[answer], "%s: exit code, %v", answer, err)
		wantIn(t, out.String(), "hold 1 recipient of 1 message? [y/N] ")
		wantStates(t, "answer "+answer, map[string]string{"a1@x": want})
	}
}

// A18: status shows held and frozen recipients and the files of removed/ and orders/, with
// the oldest of each.
func TestStatusCountsWhatWasOrdered(t *testing.T) {
	o := office.New(t)
	_, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("b.example", "b1@x"), office.To("c.example", "c1@x"))
	o.Age(t, "queue/"+name, 3*time.Hour+time.Minute)
	a := o.Submit(t, office.PlainMail)
	mustDo(t, "hold", "--yes", "--to", "a1@x")
	mustDo(t, "freeze", "--yes", "--to", "b1@x")
	mustDo(t, "remove", a.ID.String())
	out, _, _ := invoke(t, "status")
	wantIn(t, out, "1           3h1m    held\n", "1           3h1m    frozen\n", "1           3h1m    waiting\n", "1 removed\n", "3 order\n")
	assert.Equal(t, countFiles(t, o.Path("removed")), 1, "files in removed/")
}

// S8: who gave an order and why stands in the specification, for those who read it
// without us.
func TestOrdersStandInTheSpecification(t *testing.T) {
	o := office.New(t)
	id, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	mustDo(t, "hold", "--reason", "two\nlines \x1b[2J", id)
	list := o.Spec(t, name).History
	e := list[len(list)-1]
	if e.Event != workspec.EventHold || e.Get("who") == "" || e.Get("order") == "" || e.Get("id") != id {
		t.Errorf("got %+v", e)
	}
	if out := mustDo(t, "orders"); strings.ContainsAny(out, "\x1b") {
		t.Errorf("got %q", out)
	}
	sel, err := selector.Column("id", id)
	assert.Must(t, err)
	wantIn(t, mustDo(t, "orders"), sel.String())
}
