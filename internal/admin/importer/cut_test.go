package importer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// An import is killed, which leaves what it wrote in memory alone; the next one goes on upon
// that, and the power goes while it does.
func TestKilledImportThenLossOfPower(t *testing.T) {
	const n = 2
	stopped := 0
	for at := 0; ; at++ {
		base := cutfs.New()
		assert.Must(t, postoffice.Init(base))
		first := base.Restart(cutfs.KeepAll())
		f := newFake(n)
		first.CutAfter(at)
		err := move(t, first, f)
		if !first.Dead() {
			if err != nil || stopped < 20 {
				t.Fatalf("uncut: %v, after %d cuts", err, stopped)
			}
			return
		}
		for at2 := 0; ; at2++ {
			second := first.Restart(cutfs.KeepAll())
			left := newFake(n)
			left.names = slices.Clone(f.names)
			second.CutAfter(at2)
			_ = move(t, second, left) // it is cut
			if !second.Dead() {
				break
			}
			stopped++
			for _, loss := range second.Losses() {
				what := fmt.Sprintf("killed after %d, cut after %d, %v", at, at2, loss)
				third := second.Restart(loss)
				last := newFake(n)
				last.names = slices.Clone(left.names)
				if err := move(t, third, last); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if diff := cmp.Diff(wanted(n), names(messages(t, third))); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", what, diff)
				}
			}
		}
	}
}

// move imports and takes out of the old queue.
func move(t *testing.T, disk *cutfs.FS, f *fake) error {
	c := config(openOffice(t, disk), f)
	c.Move = true
	_, err := Run(t.Context(), c)
	return err
}
