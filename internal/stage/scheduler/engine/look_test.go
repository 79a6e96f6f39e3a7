package engine

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
		e.clock.tick()
		e.scanner.looking = true
		e.intake.hint(watch.Hint{Lost: lost})
		if e.scanner.lookAgain != lost {
			t.Errorf("lost hints %v: got another look at once %v", lost, e.scanner.lookAgain)
		}
		if lost {
			continue
		}
		e.scanner.looked(2*time.Second, nil)
		if want := e.now.Add(2 * time.Second * lookShare); e.scanner.looking || !e.scanner.lookAt.Equal(want) {
			t.Errorf("the next look is at %v (or under way: %v), want %v", e.scanner.lookAt, e.scanner.looking, want)
		}
	}
}
