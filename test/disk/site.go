package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"zmailer/test/disk/blockdev"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Site is a mail system whose files are all on one disk. The sink that plays the other
// hosts is not on it: what it was given has left.
type Site struct {
	FS   blockdev.FileSystem
	Disk *blockdev.Disk
	Load *load.Load

	dir     string // of this site
	point   string // where the file system is mounted
	mounted bool
	closed  bool
}

// patience bounds a wait for what takes a second on a machine that is idle.
const patience = 60 * time.Second

// New makes a disk in a new directory, a file system on it, and a mail system there. It
// is not started.
func New(dir, bin string, fs blockdev.FileSystem) (_ *Site, err error) {
	s := &Site{FS: fs, dir: dir, point: filepath.Join(dir, "mnt")}
	if err := errors.Join(os.MkdirAll(s.point, 0o755), os.Mkdir(filepath.Join(dir, "disk"), 0o755)); err != nil {
		return nil, err
	}
	s.Disk, err = blockdev.Start(blockdev.Options{Dir: filepath.Join(dir, "disk"), Size: fs.Size})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := fs.Make(s.Disk.Image()); err != nil {
		return nil, err
	}
	if err := s.Mount(); err != nil {
		return nil, err
	}
	s.Load, err = load.Prepare(&suite.Suite{
		Bin: bin, Dir: filepath.Join(s.point, "site"),
		Settings: map[string]string{"ROUTERPOLL": "1s", "SCHEDULERPOLL": "1s"},
	})
	if err != nil {
		return nil, err
	}
	return s, errors.Join(s.Load.Suite.Init(), s.soil())
}

// removed is the token of a message that was removed before the load. Its text is where
// the disk has room.
const removed = "t999999t"

// soil fills free blocks with lines of a message that is removed then. A block that is
// given to a file and not written shows them.
func (s *Site) soil() error {
	line := fmt.Sprintf("%s %s\n", removed, strings.Repeat("y", 53)) // 64 bytes
	name := filepath.Join(s.point, "removed")
	if err := os.WriteFile(name, []byte(strings.Repeat(line, 24<<20/len(line))), 0o600); err != nil {
		return err
	}
	return errors.Join(blockdev.Sync(s.point), os.Remove(name), blockdev.Sync(s.point))
}

// Mount mounts the site's disk.
func (s *Site) Mount() error { return s.mountImage(s.Disk.Image()) }

func (s *Site) mountImage(image string) error {
	err := s.FS.Mount(image, s.point)
	s.mounted = err == nil
	return err
}

// Unmount unmounts what is mounted. The mail system must not run.
func (s *Site) Unmount() error {
	if !s.mounted {
		return nil
	}
	err := blockdev.Unmount(s.point, patience)
	s.mounted = err != nil
	return err
}

// WithoutSyncs has the site's programs run without a call that waits for the disk.
func (s *Site) WithoutSyncs() {
	s.Load.Suite.Launch = func(cmd *exec.Cmd) error { return StartWithoutSyncs(cmd) }
	s.Load.StartSubmit = StartWithoutSyncs
	// Another user may not run this program, which the filter is set by.
	s.Load.Ways = []string{load.BySMTP, load.BySubmit}
}

// Close ends everything. It may be called again.
func (s *Site) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	if s.Load != nil {
		s.Load.Suite.Kill()
		s.Load.Close()
	}
	err := s.Unmount()
	if s.Disk == nil {
		return err
	}
	return errors.Join(err, s.Disk.Close(), os.RemoveAll(s.dir))
}

// Under has the site take rounds of messages of all kinds, several rounds at once.
func (s *Site) Under(ctx context.Context, rounds, atOnce int) error {
	work, errs := make(chan int), make([]error, rounds)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range work {
				errs[i] = s.Load.Round(ctx, i)
			}
		})
	}
	for i := range rounds {
		work <- i
	}
	close(work)
	all.Wait()
	return errors.Join(errs...)
}

// Run is what happened on a site's disk under load, and when.
type Run struct {
	site *Site
	Log  *blockdev.Log
	// Begin is the position at which the load began, End that of its end.
	Begin, End int
	// Settled were delivered and on the disk at this position.
	Settled       int
	settledTokens map[string]bool
	tries         []load.Try
	sunk          int // messages that the sink has of the run
}

// Record starts the site, has it take mail in two parts, and ends it without warning.
// Between the parts everything is delivered and written to the disk: what was delivered
// in the first part must not come again after a loss of power in the second. The site is
// unmounted then.
func (s *Site) Record(ctx context.Context, rounds int) (*Run, error) {
	r := &Run{site: s, settledTokens: map[string]bool{}}
	if err := s.Load.Suite.Start(); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := s.Under(ctx, rounds, 3); err != nil {
		return nil, fmt.Errorf("first part of the load: %w", err)
	}
	if _, err := s.Load.Drain(ctx); err != nil {
		return nil, fmt.Errorf("first part of the load: %w", err)
	}
	for _, t := range s.Load.Tries() {
		r.settledTokens[t.Token] = true
	}
	if err := blockdev.Sync(s.point); err != nil {
		return nil, err
	}
	settled := time.Now()
	if err := s.Under(ctx, rounds, 3); err != nil {
		return nil, fmt.Errorf("second part of the load: %w", err)
	}
	end := time.Now()
	s.Load.Suite.Kill()
	r.sunk, _ = s.Load.Sink.Count()
	r.tries = s.Load.Tries()
	if err := s.Unmount(); err != nil {
		return nil, err
	}
	var err error
	if r.Log, err = s.Disk.Log(); err != nil {
		return nil, err
	}
	r.Begin, r.Settled, r.End = r.Log.Position(begin), r.Log.Position(settled), r.Log.Position(end)
	return r, nil
}

// drainWhole waits until the daemons have nothing left to do. Drafts that are not whole
// stay: no submitter was answered.
func (s *Site) drainWhole(ctx context.Context) error {
	w := &world{suite: s.Load.Suite, load: load.Load{Suite: s.Load.Suite, Size: s.Load.Size}}
	for idle := 0; idle < 2; idle++ {
		left, err := w.left()
		if err != nil {
			return err
		}
		if len(left) > 0 {
			idle = -1
		}
		select {
		case <-time.After(20 * time.Millisecond): // files of other processes have no event
		case <-ctx.Done():
			return fmt.Errorf("the postoffice holds %q: %w", left, context.Cause(ctx))
		}
	}
	return nil
}
