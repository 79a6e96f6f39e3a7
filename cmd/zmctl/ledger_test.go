package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// A18: the ledger balances with what is on the disk; a message that was removed by hand
// is named, and settled by a person.
func TestLedgerNamesWhatWasRemovedByHand(t *testing.T) {
	o := office.New(t)
	j := ledger.New(o.PostOffice, ledger.Config{Role: "router"})
	defer j.Close() // before the postoffice, whose descriptor another test gets
	waits, waiting, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
	j.Routed(waits.ID, 2, false)
	missing, name, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com", "c@a.example.com")
	j.Accepting().In(missing.ID, 1)
	j.Routed(missing.ID, 3, true)
	o.Submit(t, office.PlainMail)
	out, code, err := invoke(t, "check", "--ledger")
	if code != 0 {
		t.Fatalf("exit code %d, %v\n%s", code, err, out)
	}
	wantIn(t, out, "                   accepted           3         2", "added by aliases and lists           2         -",
		"             not routed yet           1         1", "                     in all           6         3",
		"queued in queue/           5         2", "difference           0         -")

	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		assert.Must(t, os.Remove(filepath.Join(o.Dir, dir, name)))
	}
	if out, code, _ = invoke(t, "check", "--ledger"); code != exitImbalanced {
		t.Errorf("exit code %d, want %d\n%s", code, exitImbalanced, out)
	}
	wantIn(t, out, missing.ID.String()+"  missing, 3 recipients\n    ledger: accepted for 1, routed to 3, open, last line ", "\n    disk: nowhere\n", "difference           3")
	out, code, _ = invoke(t, "check", "--ledger", "--json")
	var b ledger.Balance
	if err := json.Unmarshal([]byte(out), &b); err != nil || code != exitImbalanced {
		t.Fatalf("exit code %d, %v\n%s", code, err, out)
	}
	if len(b.Wrong) != 1 || b.Wrong[0].ID != missing.ID || b.Wrong[0].Kind != ledger.Missing || b.Queued["queue"] != (ledger.Count{Recipients: 2, Messages: 1}) {
		t.Errorf("got %+v", b)
	}

	if out, code, err = invoke(t, "settle", waits.ID.String()); code != 1 {
		t.Errorf("settle, of a message that waits: %d, %v\n%s", code, err, out)
	}
	if out, code, err = invoke(t, "settle", missing.ID.String()); code != 0 {
		t.Errorf("settle: %d, %v\n%s", code, err, out)
	}
	if out, code, _ = invoke(t, "check", "--ledger"); code != 0 {
		t.Errorf("after settle: exit code %d\n%s", code, out)
	}
	wantIn(t, out, "gone           3         1")
	if _, code, err = invoke(t, "settle", missing.ID.String()); code != 1 {
		t.Errorf("settled again: %d, %v", code, err)
	}
	if _, code, err = invoke(t, "settle", "12"); code != config.ExitUsage {
		t.Errorf("no spool ID: %d, %v", code, err)
	}
	if out, _, _ = invoke(t, "check", "--json"); waiting == "" || out == "" {
		t.Error("check says nothing")
	}
}

// A15 A18: what was removed before it was routed is counted as removed, and as queued
// again after undo.
func TestRemovedMessageStaysOnTheBooks(t *testing.T) {
	o := office.New(t)
	a := o.Submit(t, office.PlainMail)
	if out, code, err := invoke(t, "remove", a.ID.String()); code != 0 {
		t.Fatalf("remove: %d, %v\n%s", code, err, out)
	}
	out, code, _ := invoke(t, "check", "--ledger")
	if code != 0 {
		t.Errorf("removed: exit code %d\n%s", code, out)
	}
	wantIn(t, out, "removed           1         -", "accepted           1         1")
	if out, code, err := invoke(t, "undo", a.ID.String()); code != 0 {
		t.Fatalf("undo: %d, %v\n%s", code, err, out)
	}
	if out, code, _ = invoke(t, "check", "--ledger"); code != 0 {
		t.Errorf("put back: exit code %d\n%s", code, out)
	}
	wantIn(t, out, "removed           0         -", "queued in router/           1         1")
}

func TestDamagedLedgerCannotBeChecked(t *testing.T) {
	o := office.New(t)
	o.Write(t, postoffice.Ledger+"/base", "zmailer ledger 1\n")
	if out, code, err := invoke(t, "check", "--ledger"); code != exitUnread || err == nil {
		t.Errorf("got %d, %v\n%s", code, err, out)
	}
}
