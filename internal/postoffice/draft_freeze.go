package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
)

// CommitFrozen makes the message durable and holds it as freezer/<ino>.<cause>, where no
// router takes it from until a person thaws it (M13). As with Commit, nil means that the
// message is the pipeline's; when it errs nothing is left behind.
func (d *Draft) CommitFrozen(cause string) (Accepted, error) {
	a, err := d.commitFrozen(cause)
	if err != nil {
		return Accepted{}, errors.Join(err, d.Abort())
	}
	// The message is accepted; an error of close(2) after fsync changes nothing.
	_ = d.close()
	return a, nil
}

func (d *Draft) commitFrozen(cause string) (Accepted, error) {
	if err := d.complete(); err != nil {
		return Accepted{}, err
	}
	// Crash: without its execute bit the file is an unfinished draft, and swept; nobody was
	// told. With it a sweep would take the message to router/, so it gets that at the end.
	if err := d.f.Sync(); err != nil {
		return Accepted{}, fmt.Errorf("freeze message: %w", err)
	}
	info, err := d.f.Stat()
	if err != nil {
		return Accepted{}, fmt.Errorf("freeze message: %w", err)
	}
	a := Accepted{ID: IDOf(info), Name: Freezer + "/" + inodeName(info.Ino) + "." + reason(cause), Size: info.Size}
	// Crash: under public/, as before, or in freezer/, whole; nobody was told.
	if err := d.p.fs.RenameNew(d.name, a.Name); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return Accepted{}, fmt.Errorf("freeze message: %w: %w", ErrOccupied, err)
		}
		return Accepted{}, fmt.Errorf("freeze message: %w", err)
	}
	// What Commit leaves to a sweep nobody would do here: a rename that the power takes
	// back leaves a draft. So both directories are synced, whatever SYNC says.
	err = errors.Join(d.p.fs.SyncDir(Freezer), d.p.fs.SyncDir(Public))
	if err == nil {
		// Crash: in freezer/ with the mode of a draft, which is no matter there: whose name
		// begins with a number is a message.
		err = d.f.Chmod(d.p.mode(true))
	}
	if err != nil {
		// Crash: in freezer/ as a message that is offered again, or in public/, swept.
		return Accepted{}, errors.Join(fmt.Errorf("freeze message: %w", err), d.p.fs.RenameNew(a.Name, d.name))
	}
	return a, nil
}
