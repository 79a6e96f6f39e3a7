package ledger

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

func makeFile(t testing.TB, po *postoffice.PostOffice, name, content string) postoffice.SpoolID {
	t.Helper()
	f, err := po.FS().Open(name, os.O_RDWR|os.O_CREATE, 0o700)
	assert.Must(t, err)
	_, err = f.Write([]byte(content))
	assert.Must(t, err)
	info, err := f.Stat()
	assert.Must(t, err)
	assert.Must(t, f.Close())
	return postoffice.IDOf(info)
}

// small begins another journal at each Keep.
func small(role string) Config {
	c := testConfig(role)
	c.Limit = 1
	return c
}

// K7: base counts what is done with, keeps what is open, and what may end once more.
func TestFoldForgetsWhatIsDoneWithAlone(t *testing.T) {
	po, _ := realOffice(t)
	j := New(po, small("scheduler"))
	defer j.Close()
	finishing := makeFile(t, po, "queue/tmp", "x")
	assert.Must(t, po.FS().RenameNew("queue/tmp", fmt.Sprintf("queue/%d-7", finishing.Ino)))
	shelved := makeFile(t, po, "removed/tmp", "x")
	assert.Must(t, po.FS().RenameNew("removed/tmp", "removed/"+shelved.String()+".queue"))
	j.Accepting().In(id(1, 1), 2)
	j.Done(id(2, 1), Outcomes{Delivered: 3})
	j.Routed(id(3, 1), 2, false)
	j.Done(id(3, 1), Outcomes{Delivered: 1})
	j.Done(finishing, Outcomes{Delivered: 1})
	j.Done(shelved, Outcomes{Removed: 1})
	assert.Must(t, j.Keep())
	b := newBook()
	assert.Must(t, b.readBase(po.FS()))
	if b.Sum.Delivered != 3 || b.Through != 1 || len(b.Records) != 4 {
		t.Errorf("got %+v, %d records", b.Sum, len(b.Records))
	}
	// Killed before the files were removed, the next life enters the end again.
	j.Done(finishing, Outcomes{Delivered: 1})
	assert.Must(t, po.FS().Remove(fmt.Sprintf("queue/%d-7", finishing.Ino)))
	assert.Must(t, j.Keep())
	b = newBook()
	assert.Must(t, b.readBase(po.FS()))
	if b.Sum.Delivered != 4 || b.Through != 2 || len(b.Records) != 3 {
		t.Errorf("got %+v, %d records", b.Sum, len(b.Records))
	}
	if have, err := survey(po.FS()); err != nil || len(have.numbers) != 0 {
		t.Errorf("journals are left: %v, %v", have.numbers, err)
	}
}

func TestDamagedBaseStopsTheFoldAndKeepsTheJournals(t *testing.T) {
	po, _ := realOffice(t)
	makeFile(t, po, baseName, "zmailer ledger 1\n")
	j := New(po, small("scheduler"))
	defer j.Close()
	j.Routed(id(1, 1), 1, false)
	for range 2 {
		if err := j.Keep(); err == nil || !strings.Contains(err.Error(), ErrBase.Error()) {
			t.Fatalf("got %v", err)
		}
	}
	assert.Must(t, po.FS().Remove(baseName))
	assert.Must(t, j.Keep())
	if b, err := Read(po); err != nil || b.Records[id(1, 1)] == nil {
		t.Errorf("after its removal: %v, %v", b, err)
	}
}

// foldLife enters messages in two processes while journals are rotated and folded, and
// gives what was entered when each life ended.
func foldLife(po *postoffice.PostOffice, first, count int) {
	router, scheduler := New(po, small("router")), New(po, small("scheduler"))
	for n := first; n < first+count; n++ {
		m := id(uint64(n), 1)
		accepting := router.Accepting()
		router.Routed(m, 2, true)
		accepting.In(m, 1)
		if n%3 > 0 {
			scheduler.Done(m, Outcomes{Delivered: 2})
		}
		router.tick()
		// A cut shows at the next life.
		_ = scheduler.Keep()
	}
	router.Close()
	scheduler.Close()
}

// K4 K7: rotation and fold, stopped after each of their operations by a kill, count
// nothing twice and lose nothing; by a loss of power, nothing that base had.
func TestEveryCutOfTheFoldCountsOnce(t *testing.T) {
	whole := cutfs.New()
	whole.CutAfter(1 << 30)
	foldLife(office(t, whole), 1, 6)
	ops := whole.Ops()
	losses := 0
	for n := range ops {
		for _, tear := range []bool{false, true} {
			disk := cutfs.New()
			po := office(t, disk)
			assert.Must(t, disk.SyncDir("."))
			if tear {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			foldLife(po, 1, 6)
			if !disk.Dead() {
				continue // init's operations are counted too
			}
			// What the dead process saw, and what of it base had.
			alive, err := postoffice.Open(postoffice.Config{FS: disk.Restart(cutfs.KeepAll())})
			assert.Must(t, err)
			had, err := Read(alive)
			assert.Must(t, err)
			have, err := survey(alive.FS())
			assert.Must(t, err)
			synced := had.Sum.Delivered
			if len(have.numbers) > 0 && have.numbers[0] <= had.Through {
				synced = 0 // the name of base may not be durable
			}
			for _, loss := range disk.Losses() {
				losses++
				name := fmt.Sprintf("cut after %d (torn %v), %v", n, tear, loss)
				po, err := postoffice.Open(postoffice.Config{FS: disk.Restart(loss)})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				nextLife(t, name, po, had, synced, loss.Power)
				if t.Failed() {
					t.Fatalf("the disk's operations:\n%s", disk.Log())
				}
			}
		}
	}
	t.Logf("%d operations, %d lives after them", ops, losses)
}

func nextLife(t *testing.T, name string, po *postoffice.PostOffice, had *Book, synced int64, power bool) {
	t.Helper()
	b, err := Read(po)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	got, want := b.total(), had.total()
	switch {
	case !power && (got != want || b.open() != had.open()):
		t.Errorf("%s: got %+v, open %d, want %+v, open %d", name, got, b.open(), want, had.open())
	case got.Accepted > want.Accepted+want.Added || got.Delivered > want.Delivered || got.Messages.Accepted > want.Messages.Accepted:
		t.Errorf("%s: something is counted twice: got %+v, had %+v", name, got, want)
	case got.Delivered < synced:
		t.Errorf("%s: base was synced with %d delivered, got %d", name, synced, got.Delivered)
	}
	foldLife(po, 100, 3)
	after, err := Read(po)
	if err != nil {
		t.Errorf("%s, next life: %v", name, err)
		return
	}
	if now := after.total(); now.Delivered != got.Delivered+4 || now.Messages.Accepted != got.Messages.Accepted+3 {
		t.Errorf("%s: the next life makes %+v of %+v", name, now, got)
	}
}

// K4: base is replaced by a new file under its name, and journals are renamed and
// removed, beside readers: each sees all that was entered before it began, once, and no
// part of a line or of base.
func TestReaderBesideTheFoldSeesNoPart(t *testing.T) {
	po, _ := realOffice(t)
	scheduler := New(po, small("scheduler"))
	defer scheduler.Close()
	const messages = 300
	var entered atomic.Int64
	var readers sync.WaitGroup
	reads := make([]int, 3)
	for r := range reads {
		readers.Go(func() {
			for entered.Load() < messages {
				least := entered.Load()
				b, err := Read(po)
				most := entered.Load() + 1 // one is being entered
				if err != nil {
					// It may be beaten by one who folds without a pause.
					if !strings.Contains(err.Error(), "was rewritten") {
						t.Error(err)
					}
					continue
				}
				reads[r]++
				if got := b.total().Delivered; got < 2*least || got > 2*most || b.Bad > 0 {
					t.Errorf("%d are counted as delivered, %d lines bad; want %d to %d", got, b.Bad, 2*least, 2*most)
					return
				}
			}
		})
	}
	for n := range messages {
		m := id(uint64(n+1), 1)
		scheduler.Routed(m, 2, false)
		scheduler.Done(m, Outcomes{Delivered: 2})
		entered.Add(1)
		assert.Must(t, scheduler.Keep())
	}
	readers.Wait()
	t.Logf("%d reads", reads)
	if n, err := through(po.FS()); err != nil || n < messages/2 {
		t.Errorf("folded through journal %d, %v", n, err)
	}
}
