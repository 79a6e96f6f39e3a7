package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/test/disk/blockdev"
	"zmailer/test/load"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Verdict is what became of the mail after a loss of power.
type Verdict struct {
	Cut      blockdev.Cut
	Answered int // messages for which yes was said before
	Repeated int // copies that came again, which is allowed for the last seconds
	Took     time.Duration

	Lost  []string // copies of answered messages that are nowhere
	Wrong []string // everything else that must not be
	Log   string   // of the system that was started on the image, if something is wrong
}

// Bad reports whether a promise is broken.
func (v *Verdict) Bad() bool { return len(v.Lost)+len(v.Wrong) > 0 }

func (v *Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cut %v: %d answered before it; lost %d, wrong %d, repeated %d", v.Cut, v.Answered, len(v.Lost), len(v.Wrong), v.Repeated)
	for _, text := range slices.Concat(v.Lost, v.Wrong) {
		b.WriteString("\n  " + text)
	}
	return b.String()
}

// Judge rebuilds the disk as a cut leaves it, mounts it, starts the system there, lets it
// work until nothing is left to do, and compares. Cuts come in order: blockdev.Builder.
func (r *Run) Judge(ctx context.Context, b *blockdev.Builder, c blockdev.Cut) (v *Verdict, err error) {
	begin := time.Now()
	v = &Verdict{Cut: c}
	image := filepath.Join(r.site.dir, "image")
	defer func() {
		v.Took = time.Since(begin)
		err = errors.Join(err, os.RemoveAll(image))
	}()
	if err := b.Build(image, c); err != nil {
		return v, err
	}
	if err := r.site.mountImage(image); err != nil {
		v.Wrong = append(v.Wrong, fmt.Sprintf("the kernel does not mount the image: %v", err))
		v.Lost = append(v.Lost, "everything")
		return v, nil
	}
	defer func() { err = errors.Join(err, r.site.Unmount()) }()
	return v, r.compare(ctx, v)
}

// world is what can be seen of a system from outside.
type world struct {
	*Run
	at      int // position of the loss of power
	suite   *suite.Suite
	load    load.Load
	sinkHad int
	before  load.Copies

	mu     sync.Mutex
	doubts map[string]int
}

func (r *Run) compare(ctx context.Context, v *Verdict) error {
	was := r.site.Load.Suite
	w := &world{Run: r, at: v.Cut.At, doubts: map[string]int{}}
	w.suite = &suite.Suite{Bin: was.Bin, Dir: was.Dir, SMTPAddr: was.SMTPAddr, OnEvent: w.note}
	w.load = load.Load{Suite: w.suite, Sink: r.site.Load.Sink, Size: r.site.Load.Size}
	w.sinkHad, _ = w.load.Sink.Count()
	sunk := w.load.Sink.Messages()[:r.sunk]
	until := slices.IndexFunc(sunk, func(m *peer.Message) bool { return r.Log.Position(m.Time) > w.at })
	if until >= 0 {
		sunk = sunk[:until]
	}
	var err error
	if w.before, err = w.load.Copies(sunk); err != nil {
		return err
	}
	mixed, err := w.mixed()
	if err != nil {
		return err
	}
	defer func() { v.Wrong = append(v.Wrong, mixed...) }()
	if err := w.age(); err != nil {
		return err
	}
	defer w.suite.Kill()
	if err := w.suite.Start(); err != nil {
		v.Wrong, v.Log = append(v.Wrong, fmt.Sprintf("the system does not start: %v", err)), w.suite.Log()
		return nil
	}
	return w.await(ctx, v)
}

// mixed lists the files of one message in which another message's bytes are, as the disk
// has them before anything is started. Blocks that were not written may show what a
// removed file had there.
func (w *world) mixed() (list []string, err error) {
	for _, dir := range []string{w.suite.PostOffice(), filepath.Join(w.suite.Dir, "mail")} {
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() && slices.Contains([]string{"ledger", "orders"}, d.Name()) {
				return cmp.Or(err, filepath.SkipDir)
			}
			if !d.Type().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			if tokens := load.Tokens(text); len(tokens) > 1 || slices.Contains(tokens, removed) {
				list = append(list, fmt.Sprintf("%s holds text of %v: %.300q", path, tokens, bytes.Trim(text, "\x00")))
			}
			return err
		}))
	}
	return list, err
}

// age makes specifications and locks of mailboxes older, as they are when a machine has
// been off for hours: a specification that is not complete and was written a moment ago
// is given time, and so is a lock whose text was lost.
func (w *world) age() error {
	old := time.Now().Add(-2 * time.Hour)
	var errs []error
	for _, pattern := range []string{filepath.Join(w.suite.PostOffice(), "transport", "*"), w.load.Box() + ".lock"} {
		names, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, name := range names {
			errs = append(errs, os.Chtimes(name, old, old))
		}
	}
	return errors.Join(errs...)
}

// await looks until all is well and nothing is left to do, or nothing changes any more.
func (w *world) await(ctx context.Context, v *Verdict) error {
	// As long nothing changes where nothing will; idle: where there is no work, either.
	const still, idle = 10 * time.Second, 2 * time.Second
	last, since, good := "", time.Now(), 0
	for {
		v.Lost, v.Wrong, v.Repeated, v.Answered = nil, nil, 0, 0
		left, err := w.left()
		if err != nil {
			return err
		}
		if err := w.examine(v); err != nil {
			return err
		}
		for _, name := range left {
			v.Wrong = append(v.Wrong, "left: "+name)
		}
		now := v.String()
		if now != last {
			last, since = now, time.Now()
		}
		if good++; v.Bad() {
			good = 0
		}
		// A file that is moved while the directories are read may be missed once.
		if good == 2 {
			return nil
		}
		if unchanged := time.Since(since); unchanged > still || unchanged > idle && len(left) == 0 {
			v.Log = w.suite.Log()
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond): // files of other processes have no event
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// note counts the deliveries that the system's log calls in doubt.
func (w *world) note(e suite.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range load.Doubts([]suite.Event{e}) {
		w.doubts[id] += n
	}
}

// left lists the files that mean work for the daemons. A draft without its bit, or one
// that is not whole, is no message: no submitter was answered. A specification without its message waits for a minute
// and is put aside; what it says of is delivered, or the message is elsewhere.
func (w *world) left() ([]string, error) {
	all, err := w.suite.Left()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool {
		dir, base := filepath.Split(name)
		path := filepath.Join(w.suite.PostOffice(), name)
		switch filepath.Clean(strings.SplitAfter(dir, "/")[0]) {
		case "public":
			info, err := os.Stat(path)
			if err != nil || info.Mode()&0o100 == 0 {
				return true
			}
			text, err := os.ReadFile(path)
			return err != nil || !w.load.Ended(text)
		case "transport":
			_, err := os.Stat(filepath.Join(w.suite.PostOffice(), "queue", strings.TrimPrefix(name, "transport/")))
			return err != nil
		case "quarantine", "postman", "freezer":
			return true
		}
		return strings.HasPrefix(base, ".tries.")
	}), nil
}

// examine compares what was answered before the cut with what is there.
func (w *world) examine(v *Verdict) error {
	// The sink first: what a mailbox has not yet is missing, not twice.
	sunk := w.load.Sink.Messages()[w.sinkHad:]
	now, err := w.load.Copies(sunk)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, t := range w.tries {
		known[t.Token] = true
		answered := t.Fate == load.Accepted && w.Log.Position(t.Heard) <= w.at
		if answered {
			v.Answered++
		}
		w.try(v, t, answered, w.before[t.Token], now[t.Token])
	}
	for _, found := range []load.Copies{w.before, now} {
		for token, copies := range found {
			if known[token] {
				continue
			}
			for where, list := range copies {
				for _, c := range list {
					if !w.remnant(c, token, where) {
						v.Wrong = append(v.Wrong, fmt.Sprintf("at %s is a message that was never sent: %.200q", where, c.Text))
					}
				}
			}
		}
	}
	slices.Sort(v.Wrong)
	v.Wrong = slices.Compact(v.Wrong)
	return nil
}

// try compares one message with its copies. Those in mailboxes are in both lists; what
// the sink has is in the list of its time.
func (w *world) try(v *Verdict, t load.Try, answered bool, before, now map[string][]load.Copy) {
	wanted := t.Kind.Destinations()
	for _, found := range []map[string][]load.Copy{before, now} {
		for where := range found {
			if !slices.Contains(wanted, where) {
				v.Wrong = append(v.Wrong, fmt.Sprintf("%v: a copy at %s", &t, where))
			}
		}
	}
	for _, where := range wanted {
		remnant := func(c load.Copy) bool { return w.remnant(c, t.Token, where) }
		old, again := slices.DeleteFunc(slices.Clone(before[where]), remnant), slices.DeleteFunc(slices.Clone(now[where]), remnant)
		if !strings.HasPrefix(where, "sink") {
			again = added(again, old)
		}
		whole := 0
		for _, c := range slices.Concat(old, again) {
			if c.Whole {
				whole++
			} else {
				v.Wrong = append(v.Wrong, fmt.Sprintf("%v: the copy %s at %s is not what was sent: %q", &t, c.ID, where, c.Text))
			}
		}
		if answered && whole == 0 {
			v.Lost = append(v.Lost, fmt.Sprintf("%v: nothing at %s", &t, where))
		}
		allowed := 1 + w.inDoubt(again)
		if w.settledTokens[t.Token] && w.at >= w.Settled {
			allowed-- // it was delivered long ago
		}
		if len(again) > allowed || len(old) > 1 {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%v: %d copies at %s before the loss of power and %d after it", &t, len(old), where, len(again)))
		}
		if len(old) > 0 {
			v.Repeated += len(again)
		}
	}
}

// remnant reports whether a text is what a loss of power has left of a delivery to the
// mbox file that no submitter was answered about: a part of one message, or zeros.
func (w *world) remnant(c load.Copy, token, where string) bool {
	return where == "box" && !c.Whole && load.Alone(bytes.Trim(c.Text, "\x00\n"), token) &&
		slices.ContainsFunc(w.before[token][where], func(b load.Copy) bool {
			return bytes.HasPrefix(c.Text, bytes.TrimRight(b.Text, "\n"))
		})
}

func (w *world) inDoubt(copies []load.Copy) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, seen := 0, map[string]bool{}
	for _, c := range copies {
		if !seen[c.ID] {
			n += w.doubts[c.ID]
		}
		seen[c.ID] = true
	}
	return n
}

// added returns the copies of a mailbox that were not there before.
func added(now, before []load.Copy) []load.Copy {
	before = slices.Clone(before)
	return slices.DeleteFunc(slices.Clone(now), func(c load.Copy) bool {
		i := slices.IndexFunc(before, func(b load.Copy) bool { return bytes.Equal(b.Text, c.Text) })
		if i >= 0 {
			before = slices.Delete(before, i, i+1)
		}
		return i >= 0
	})
}
