package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
)

// Count is recipients and messages.
type Count struct {
	Recipients int64 `json:"recipients"`
	Messages   int64 `json:"messages"`
}

func (c *Count) add(n int64) { c.Recipients += n; c.Messages++ }

// Kind is what is wrong with one message.
type Kind string

// Kinds.
const (
	Missing  Kind = "missing"   // open in the ledger and not on the disk
	DiskOnly Kind = "disk-only" // in queue/, and the ledger does not know it
	Returned Kind = "returned"  // ended in the ledger, and to be delivered by the disk
	Uneven   Kind = "uneven"    // ended with another number of recipients than it had
	// Unreported: ended with more failures to report to a sender than reports covered.
	Unreported Kind = "unreported"
)

// Mismatch is a message that is on one side only, or not the same on both.
type Mismatch struct {
	ID   postoffice.SpoolID `json:"id"`
	Kind Kind               `json:"kind"`
	// Recipients that the ledger's side has and the disk's has not.
	Recipients int64  `json:"recipients"`
	Ledger     string `json:"ledger"` // what the ledger says
	Disk       string `json:"disk"`   // what the disk says
}

// Balance compares what the ledger says with what is on the disk.
type Balance struct {
	Since time.Time `json:"since,omitzero"` // when the ledger began; zero: it is empty
	Sums
	NotEntered Count            `json:"not_entered"` // on the disk, accepted, and not routed yet: their lines are to come
	Queued     map[string]Count `json:"queued"`      // by directory: public, router and those beside it, queue
	Held       map[string]Count `json:"held"`        // by directory: deferred, freezer, postman, quarantine, removed
	Moving     Count            `json:"moving"`      // came or went while we looked
	Difference Count            `json:"difference"`
	Wrong      []Mismatch       `json:"wrong"`
	BadLines   int              `json:"bad_lines,omitempty"` // that could not be read
}

// Patience says how often Compare looks again before it calls something wrong.
type Patience struct {
	Looks int           // at least 1
	Pause time.Duration // between them

	// Before is called before Settle compares, if it does; nil: nothing is to be done.
	Before func() error

	// Seen is called with each message that Compare meets on the disk; nil: no one counts.
	Seen func()

	// literal: a message is known by its spool ID alone. Lines of the younger of two that
	// had one inode number may be lost; they would be taken for one that was touched.
	literal bool
	between func() // called before each pause; nil: nothing
}

// Compare compares ledger and disk. It changes nothing and takes no lock, beside
// running daemons: what seems wrong is looked at again, and is wrong only if it was so
// at every look.
func Compare(ctx context.Context, po *postoffice.PostOffice, p Patience) (*Balance, error) {
	var suspects map[postoffice.SpoolID]Kind
	for look := 1; ; look++ {
		x, err := compareOnce(po, &p)
		if err != nil {
			return nil, err
		}
		found := map[postoffice.SpoolID]Kind{}
		for _, w := range x.wrong {
			if look == 1 || suspects[w.ID] == w.Kind {
				found[w.ID] = w.Kind
			}
		}
		suspects = found
		if len(suspects) == 0 || look >= p.Looks {
			return x.balance(suspects), nil
		}
		if p.between != nil {
			p.between()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(p.Pause):
		}
	}
}

// comparison is one look.
type comparison struct {
	literal bool // see Patience
	po      *postoffice.PostOffice
	before  *Book // read before the disk
	book    *Book // and after it
	seen    *sights
	taken   map[*sight]bool // known to the ledger, or another name of what it knows
	result  Balance
	wrong   []Mismatch
	undone  map[postoffice.SpoolID]bool // removed by an operator, and put back since
}

func compareOnce(po *postoffice.PostOffice, p *Patience) (*comparison, error) {
	x := &comparison{po: po, literal: p.literal, taken: map[*sight]bool{}, undone: map[postoffice.SpoolID]bool{}}
	x.result.Queued, x.result.Held = map[string]Count{}, map[string]Count{}
	var err error
	if x.before, err = Read(po); err != nil {
		return nil, err
	}
	if x.seen, err = look(po, p.Seen); err != nil {
		return nil, err
	}
	if x.book, err = Read(po); err != nil {
		return nil, err
	}
	var absent []postoffice.SpoolID
	for id, r := range x.book.Records {
		if r.bare() && r.Open() {
			continue // only what a report has recorded of it is known
		}
		s := x.seen.find(id)
		if s != nil {
			x.taken[s] = true
		}
		switch {
		case r.Open() && s != nil:
			x.hold(s, r.Size())
		case r.Open():
			absent = append(absent, id)
		case r.uneven():
			x.say(id, Uneven, r.Size()-r.End.Total(), seenAt(s))
		case r.Unreported > 0:
			x.say(id, Unreported, 0, seenAt(s))
		case s != nil:
			if err := x.returned(id, r, s); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(absent, byAge)
	for _, id := range absent {
		if err := x.absent(id); err != nil {
			return nil, err
		}
	}
	for _, s := range x.seen.all {
		if !x.taken[s] {
			if err := x.unknown(s); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

func byAge(a, b postoffice.SpoolID) int {
	return cmp.Or(cmp.Compare(a.MTime, b.MTime), cmp.Compare(a.Ino, b.Ino))
}

// hold counts a message that is on both sides.
func (x *comparison) hold(s *sight, n int64) {
	list := x.result.Held
	if s.dir == postoffice.Public || s.dir == postoffice.Queue || postoffice.IsRouterDir(s.dir) {
		list = x.result.Queued
	}
	c := list[s.dir]
	c.add(n)
	list[s.dir] = c
}

// returned looks at a message that has ended and whose file is there.
func (x *comparison) returned(id postoffice.SpoolID, r *Record, s *sight) error {
	switch s.dir {
	case postoffice.Removed, postoffice.Quarantine:
		return nil // for an operator
	case postoffice.Queue:
		n, open, err := s.specification(x.po)
		if err != nil || open == 0 {
			return unlessGone(err) // it is finishing
		}
		if b := x.before.Records[id]; b != nil && b.Open() || !s.there(x.po.FS()) {
			return nil // it ended while we looked
		}
		if r.End.Removed > 0 {
			x.undo(id, s)
			return nil
		}
		x.hold(s, n)
		x.say(id, Returned, -n, s.path()+fmt.Sprintf(", %d of %d recipients open", open, n))
	default:
		if !s.there(x.po.FS()) {
			return nil
		}
		if r.Why == ByPerson {
			x.undo(id, s)
			return nil
		}
		x.hold(s, r.Size())
		x.say(id, Returned, -r.Size(), s.path())
	}
	return nil
}

// undo counts a removed message that was put back as open: the next line will say so.
func (x *comparison) undo(id postoffice.SpoolID, s *sight) {
	x.undone[id] = true
	x.hold(s, x.book.Records[id].Size())
}

// absent looks for an open message that was not seen under its spool ID: somebody may
// have touched or copied its file.
func (x *comparison) absent(id postoffice.SpoolID) error {
	r := x.book.Records[id]
	if x.before.Records[id] == nil {
		x.result.Moving.add(r.Size())
		return nil
	}
	hint := "nowhere"
	for _, s := range x.seen.byInode[id.Ino] {
		if x.literal || x.taken[s] || s.id.MTime < id.MTime {
			continue
		}
		same := s.dir == postoffice.Queue || s.number != s.id.Ino
		if !same {
			var err error
			if _, same, err = s.head(x.po.FS()); err != nil {
				return unlessGone(err)
			}
		}
		if same {
			x.taken[s] = true
			x.hold(s, r.Size())
			return nil
		}
		hint = "nowhere; " + s.path() + " has its inode number, and another time"
	}
	x.say(id, Missing, r.Size(), hint)
	return nil
}

// unknown looks at a message that the ledger does not know.
func (x *comparison) unknown(s *sight) error {
	switch s.dir {
	case postoffice.Quarantine, postoffice.Removed:
		return nil // never accepted, or done with and forgotten
	case postoffice.Queue:
		n, _, err := s.specification(x.po)
		if err != nil || !s.there(x.po.FS()) {
			return unlessGone(err)
		}
		x.hold(s, n)
		x.say(s.id, DiskOnly, -n, fmt.Sprintf("%s, recipients: %d", s.path(), n))
		return nil
	}
	n, _, err := s.head(x.po.FS())
	if err != nil || !s.there(x.po.FS()) {
		return unlessGone(err)
	}
	x.result.NotEntered.add(n)
	x.hold(s, n)
	return nil
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, postoffice.ErrGone) {
		return nil
	}
	return err
}

func seenAt(s *sight) string {
	if s == nil {
		return "nowhere"
	}
	return s.path()
}

func (x *comparison) say(id postoffice.SpoolID, k Kind, n int64, disk string) {
	x.wrong = append(x.wrong, Mismatch{ID: id, Kind: k, Recipients: n, Ledger: x.book.Records[id].words(), Disk: disk})
}

// words describes a record.
func (r *Record) words() string {
	if r == nil {
		return "does not know it"
	}
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if r.In >= 0 {
		add("accepted for %d", r.In)
	}
	if r.Found >= 0 {
		add("found with %d", r.Found)
	}
	if r.Routed >= 0 {
		add("routed to %d", r.Routed)
	}
	if r.Open() {
		add("open")
	} else {
		add("%s:%s", r.Ended, r.End.append(nil))
	}
	if r.Unreported > 0 {
		add("%d of %d failures not reported", r.Unreported, r.End.Failed)
	}
	add("last line %s", time.UnixMilli(r.Time).Format("2006-01-02 15:04:05"))
	return strings.Join(list, ", ")
}

// balance makes the result of the last look: wrong is what was wrong at all of them.
func (x *comparison) balance(wrong map[postoffice.SpoolID]Kind) *Balance {
	b := &x.result
	b.BadLines, b.Sums = x.book.Bad, x.book.Sum
	if x.book.Since > 0 {
		b.Since = time.UnixMilli(x.book.Since)
	}
	for id, r := range x.book.Records {
		if x.undone[id] {
			open := *r
			if open.bare() {
				open.Routed = int32(r.Size())
			}
			open.end(None, Outcomes{}, "")
			r = &open
		}
		b.add(r)
	}
	b.Wrong = []Mismatch{}
	for _, w := range x.wrong {
		if wrong[w.ID] != w.Kind {
			b.Moving.Recipients += w.Recipients
			b.Moving.Messages += w.messages()
			continue
		}
		b.Wrong = append(b.Wrong, w)
		b.Difference.Recipients += w.Recipients
		b.Difference.Messages += w.messages()
	}
	slices.SortFunc(b.Wrong, func(v, w Mismatch) int { return byAge(v.ID, w.ID) })
	return b
}

// messages returns what the mismatch is of the difference in messages.
func (w *Mismatch) messages() int64 {
	switch w.Kind {
	case Missing:
		return 1
	case DiskOnly, Returned:
		return -1
	}
	return 0
}
