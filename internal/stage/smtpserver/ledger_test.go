package smtpserver

import (
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
)

// idIn is the spool ID in a 250 reply.
func idIn(t *testing.T, reply string) postoffice.SpoolID {
	t.Helper()
	words := strings.Fields(reply)
	id, err := postoffice.ParseSpoolID(words[len(words)-1])
	if err != nil {
		t.Fatalf("%q: %v", reply, err)
	}
	return id
}

// A18: the ledger has exactly the messages that clients got 250 for.
func TestAcceptedMessageIsInTheLedgerBeforeTheAnswer(t *testing.T) {
	disk := &troubled{before: func(string, string) error { return nil }}
	var full fault
	disk.before = full.before
	r := start(t, func(c *Config) { c.FS = disk })
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@example.org>", "250")
	p.say("RCPT TO:<c@example.org>", "250")
	p.say("DATA", "354")
	id := idIn(t, p.say("x\r\n.", "250"))
	po, err := postoffice.Open(postoffice.Config{FS: r.disk})
	if err != nil {
		t.Fatal(err)
	}
	book, err := ledger.Read(po)
	if err != nil {
		t.Fatal(err)
	}
	if got := book.Records[id]; len(book.Records) != 1 || got == nil || got.In != 2 || !got.Open() {
		t.Errorf("got %+v", book.Records)
	}
	full.set("rename", unix.ENOSPC)
	p.transaction()
	p.say("x\r\n.", "452")
	full.set("rename", nil)
	if book, err = ledger.Read(po); err != nil || len(book.Records) != 1 {
		t.Errorf("after a refusal: %+v, %v", book.Records, err)
	}
}

// The ledger never stops mail.
func TestMailIsAcceptedWithoutALedger(t *testing.T) {
	disk := &troubled{}
	disk.before = func(op, name string) error {
		if strings.HasPrefix(name, postoffice.Ledger) {
			return &fs.PathError{Op: op, Path: name, Err: unix.EIO}
		}
		return nil
	}
	r := start(t, func(c *Config) { c.FS = disk })
	p := r.dial()
	for range 3 {
		p.transaction()
		p.say("x\r\n.", "250")
	}
	if n := strings.Count(r.log.String(), "ledger-trouble"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}
