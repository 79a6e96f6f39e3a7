package ledger

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zmailer/internal/run/assert"
)

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
	if b, err := readBase(po.FS()); err != nil || b.Through < messages/2 {
		t.Errorf("folded through journal %+v, %v", b, err)
	}
}
