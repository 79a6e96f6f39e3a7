package ledger

import (
	"slices"

	"zmailer/internal/postoffice"
)

// Record is what the lines of one spool ID say.
type Record struct {
	In, Routed, Found int32 // recipients; -1: no such line
	Entered           bool  // the router expects an In line
	// Ended is how the message left: Done, Gone or Unknown; None while it is open.
	Ended Verb
	End   Outcomes
	Why   string
	// Unreported is the number of recipients in End.Failed that no report covers.
	Unreported int64
	Time       int64 // of the last line, milliseconds since 1970
}

// Open reports whether the message is to be on the disk.
func (r *Record) Open() bool { return r.Ended == None }

// Size returns the recipients that are to have an outcome.
func (r *Record) Size() int64 {
	for _, n := range []int32{r.Routed, r.In, r.Found} {
		if n >= 0 {
			return int64(n)
		}
	}
	return r.End.Total()
}

// bare: nothing says that it was accepted.
func (r *Record) bare() bool { return r.In < 0 && r.Routed < 0 && r.Found < 0 }

// uneven: it ended with another number of recipients than it had.
func (r *Record) uneven() bool { return r.Ended != None && r.Size() != r.End.Total() }

// Sums count recipients, and messages apart.
type Sums struct {
	Accepted int64 `json:"accepted"`
	Added    int64 `json:"added"` // by aliases and lists; below zero if routing joined some
	Found    int64 `json:"found"` // on the disk, without having been entered
	Outcomes
	Messages MessageSums `json:"messages"`
}

// MessageSums count messages.
type MessageSums struct {
	Accepted int64 `json:"accepted"`
	Found    int64 `json:"found"`
	Done     int64 `json:"done"` // all recipients have an outcome
	Gone     int64 `json:"gone"` // taken away with recipients that were open
	Unknown  int64 `json:"unknown"`
}

// add counts a record.
func (s *Sums) add(r *Record) {
	switch {
	case r.In >= 0:
		s.Accepted += int64(r.In)
		s.Added += r.Size() - int64(r.In)
	case r.Found >= 0:
		s.Found += int64(r.Found)
		s.Added += r.Size() - int64(r.Found)
	default:
		s.Accepted += r.Size()
	}
	if r.In < 0 && r.Found >= 0 {
		s.Messages.Found++
	} else {
		s.Messages.Accepted++
	}
	s.Outcomes.add(&r.End)
	switch {
	case r.Ended == Unknown:
		s.Messages.Unknown++
	case r.Ended == Gone || r.End.Gone > 0:
		s.Messages.Gone++
	case r.Ended == Done:
		s.Messages.Done++
	}
}

// writer is a process that has the journal open.
type writer struct {
	role string
	pid  int64
}

// Book is the ledger as it was read.
type Book struct {
	Sum     Sums // of what is done with and forgotten
	Records map[postoffice.SpoolID]*Record
	Since   int64 // time of the first line, milliseconds since 1970; 0: there is none
	Through int   // number of the last journal whose lines are in base
	Bad     int   // lines that could not be read

	brief   bool                            // what lines say of messages is not kept
	begun   bool                            // a scheduler has settled it once
	writers map[writer][]string             // processes that did not close, with their boots: a pid may come again
	late    []Line                          // to be settled when all lines are read
	byInode map[uint64][]postoffice.SpoolID // nil until it is needed
}

func newBook() *Book {
	return &Book{Records: map[postoffice.SpoolID]*Record{}, writers: map[writer][]string{}}
}

func (b *Book) record(id postoffice.SpoolID) *Record {
	r := b.Records[id]
	if r == nil {
		r = &Record{In: -1, Routed: -1, Found: -1}
		b.Records[id] = r
		if b.byInode != nil {
			b.byInode[id.Ino] = append(b.byInode[id.Ino], id)
		}
	}
	return r
}

// apply takes a line in. For one spool ID the last line of a kind counts; a Routed line
// behind an end opens the message again, because it has come back to the router.
func (b *Book) apply(l *Line) {
	if b.Since == 0 || l.Time < b.Since {
		b.Since = l.Time
	}
	switch l.Verb {
	case Open:
		w := writer{l.Role, l.PID}
		if boots := b.writers[w]; !slices.Contains(boots, l.Boot) {
			b.writers[w] = append(boots, l.Boot)
		}
		return
	case Close:
		// It is the last one's.
		w := writer{l.Role, l.PID}
		if boots := b.writers[w]; len(boots) > 1 {
			b.writers[w] = boots[:len(boots)-1]
		} else {
			delete(b.writers, w)
		}
		return
	case Boot:
		b.begun = true
		for w, boots := range b.writers {
			if slices.Contains(boots, l.Boot) {
				b.writers[w] = []string{l.Boot}
			} else {
				delete(b.writers, w)
			}
		}
		return
	}
	if b.brief {
		return
	}
	switch l.Verb {
	case Half:
		b.endHalf(l)
		return
	case Moved:
		b.adopt(l.ID, l.From, func(id postoffice.SpoolID, _ *Record) bool {
			return l.From == l.ID.Ino || id.MTime <= l.ID.MTime
		})
		return
	}
	r := b.record(l.ID)
	r.Time = l.Time
	n := int32(min(l.N, 1<<31-1))
	switch l.Verb {
	case In:
		r.In = n
	case Found:
		if r.bare() {
			r.Found = n
		}
	case Routed:
		r.Routed, r.Entered = n, l.Entered
		r.Ended, r.End, r.Why = None, Outcomes{}, ""
		if r.Entered && r.In < 0 {
			b.late = append(b.late, *l)
		}
	case Told:
		r.Unreported = max(r.Unreported-l.N, 0)
	case Done:
		r.end(Done, l.End, "")
		r.Unreported = l.Unreported
		if r.bare() {
			b.late = append(b.late, *l)
		}
	case Gone:
		r.leave(l)
	case Unknown:
		if r.Open() {
			r.end(Unknown, Outcomes{Unknown: l.N}, l.Why)
		}
	}
}

// leave takes a Gone line. One that was removed by an operator before it was routed has no
// specification to count recipients in.
func (r *Record) leave(l *Line) {
	switch {
	case !r.Open():
	case l.Why != ByPerson:
		r.end(Gone, Outcomes{Gone: l.N}, l.Why)
	case r.bare():
		r.end(Done, Outcomes{Removed: l.N}, l.Why)
	default:
		r.end(Done, Outcomes{Removed: r.Size()}, l.Why)
	}
}

func (r *Record) end(v Verb, o Outcomes, why string) { r.Ended, r.End, r.Why = v, o, why }

// resolve looks, for messages that no one has accepted, for one that was accepted under
// another time of its file, touched by hand. It comes when all lines are read, because
// the line that accepts a message may be behind those that follow from it.
func (b *Book) resolve() {
	for i := range b.late {
		l := &b.late[i]
		r := b.Records[l.ID]
		if r == nil {
			continue // it goes by another time of its file since
		}
		b.adopt(l.ID, l.ID.Ino, func(id postoffice.SpoolID, old *Record) bool {
			switch {
			case id.MTime > l.ID.MTime:
				return false // it was given the number since
			case l.Verb == Routed:
				return r.In < 0 && old.In >= 0 && old.Routed < 0
			}
			return r.bare() && old.Size() == r.End.Total()
		})
	}
	b.late = nil
}

// newest returns the record of an inode number that fits and was accepted last.
func (b *Book) newest(ino uint64, fits func(id postoffice.SpoolID, r *Record) bool) (last postoffice.SpoolID, r *Record) {
	if b.byInode == nil {
		b.byInode = make(map[uint64][]postoffice.SpoolID, len(b.Records))
		for id := range b.Records {
			b.byInode[id.Ino] = append(b.byInode[id.Ino], id)
		}
	}
	for _, id := range b.byInode[ino] {
		if x := b.Records[id]; x != nil && fits(id, x) && (r == nil || id.MTime > last.MTime) {
			last, r = id, x
		}
	}
	return last, r
}

// endHalf ends the message whose specification was last written at the line's time. A
// message that has the inode number since is younger than that.
func (b *Book) endHalf(l *Line) {
	_, r := b.newest(l.ID.Ino, func(id postoffice.SpoolID, _ *Record) bool { return id.MTime <= l.ID.MTime })
	if r == nil || !r.Open() {
		return
	}
	r.end(Done, l.End, "")
	r.Time = l.Time
}

// adopt gives a spool ID what is known of an open message that had the inode number
// from and is no more under its own: an inode number has one message at a time.
func (b *Book) adopt(id postoffice.SpoolID, from uint64, fits func(id postoffice.SpoolID, r *Record) bool) {
	old, r := b.newest(from, func(other postoffice.SpoolID, r *Record) bool { return other != id && r.Open() && fits(other, r) })
	if r == nil {
		return
	}
	to := b.record(id)
	for _, pair := range [][2]*int32{{&to.In, &r.In}, {&to.Routed, &r.Routed}, {&to.Found, &r.Found}} {
		if *pair[0] < 0 {
			*pair[0] = *pair[1]
		}
	}
	to.Time = max(to.Time, r.Time)
	delete(b.Records, old)
}

// powerLost reports whether a process of another boot did not close. A process that did not
// learn its boot, for want of a descriptor, is no sign of another one.
func (b *Book) powerLost(boot string) bool {
	if boot == noBoot {
		return false
	}
	for _, boots := range b.writers {
		if slices.ContainsFunc(boots, func(at string) bool { return at != boot && at != noBoot }) {
			return true
		}
	}
	return false
}
