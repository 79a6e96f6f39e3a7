package store

import (
	"fmt"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// box is a postoffice with a Store on a virtual clock.
type box struct {
	*storetest.Box
	spool *Store
}

func newBox(t testing.TB, f durable.FS) *box {
	return newBoxConf(t, f, 0, storetest.Conf)
}

func newBoxConf(t testing.TB, f durable.FS, levels int, conf string) *box {
	t.Helper()
	return boxOf(t, storetest.New(t, f, levels), conf)
}

func openBox(t testing.TB, f durable.FS, levels int, conf string) *box {
	t.Helper()
	return boxOf(t, storetest.Open(t, f, levels), conf)
}

func boxOf(t testing.TB, in *storetest.Box, conf string) *box {
	t.Helper()
	b := &box{Box: in}
	b.spool = New(&Env{PostOffice: b.PO, Conf: mustConf(t, conf), Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		Now: func() time.Time { return b.Now }, Log: b.Logger()})
	return b
}

// diskBox returns a box on the real file system.
func diskBox(t testing.TB) (*box, string) {
	t.Helper()
	f, dir := storetest.Disk(t)
	return newBox(t, f), dir
}

func (b *box) load(name string) *Loaded {
	b.T.Helper()
	l, err := b.spool.Load(name)
	assert.Must(b.T, err)
	return l
}

func (b *box) settle(name string) Settled {
	b.T.Helper()
	s, err := b.spool.Settle(name, nil)
	assert.Must(b.T, err)
	return s
}

func noEnv(string) (string, bool) { return "", false }

func mustConf(t testing.TB, text string) *conf.File {
	t.Helper()
	c, err := conf.Parse("scheduler.conf", []byte(text), noEnv)
	assert.Must(t, err)
	return c
}

func (b *box) record(name string, list []Outcome) error {
	_, err := b.spool.Record(name, list)
	return err
}

func (b *box) expire(name string, offsets []int64, said string) (held []int64, err error) {
	held, _, err = b.spool.Expire(name, offsets, said)
	return held, err
}

// books makes the box keep a ledger.
func (b *box) books() {
	b.spool.Ledger = ledger.New(b.PO, ledger.Config{Role: "scheduler"})
	b.T.Cleanup(b.spool.Ledger.Close)
}

// many are recipients of one host.
func many(n int) []storetest.Rcpt {
	list := make([]storetest.Rcpt, n)
	for i := range list {
		list[i].Line = fmt.Sprintf("smtp h user%d@h", i)
	}
	return list
}

// opened opens a specification as agents do, until the test ends.
func (b *box) opened(name string) *postoffice.Spec {
	b.T.Helper()
	f, err := b.PO.Queue.Open(name)
	assert.Must(b.T, err)
	b.T.Cleanup(func() { _ = f.Close() })
	return f
}

// agent returns the number of an agent that lives until the test ends.
func (b *box) agent() int {
	b.T.Helper()
	owner, err := b.PO.Owners.Take("test-agent")
	assert.Must(b.T, err)
	b.T.Cleanup(func() { _ = owner.Release() })
	return owner.Number()
}

// openOn opens the postoffice on another file system.
func (b *box) openOn(f durable.FS) *postoffice.PostOffice {
	b.T.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: f})
	assert.Must(b.T, err)
	return po
}

// faulty has the Store work on a disk with faults.
func (b *box) faulty() *faultfs.FS {
	f := faultfs.New(b.FS)
	b.spool.PostOffice = b.openOn(f)
	return f
}
