package router

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
)

func readLedger(t *testing.T, po *postoffice.PostOffice) *ledger.Book {
	t.Helper()
	b := assert.Get(ledger.Read(po))(t)
	return b
}

// A18: a message is entered with the recipients that routing made of it; one that is
// put aside is not, it waits.
func TestHandOverIsEnteredInTheLedger(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"aliases": "all: bond, moneypenny\nloop: :include:/nowhere\n"})
	o.r.c.Ledger = ledger.New(o.po, ledger.Config{Role: "router"})
	defer o.r.c.Ledger.Close()
	outside := o.submit("external\nfrom <x@example.net>\nto <all@example.org>\nenv-end\nSubject: x\n\nx\n")
	inside := o.submit("from <bond@example.org>\nto <x@example.net>\nenv-end\nSubject: x\n\nx\n")
	waits := o.submit("from <bond@example.org>\nto <loop@example.org>\nenv-end\nSubject: x\n\nx\n")
	o.route()
	b := readLedger(t, o.po)
	if r := b.Records[outside.ID]; r == nil || r.Routed != 2 || !r.Entered {
		t.Errorf("from the server, alias of two: got %+v", r)
	}
	if r := b.Records[inside.ID]; r == nil || r.Routed != 1 || r.Entered {
		t.Errorf("from submit: got %+v", r)
	}
	if r := b.Records[waits.ID]; r != nil {
		t.Errorf("deferred: got %+v", r)
	}
}

// A message that was restored from a copy keeps its account under its new spool ID.
func TestCopiedMessageKeepsItsAccount(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	journal := ledger.New(o.po, ledger.Config{Role: "router"})
	defer journal.Close()
	o.r.c.Ledger = journal
	o.po.OnRenumber(journal.Moved)
	text := "external\nfrom <x@example.net>\nto <bond@example.org>\nenv-end\nSubject: x\n\nx\n"
	accepting := journal.Accepting()
	was := o.submit(text)
	path := filepath.Join(o.dir, postoffice.Router, strconv.FormatUint(was.ID.Ino, 10))
	// Both were written long enough ago to be whole.
	at := time.Now().Add(-time.Minute)
	assert.Must(t, os.Chtimes(path, at, at))
	was.ID.MTime = at.UnixNano()
	accepting.In(was.ID, 1)
	assert.Must(t, os.WriteFile(path+".copy", []byte(text), 0o700))
	assert.Must(t, errors.Join(os.Chtimes(path+".copy", at, at.Add(time.Second)), os.Rename(path+".copy", path)))
	o.route()
	b := readLedger(t, o.po)
	if len(b.Records) != 1 || b.Records[was.ID] != nil {
		t.Errorf("got %+v, want one message under another ID", b.Records)
	}
	for _, r := range b.Records {
		if r.In != 1 || r.Routed != 1 {
			t.Errorf("got %+v", r)
		}
	}
}
