package engine

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// A new scheduler.conf is read beside the engine, when somebody says so (SIGHUP) or the
// file has changed. One that is bad is refused and the old one stays; a good one takes
// effect in one turn (docs/scheduler.conf.md).

// Reread is where a new scheduler.conf comes from.
type Reread struct {
	File string                     // watched for changes; "": a built-in one is used
	Ask  <-chan os.Signal           // a reason to read it now; may be nil
	Read func() (*conf.File, error) // nil: it is read once
}

// reconfiguration has a new scheduler.conf take effect.
type reconfiguration struct {
	*engine
	next map[*thread.Ring]*conf.Settings // while it takes effect
}

// follow reads scheduler.conf again until ctx is done.
func (e *reconfiguration) follow(ctx context.Context) {
	r := e.conf.Reread
	if r.Read == nil {
		return
	}
	var hints <-chan watch.Hint
	if r.File != "" {
		name := filepath.Base(r.File)
		w := watch.New(ctx, []string{filepath.Dir(r.File)}, e.conf.Look, func(s string) bool { return s == name }, e.log)
		defer w.Wait()
		hints = w.C()
	}
	last := e.conf.Conf.Text
	var known fileState // the first hint, which comes at once, has it looked at
	// What is being written is read when it has been left alone for so long.
	gone, quiet := false, time.NewTimer(time.Hour)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Ask:
			known = stateOf(r.File)
			last = e.readAgain("asked", last)
			continue
		case <-hints:
		case <-quiet.C:
		}
		now := stateOf(r.File)
		if now == known {
			continue
		}
		if missing := now == (fileState{}); missing && !gone {
			// Somebody puts another one in its place.
			gone = true
			quiet.Reset(quietFor)
			continue
		}
		gone = false
		if age := time.Since(now.written); age >= 0 && age < quietFor {
			quiet.Reset(quietFor - age)
			continue
		}
		known = now
		last = e.readAgain("changed", last)
	}
}

// quietFor is how long a file must not have been written before it is read by itself.
const quietFor = time.Second

// fileState tells one version of a file from another without reading it.
type fileState struct {
	written time.Time
	size    int64
	inode   uint64
}

func stateOf(file string) fileState {
	info, err := os.Stat(file)
	if err != nil {
		return fileState{}
	}
	s := fileState{written: info.ModTime(), size: info.Size()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = stat.Ino
	}
	return s
}

// readAgain reads the configuration and hands it to the engine if it can be used.
func (e *reconfiguration) readAgain(why, last string) (text string) {
	e.conf.Service.Reloading()
	next, err := e.conf.Reread.Read()
	if err != nil {
		e.conf.Service.Ready("serves %s; a new scheduler.conf was refused", e.conf.Dir)
		for _, err := range conf.Errors(err) {
			e.log.Error("conf-refused", "reason", err, "advice", "the old one stays in use; scheduler --check-config tells more")
		}
		return last
	}
	if why == "asked" || next.Text != last {
		e.post(func() {
			e.reconfigure(next, why)
			e.conf.Service.Ready("serves %s", e.conf.Dir)
		})
	} else {
		e.conf.Service.Ready("serves %s", e.conf.Dir)
	}
	return next.Text
}
