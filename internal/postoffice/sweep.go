package postoffice

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// draftGrace is how long a draft is left alone after its last write, whoever has it.
const draftGrace = time.Hour

// SweepDrafts removes what dead submitters were writing in public/: files with the
// names that NewDraft gives, without execute bit, not locked, and not written to for an
// hour (K4). Nobody was told yes for them. Other programs' files are left, because
// those do not lock, and so are reports: a work specification may name one that
// is not submitted yet. Any number of routers may call it at once.
func (p *PostOffice) SweepDrafts(now time.Time) ([]Recovered, error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("sweep drafts: %w", err)
	}
	var done []Recovered
	for _, e := range entries {
		if !isDraft(e.Name) {
			continue
		}
		name := Public + "/" + e.Name
		r, err := p.sweepDraft(name, now)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Unreadable, name, err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
	}
	return done, nil
}

func (p *PostOffice) sweepDraft(name string, now time.Time) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 != 0 || now.Sub(info.ModTime) < draftGrace {
		return nil, nil // gone, accepted, or too young
	}
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free, err := f.TryLock()
	if err != nil || !free {
		return nil, err // its writer lives
	}
	// Crash: there or not; whoever was writing it is dead either way.
	if err := p.remove(name); err != nil {
		return nil, err
	}
	return &Recovered{Swept, name, "its writer is dead; its submitter was never answered"}, nil
}

// isDraft tells a name that NewDraft gave to anything but a report:
// prefix.pid.time.count.
func isDraft(name string) bool {
	parts := strings.Split(name, ".")
	if len(parts) != 4 || parts[0] == reportPrefix {
		return false
	}
	_, err := strconv.Atoi(parts[1])
	for _, word := range parts[2:] {
		if _, werr := strconv.ParseUint(word, 36, 64); werr != nil {
			err = werr
		}
	}
	return err == nil
}

// reportPrefix starts the names of reports in public/.
const reportPrefix = "report"

// ListReports lists the reports in public/ that are being written or are prepared, by
// their names for SubmitPrepared and DropPrepared. Those that no work specification
// names are left over when the scheduler that wrote them is dead.
func (p *PostOffice) ListReports() ([]string, error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("list reports: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name, reportPrefix+".") {
			continue
		}
		info, err := p.fs.Stat(Public + "/" + e.Name)
		if err == nil && info.Mode.IsRegular() && info.Mode&0o100 == 0 {
			names = append(names, e.Name)
		}
	}
	return names, nil
}
