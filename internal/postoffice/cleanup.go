package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
)

// DefaultPostmanKeep is how long a copy stays in postman/.
const DefaultPostmanKeep = 14 * 24 * time.Hour

// Dropped is the action of Recovered for a copy whose time is over.
const Dropped = "dropped"

// SweepCopies removes copies for the postmaster, postman/I_why, that have been there for
// so long (M12). Their messages went on. postman/I is the only copy of a message and is
// never touched, and neither is anything else. keep 0: nothing is done; dry: it is told
// and not done. Any number of processes may call it at once.
func (p *PostOffice) SweepCopies(now time.Time, keep time.Duration, dry bool) ([]Recovered, error) {
	if keep <= 0 {
		return nil, nil
	}
	var names []string
	err := durable.ReadDirFunc(p.fs, Postman, func(part []durable.Entry) error {
		for _, e := range part {
			if isCopy(e.Name) && (e.Type == 0 || e.Type == fs.ModeIrregular) {
				names = append(names, e.Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sweep copies: %w", err)
	}
	slices.Sort(names)
	var done []Recovered
	for _, base := range names {
		name := Postman + "/" + base
		info, err := p.fs.Stat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode.IsRegular() {
			continue
		}
		// A copy is a link: its file was changed last when it was made, or later.
		since := later(info.ModTime, info.CTime)
		if err == nil && now.Sub(since) < keep {
			continue
		}
		if err == nil && !dry {
			// Crash: there, and dropped another time, or not. Who has made an only copy of it
			// meanwhile, by a rename, has it.
			err = p.remove(name)
		}
		r := Recovered{Action: Dropped, Name: name, ID: IDOf(info), Detail: "a copy since " + since.UTC().Format(time.RFC3339) + "; its message went on"}
		if err != nil {
			r = Recovered{Action: Unreadable, Name: name, Detail: err.Error()}
		}
		done = append(done, r)
	}
	return done, nil
}

// isCopy tells the name of a copy of a message that went on.
func isCopy(name string) bool {
	ino, why, ok := strings.Cut(name, "_")
	_, number := decimal(ino)
	return ok && number && why != ""
}
