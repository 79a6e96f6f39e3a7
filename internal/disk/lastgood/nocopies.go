package lastgood

import (
	"os/exec"
	"time"

	"zmailer/internal/run/config"
)

// NoCopies is a config.Keeper that only opens files: for a postoffice without Dir, and for a process
// that may not write there.
type NoCopies struct{ Opener }

// Good implements config.Keeper.
func (NoCopies) Good(string, []byte, uint32, error) {}

// Bad implements config.Keeper.
func (NoCopies) Bad(string, error, bool) {}

// Last implements config.Keeper.
func (NoCopies) Last(string) *config.Kept { return nil }

// Names implements config.Keeper.
func (NoCopies) Names(string) {}

// OutageAfter implements config.Keeper: there is no alarm.
func (NoCopies) OutageAfter() time.Duration { return -1 }

// Away implements config.Keeper.
func (NoCopies) Away(string, time.Time, error, string) {}

// Expires implements config.Keeper.
func (NoCopies) Expires(string, time.Time) {}

// Attach implements config.Keeper.
func (n NoCopies) Attach(cmd *exec.Cmd, path string) (done func(), err error) {
	return n.AttachFor(cmd, path)
}
