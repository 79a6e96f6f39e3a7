package engine

import (
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// box is a postoffice with a store.Store on a virtual clock.
type box struct {
	*storetest.Box
	spool *store.Store
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
	b.spool = store.New(&store.Env{PostOffice: b.PO, Conf: mustConf(t, conf), Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		Now: func() time.Time { return b.Now }, Log: b.Logger()})
	return b
}

// diskBox is a box on the real file system.
func diskBox(t testing.TB) (*box, string) {
	t.Helper()
	f, dir := storetest.Disk(t)
	return newBox(t, f), dir
}

func (b *box) load(name string) *store.Loaded {
	b.T.Helper()
	l, err := b.spool.Load(name)
	if err != nil {
		b.T.Fatal(err)
	}
	return l
}

func noEnv(string) (string, bool) { return "", false }

func mustConf(t testing.TB, text string) *conf.File {
	t.Helper()
	c, err := conf.Parse("scheduler.conf", []byte(text), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// books makes the box keep a ledger.
func (b *box) books() {
	b.spool.Ledger = ledger.New(b.PO, ledger.Config{Role: "scheduler"})
	b.T.Cleanup(b.spool.Ledger.Close)
}
