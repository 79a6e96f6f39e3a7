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
			r = &Recovered{Action: Unreadable, Name: name, Detail: err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
	}
	return done, nil
}

func (p *PostOffice) sweepDraft(name string, now time.Time) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 != 0 || apart(now, info.ModTime) < draftGrace {
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
	return &Recovered{Action: Swept, Name: name, Detail: "its writer is dead; its submitter was never answered"}, nil
}

// DefaultPublicKeep is how long another program's unfinished file stays in public/.
const DefaultPublicKeep = 7 * 24 * time.Hour

// SweepForeign puts other programs' files in public/ into quarantine/ that were never
// accepted and that nobody has touched for so long: regular files without execute bit,
// whose names we do not give, not locked. Whether such a file is open cannot be known:
// its writer need not lock, may be another user's, and may live in another container.
// One that comes back finds its name gone and tells its user so; what it wrote is in
// quarantine/. keep 0: nothing is done. Any number of routers may call it at once.
func (p *PostOffice) SweepForeign(now time.Time, keep time.Duration) ([]Recovered, error) {
	if keep <= 0 {
		return nil, nil
	}
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("sweep public: %w", err)
	}
	var done []Recovered
	for _, e := range entries {
		if isDraft(e.Name) || isPrepared(e.Name) {
			continue
		}
		name := Public + "/" + e.Name
		r, err := p.sweepForeign(name, now, keep)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Action: Unreadable, Name: name, Detail: err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
	}
	return done, nil
}

func (p *PostOffice) sweepForeign(name string, now time.Time, keep time.Duration) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	// A file whose content is old may have been put there just now.
	if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 != 0 || now.Sub(info.ModTime) < keep || now.Sub(info.CTime) < keep {
		return nil, nil
	}
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	// The lock keeps a writer that has one from being taken for none.
	defer func() { _ = f.Close() }()
	free, err := f.TryLock()
	if err != nil || !free {
		return nil, err
	}
	// Crash: see Quarantine.
	to, err := p.Quarantine(name, "abandoned")
	if err != nil {
		return nil, err
	}
	return &Recovered{Action: Quarantined, Name: to, Detail: fmt.Sprintf("from %s: another program's, %d bytes, not accepted and not written to since %s",
		name, info.Size, info.ModTime.UTC().Format(time.RFC3339))}, nil
}

// isDraft tells a name that NewDraft gave to anything but what is prepared:
// prefix.pid.time.count.
func isDraft(name string) bool {
	parts := strings.Split(name, ".")
	if len(parts) != 4 || isPrepared(name) {
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

// Prefixes of the names in public/ of what is prepared and named by a specification.
const (
	ReportPrefix = "report" // by the one scheduler
	CopyPrefix   = "copy"   // a message's copy that is routed again; by zmctl, too
)

// isPrepared tells a name with such a prefix.
func isPrepared(name string) bool {
	return strings.HasPrefix(name, ReportPrefix+".") || strings.HasPrefix(name, CopyPrefix+".")
}

// ListPrepared lists the reports and copies in public/ that are being written or are
// prepared, by their names for SubmitPrepared and DropPrepared. Those that no work
// specification names are left over when the process that wrote them is dead. Copies
// are listed when they are an hour old: others than the scheduler prepare them.
func (p *PostOffice) ListPrepared(now time.Time) ([]string, error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("list what is prepared: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !isPrepared(e.Name) {
			continue
		}
		info, err := p.fs.Stat(Public + "/" + e.Name)
		if err == nil && p.believe(e.Name, info) != nil {
			continue // a user's
		}
		if strings.HasPrefix(e.Name, CopyPrefix+".") && apart(now, info.CTime) < draftGrace {
			continue
		}
		if err == nil && info.Mode.IsRegular() && info.Mode&0o100 == 0 {
			names = append(names, e.Name)
		}
	}
	return names, nil
}
