package scheduler

import (
	"testing"
	"time"

	"zmailer/internal/disk/watch"
)

// A look whose time comes while another one is under way waits until that one's share of
// the time is over; hints that were lost then have it begin at once.
func TestLookThatIsDueDuringALookWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		r := newRig(t, scriptConf("", ""), 0, nil)
		e := newEngine(r.config, r.PO)
		e.tick()
		e.looking = true
		e.hint(watch.Hint{Lost: lost})
		if e.lookAgain != lost {
			t.Errorf("lost hints %v: got another look at once %v", lost, e.lookAgain)
		}
		if lost {
			continue
		}
		e.looked(2*time.Second, nil)
		if want := e.now.Add(2 * time.Second * lookShare); e.looking || !e.lookAt.Equal(want) {
			t.Errorf("the next look is at %v (or under way: %v), want %v", e.lookAt, e.looking, want)
		}
	}
}
