package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/disk/durable"

	"golang.org/x/sys/unix"
)

// Submissions is public/: messages that are being written, prepared, or left by users.
type Submissions struct{ *spool }

// Prefixes of the names in public/ of what is prepared and named by a specification.
const (
	ReportPrefix = "report" // by the one scheduler
	CopyPrefix   = "copy"   // a message's copy that is routed again; by zmctl, too
)

// SubmitPrepared moves public/name, which Prepare left, to router/. ErrGone: it was
// submitted before.
func (p *Submissions) SubmitPrepared(name string) (Accepted, error) {
	a, err := p.submitPrepared(Public + "/" + name)
	if err != nil && !errors.Is(err, ErrGone) {
		return Accepted{}, fmt.Errorf("submit prepared message: %w", err)
	}
	// The caller is about to record that this is done: that must not be durable before the
	// rename is, ours or that of an earlier try or a router's sweep.
	if serr := p.fs.SyncDir(p.routers().first()); serr != nil {
		return Accepted{}, fmt.Errorf("submit prepared message: %w", serr)
	}
	if err != nil {
		return Accepted{}, fmt.Errorf("submit prepared message: %w", err)
	}
	return a, nil
}

func (p *Submissions) submitPrepared(from string) (a Accepted, err error) {
	f, err := p.fs.Open(from, os.O_RDWR, 0)
	if err != nil {
		return a, gone(err)
	}
	defer f.Close()
	// As in NewDraft: a router's poll is not to take it between chmod and rename. Who
	// has the lock instead moves it there, too.
	if _, err := f.TryLock(); err != nil {
		return a, err
	}
	info, err := f.Stat()
	if err == nil {
		var moved bool
		if moved, err = p.isMoved(from, info); err == nil && moved {
			return a, ErrGone
		}
	}
	if err == nil {
		err = p.checkTrust(from, info)
	}
	if err == nil {
		// Crash: in public/ as a message that a sweep moves on, as the record has it.
		err = f.Chmod(p.mode(true) | mark)
	}
	if err != nil {
		return a, err
	}
	a = Accepted{ID: IDOf(info), Size: info.Size}
	// Crash: the file is under public/ (recorded, submitted again) or router/.
	a.Name, err = p.moveInMine(from, p.routers().first(), info.Ino, "")
	return a, err
}

// DropPrepared removes public/name, which Prepare left and nothing names yet.
func (p *Submissions) DropPrepared(name string) error {
	// Crash: a file without execute bit that is swept away when it is old.
	if err := p.remove(Public + "/" + name); err != nil {
		return fmt.Errorf("drop prepared message: %w", err)
	}
	return nil
}

// ListPrepared lists the reports and copies in public/ that are being written or are
// prepared, by their names for SubmitPrepared and DropPrepared. Those that no work
// specification names are left over when the process that wrote them is dead. Copies
// are listed when they are an hour old: others than the scheduler prepare them.
func (p *Submissions) ListPrepared(now time.Time) ([]string, error) {
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
		if err == nil && p.checkTrust(e.Name, info) != nil {
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

// isPrepared recognizes a name with such a prefix.
func isPrepared(name string) bool {
	return strings.HasPrefix(name, ReportPrefix+".") || strings.HasPrefix(name, CopyPrefix+".")
}

// isDraft recognizes a name that NewDraft gave to anything but what is prepared:
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

// Inboxes returns the directories in which users leave messages for PickUp.
func (p *Submissions) Inboxes() []string { return p.routers().inboxes() }

// IsInbox reports whether a directory is one of Inboxes.
func (p *Submissions) IsInbox(dir string) bool { return p.routers().isInbox(dir) }

// draftGrace is how long a draft is left alone after its last write, whoever has it.
const draftGrace = time.Hour

// SweepDrafts removes what dead submitters were writing in public/: files with the
// names that NewDraft gives, without execute bit, not locked, and not written to for an
// hour (K4). No submitter was answered for them. Other programs' files are left, because
// those do not lock, and so are reports: a work specification may name one that
// is not submitted yet. Any number of routers may call it at once.
func (p *Submissions) SweepDrafts(now time.Time) ([]Recovered, error) {
	return p.sweepPublic(func(name string) (*Recovered, error) {
		if !isDraft(path.Base(name)) {
			return nil, nil
		}
		return p.sweepDraft(name, now)
	})
}

// sweepPublic calls fn for each name in public/, and lists what it did.
func (p *Submissions) sweepPublic(fn func(name string) (*Recovered, error)) (done report, err error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("sweep public: %w", err)
	}
	for _, e := range entries {
		name := Public + "/" + e.Name
		r, err := fn(name)
		done.add(name, r, err)
	}
	return done, nil
}

func (p *Submissions) sweepDraft(name string, now time.Time) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 != 0 || apart(now, info.ModTime) < draftGrace {
		return nil, nil // gone, accepted, or too young
	}
	f, _, err := p.openFree(name, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err // its writer lives
	}
	defer f.Close()
	// Crash: there or not; whoever was writing it is dead either way.
	return &Recovered{Action: Swept, Name: name, Detail: "its writer is dead; its submitter was never answered"}, p.remove(name)
}

// DefaultPublicKeep is how long another program's unfinished file stays in public/.
const DefaultPublicKeep = 7 * 24 * time.Hour

// SweepForeign puts other programs' files in public/ into quarantine/ that were never
// accepted and that no one has touched for so long: regular files without execute bit,
// whose names we do not give, not locked. Whether such a file is open cannot be known:
// its writer need not lock, may be another user's, and may live in another container.
// One that comes back finds its name gone and reports that to its user; what it wrote is in
// quarantine/. keep 0: nothing is done. Any number of routers may call it at once.
func (p *Submissions) SweepForeign(now time.Time, keep time.Duration) ([]Recovered, error) {
	if keep <= 0 {
		return nil, nil
	}
	return p.sweepPublic(func(name string) (*Recovered, error) {
		if base := path.Base(name); isDraft(base) || isPrepared(base) {
			return nil, nil
		}
		return p.sweepForeign(name, now, keep)
	})
}

func (p *Submissions) sweepForeign(name string, now time.Time, keep time.Duration) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	// A file whose content is old may have been put there just now.
	if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 != 0 || now.Sub(info.ModTime) < keep || now.Sub(info.CTime) < keep {
		return nil, nil
	}
	f, _, err := p.openFree(name, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err
	}
	// The lock keeps a writer that has one from being taken for none.
	defer func() { _ = f.Close() }()
	// Crash: see Quarantine.
	return p.putAside(name, "abandoned", fmt.Sprintf("from %s: another program's, %d bytes, not accepted and not written to since %s",
		name, info.Size, info.ModTime.UTC().Format(time.RFC3339)))
}

// UnfinishedError refuses a start with --strict (A7).
type UnfinishedError struct{ Files []Recovered }

func (e *UnfinishedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "unfinished files are here, and --strict was asked for; without it they go to %s/:", Quarantine)
	for _, r := range e.Files {
		fmt.Fprintf(&b, "\n  %s: %s", r.Name, r.Detail)
	}
	return b.String()
}

// SettleUnfinished puts what no one will finish in public/ into quarantine/ (A7), as
// Unfinished finds it. With strict it changes nothing and returns an
// *UnfinishedError if there is anything. A daemon calls it at its start; any number
// may at once. What cannot be looked at or moved is among the results as Unreadable.
func (p *Submissions) SettleUnfinished(now, boot time.Time, strict bool) ([]Recovered, error) {
	removeStaging(p.fs)
	found, err := p.Unfinished(now, boot)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if strict {
		return nil, &UnfinishedError{found}
	}
	var done report
	for _, r := range found {
		put, err := p.putAside(r.Name, r.Action, "from "+r.Name+": "+r.Detail)
		done.add(r.Name, put, err)
	}
	return done, nil
}

// Unfinished lists the files in public/ that no one will finish; for none of them a
// submitter got a positive reply. Action is "incomplete" for a file with the execute bit that
// is not as long as its first line records, left alone for a minute or older than the
// last boot; "unfinished" for one without the bit that no living process holds and
// that is older than the last boot, and if it is another program's, which takes no
// lock, than an hour too. Younger drafts of dead writers are SweepDrafts' to remove.
func (p *Submissions) Unfinished(now, boot time.Time) ([]Recovered, error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files: %w", err)
	}
	var found []Recovered
	for _, e := range entries {
		name := Public + "/" + e.Name
		r, err := p.unfinished(name, now, boot)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, fs.ErrPermission) {
			return found, fmt.Errorf("look at %s: %w", name, err)
		}
		if r != nil {
			found = append(found, *r)
		}
	}
	return found, nil
}

func (p *Submissions) unfinished(name string, now, boot time.Time) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.Mode.IsRegular() {
		return nil, err
	}
	age, rebooted := now.Sub(info.ModTime), info.ModTime.Before(boot)
	accepted := info.Mode&0o100 != 0
	base := path.Base(name)
	switch {
	case accepted && age < foreignGrace && !rebooted:
		return nil, nil // somebody may be copying it in
	case accepted:
	case !rebooted || isPrepared(base):
		return nil, nil
	case !isDraft(base) && age < draftGrace:
		return nil, nil
	}
	f, _, err := p.openFree(name, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err // its writer lives
	}
	defer f.Close()
	if !accepted {
		return &Recovered{Action: "unfinished", Name: name,
			Detail: fmt.Sprintf("%d bytes, written before the last boot; its submitter was never answered", info.Size)}, nil
	}
	ok, err := whole(f)
	if err != nil || ok {
		return nil, err
	}
	return incomplete(name, info), nil
}

func incomplete(name string, info durable.Info) *Recovered {
	return &Recovered{Action: Incomplete, Name: name,
		Detail: fmt.Sprintf("%d bytes, not what its first line says; its submitter was never answered", info.Size)}
}

// Staging is a directory in which the daemons of an earlier version made new files before
// they renamed them to where they belong.
const Staging = ".nursery"

// removeStaging removes the empty files and directories in Staging. A daemon that may not do
// that leaves it to the scheduler, and a daemon of the earlier version makes it anew.
func removeStaging(files durable.FS) {
	dirs, err := files.ReadDir(Staging)
	f, ok := files.(interface{ RemoveDir(name string) error })
	if err != nil || !ok {
		return
	}
	for _, d := range dirs {
		dir := Staging + "/" + d.Name
		list, _ := files.ReadDir(dir)
		for _, e := range list {
			if info, err := files.Stat(dir + "/" + e.Name); err == nil && info.Size == 0 {
				// Crash: the empty file is still there or not; its submitter never got an answer.
				_ = files.Remove(dir + "/" + e.Name)
			}
		}
		_ = f.RemoveDir(dir)
	}
	_ = f.RemoveDir(Staging)
}

// BootTime is when this machine was started, as its clock has it now. A process that
// was writing a file before that is dead. The zero time if the kernel does not report it.
func BootTime() time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()))
}

// recoverPublic moves whole messages of dead daemons to router/. PickUp copies those of
// users.
func (p *Submissions) recoverPublic() (report, error) {
	return p.sweepPublic(func(name string) (*Recovered, error) {
		info, err := p.fs.Stat(name)
		if err != nil || info.Mode&0o100 == 0 || info.Mode&mark == 0 || p.checkTrust(name, info) != nil {
			return nil, nil
		}
		return p.acceptLeft(name)
	})
}

func (p *Submissions) acceptLeft(name string) (*Recovered, error) {
	f, info, err := p.openFree(name, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err // its writer lives
	}
	defer f.Close()
	// The name may be another file's by now.
	if err := p.checkTrust(name, info); err != nil || info.Mode&mark == 0 {
		return nil, err
	}
	ok, err := whole(f)
	if err != nil {
		return nil, err
	}
	if !ok {
		return incomplete(name, info), nil
	}
	// Crash: a whole file or one that has lost bytes, here still. Its writer may have
	// died before its own fsync; in router/ no one would expect that.
	if err := f.Sync(); err != nil {
		return nil, err
	}
	// Crash: public/ or router/, see Commit.
	to, err := p.moveInMine(name, p.routers().first(), info.Ino, "")
	if err != nil {
		return nil, err
	}
	return &Recovered{Action: TakenIn, Name: to, Detail: "from " + name}, nil
}
