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
// is named, and settled by an operator.
func TestLedgerNamesWhatWasRemovedByHand(t *testing.T) {
	o := office.New(t)
	j := ledger.New(o.PostOffice, ledger.Config{Role: "router"})
	defer j.Close() // before the postoffice, whose descriptor another test gets
	waits, _, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
	j.Routed(waits.ID, 2, false)
	missing, name, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com", "c@a.example.com")
	j.Accepting().In(missing.ID, 1)
	j.Routed(missing.ID, 3, true)
	o.Submit(t, office.PlainMail)
	out := mustDo(t, "check", "--ledger")
	wantIn(t, out, "                   accepted           3         2", "added by aliases and lists           2         -",
		"             not routed yet           1         1", "                     in all           6         3",
		"queued in queue/           5         2", "difference           0         -")

	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		assert.Must(t, os.Remove(filepath.Join(o.Dir, dir, name)))
	}
	out = exits(t, exitImbalanced, "check", "--ledger")
	wantIn(t, out, missing.ID.String()+"  missing, 3 recipients\n    ledger: accepted for 1, routed to 3, open, last line ", "\n    disk: nowhere\n", "difference           3")
	var b ledger.Balance
	assert.Must(t, json.Unmarshal([]byte(exits(t, exitImbalanced, "check", "--ledger", "--json")), &b))
	if len(b.Wrong) != 1 || b.Wrong[0].ID != missing.ID || b.Wrong[0].Kind != ledger.Missing || b.Queued["queue"] != (ledger.Count{Recipients: 2, Messages: 1}) {
		t.Errorf("got %+v", b)
	}

	exits(t, 1, "settle", waits.ID.String())
	exits(t, 0, "settle", missing.ID.String())
	out = exits(t, 0, "check", "--ledger")
	wantIn(t, out, "gone           3         1")
	exits(t, 1, "settle", missing.ID.String())
	exits(t, config.ExitUsage, "settle", "12")
}

// A15 A18: what was removed before it was routed is counted as removed, and as queued
// again after undo.
func TestRemovedMessageStaysOnTheBooks(t *testing.T) {
	o := office.New(t)
	a := o.Submit(t, office.PlainMail)
	exits(t, 0, "remove", a.ID.String())
	out := mustDo(t, "check", "--ledger")
	wantIn(t, out, "removed           1         -", "accepted           1         1")
	exits(t, 0, "undo", a.ID.String())
	out = exits(t, 0, "check", "--ledger")
	wantIn(t, out, "removed           0         -", "queued in router/           1         1")
}

func TestDamagedLedgerCannotBeChecked(t *testing.T) {
	o := office.New(t)
	o.Write(t, postoffice.Ledger+"/base", "zmailer ledger 1\n")
	exits(t, exitUnread, "check", "--ledger")
}
