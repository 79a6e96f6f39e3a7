package act

import (
	"errors"
	"slices"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
)

// Cleanup is what a cleanup has deleted and found.
type Cleanup struct {
	Dropped []Cleaned `json:"dropped"`
	Kept    []Kept    `json:"kept"`
	DryRun  bool      `json:"dry_run,omitempty"`
}

// Cleaned is a file that was deleted, or would be.
type Cleaned struct {
	File string `json:"file"`
	Text string `json:"text"`
	Left string `json:"left,omitempty"` // why it could not be
}

// Kept is what no age removes from a directory.
type Kept struct {
	Directory     string `json:"directory"`
	State         string `json:"state"`
	Files         int    `json:"files"`
	OldestSeconds int64  `json:"oldest_seconds"`
}

// Clean deletes what is old enough, unless dry.
func Clean(po *postoffice.PostOffice, now time.Time, postmanKeep, removedKeep time.Duration, dry bool) (*Cleanup, error) {
	x := &Cleanup{Dropped: []Cleaned{}, Kept: []Kept{}, DryRun: dry}
	copies, err := po.Aside.SweepCopies(now, postmanKeep, dry)
	x.swept(copies)
	err = errors.Join(err, x.removed(po, now, removedKeep), x.orders(po, now, removedKeep))
	texts, terr := po.Aside.SweepReasons(now, dry)
	x.swept(texts)
	return x, errors.Join(err, terr, x.wait(view.New(po, now)))
}

func (x *Cleanup) swept(list []postoffice.Recovered) {
	for _, r := range list {
		d := Cleaned{File: r.Name, Text: r.Detail}
		if r.Action == postoffice.Unreadable {
			d = Cleaned{File: r.Name, Left: r.Detail}
		}
		x.Dropped = append(x.Dropped, d)
	}
}

// removed drops what is too old in removed/.
func (x *Cleanup) removed(po *postoffice.PostOffice, now time.Time, keep time.Duration) error {
	if keep <= 0 {
		return nil
	}
	var list []postoffice.RemovedMessage
	var err error
	if x.DryRun {
		list, err = po.Removed.List()
		list = slices.DeleteFunc(list, func(m postoffice.RemovedMessage) bool { return now.Sub(m.Since) < keep })
	} else {
		list, err = po.Removed.Sweep(now, keep)
	}
	for _, m := range list {
		x.Dropped = append(x.Dropped, Cleaned{File: postoffice.Removed + "/" + m.Name, Text: "removed from " + m.From + "/ at " + m.Since.Format(time.DateTime)})
	}
	return err
}

// orders drops what is too old in orders/.
func (x *Cleanup) orders(po *postoffice.PostOffice, now time.Time, keep time.Duration) error {
	if keep <= 0 {
		return nil
	}
	list, err := po.Operations.List()
	if err != nil {
		return err
	}
	for _, id := range list {
		if now.Sub(id.Time()) >= keep {
			x.Dropped = append(x.Dropped, Cleaned{File: postoffice.Orders + "/" + string(id), Text: "an order of " + id.Time().Local().Format(time.DateTime)})
		}
	}
	if x.DryRun {
		return nil
	}
	return po.Operations.Sweep(now, keep)
}

// wait counts what no age removes.
func (x *Cleanup) wait(s *view.Spool) error {
	var errs []error
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine} {
		if !s.Exists(dir) {
			continue
		}
		at := map[string]int{}
		errs = append(errs, s.EachFile(dir, func(f view.File) {
			state := s.StateIn(f)
			if view.IsReason(f) {
				return
			}
			i, ok := at[state]
			if !ok {
				i = len(x.Kept)
				at[state] = i
				x.Kept = append(x.Kept, Kept{Directory: dir, State: state})
			}
			x.Kept[i].Files++
			x.Kept[i].OldestSeconds = max(x.Kept[i].OldestSeconds, int64(s.Now.Sub(f.Info.ModTime)/time.Second))
		}))
	}
	return errors.Join(errs...)
}
