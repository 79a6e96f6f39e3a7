package workspec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// doubted returns the owners that the history of a file holds to have sent to its
// recipients, 0 for those that are in no doubt.
func doubted(tb testing.TB, file []byte) (owners []int) {
	tb.Helper()
	s := parsed(tb, file)
	d := s.Doubts()
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			owners = append(owners, d.About(&s.Groups[gi].Recipients[ri]))
		}
	}
	return owners
}

// Del1: a sent event that lists no one is about the recipients that its owner has locked, or
// had when the lock was taken from it, and about those of no other owner.
func TestDel1SentOfOneOwnerLeavesTheOthers(t *testing.T) {
	// Recipients 0 and 1 are those of owner 7, 2 and 3 those of owner 9.
	type step struct {
		event string
		owner int
		about []int // recipients
	}
	all := func(owner int) step { return step{event: EventSent, owner: owner} }
	list := func(owner int, about ...int) step { return step{event: EventSent, owner: owner, about: about} }
	taken := func(owner int, about ...int) step { return step{event: EventUnlocked, owner: owner, about: about} }
	deferred := func(about ...int) step { return step{event: EventDeferred, about: about} }
	doubt := func(owner int, about ...int) step { return step{event: EventInDoubt, owner: owner, about: about} }
	both := [4]int{7, 7, 9, 9}
	blank := [4]int{}
	for name, c := range map[string]struct {
		locks [4]int
		steps []step
		want  [4]int
	}{
		"both to all, 7 first":                       {both, []step{all(7), all(9)}, both},
		"both to all, 9 first":                       {both, []step{all(9), all(7)}, both},
		"7 to all, then 9 to a list":                 {both, []step{all(7), list(9, 2, 3)}, both},
		"9 to a list, then 7 to all":                 {both, []step{list(9, 2, 3), all(7)}, both},
		"a lock is taken, then the other sends":      {[4]int{0, 7, 9, 9}, []step{all(7), taken(7, 0), all(9)}, both},
		"the other sends, then a lock is taken":      {[4]int{0, 7, 9, 9}, []step{all(7), all(9), taken(7, 0)}, both},
		"both send, then all locks of 7 are taken":   {[4]int{0, 0, 0, 9}, []step{all(9), all(7), taken(7)}, [4]int{7, 7, 7, 9}},
		"all locks of 7 are taken, then 9 sends":     {[4]int{0, 0, 9, 0}, []step{all(7), taken(7), all(9)}, [4]int{7, 7, 9, 7}},
		"a lock is taken, the scheduler puts it off": {[4]int{0, 7, 9, 9}, []step{all(7), all(9), taken(7, 0), deferred(0)}, both},
		"an answer of 7, while 9 sends":              {[4]int{0, 7, 9, 9}, []step{all(7), all(9), deferred(0)}, [4]int{0, 7, 9, 9}},
		"an answer of 7, tried again by 9":           {[4]int{9, 7, 9, 9}, []step{all(7), deferred(0), all(9)}, [4]int{9, 7, 9, 9}},
		"an answer of 7, tried again by 7":           {both, []step{all(7), all(9), deferred(0)}, [4]int{0, 7, 9, 9}},
		"a doubt is recorded, 9 takes it over":       {[4]int{9, 7, 9, 9}, []step{all(7), all(9), doubt(7, 0)}, [4]int{0, 7, 9, 9}},
		"taken over by 9, which sends to all":        {[4]int{9, 9, 9, 9}, []step{all(7), doubt(7, 0, 1), all(9)}, [4]int{9, 9, 9, 9}},
		"9 sends, the lock of 7 that did not":        {both, []step{all(9)}, [4]int{0, 0, 9, 9}},
		"no recipient is locked":                     {blank, []step{all(7), all(9)}, blank},
		"taken from an owner that did not send":      {[4]int{0, 7, 9, 9}, []step{all(9), taken(7, 0), deferred(0)}, [4]int{0, 0, 9, 9}},
		"7 to all, again 7 to a list":                {both, []step{all(7), list(7, 0), all(9)}, both},
	} {
		t.Run(name, func(t *testing.T) {
			file := many(t, 4, 1)
			s := parsed(t, file)
			offsets := allOffsets(s)
			for i, owner := range c.locks {
				if owner > 0 {
					copy(file[TagOffset(offsets[i]):], LockBytes(owner))
				}
			}
			for i, st := range c.steps {
				e := Event{Time: summarisedAt.Add(time.Duration(i)), Event: st.event}
				if st.owner > 0 {
					e.Attrs = []Attr{{"owner", fmt.Sprint(st.owner)}}
				}
				var about []int64
				for _, r := range st.about {
					about = append(about, offsets[r])
				}
				if len(about) > 0 && (st.event == EventUnlocked || st.event == EventInDoubt) {
					for _, off := range about {
						e.Recipient = off
						file = AppendEvent(file, &e)
					}
					continue
				}
				if len(about) > 0 {
					s.SetAbout(&e, about)
				}
				file = AppendEvent(file, &e)
			}
			assert.Same(t, doubted(t, file), c.want[:], "doubt in: %s", file)
			short := Summarise(file, summarisedAt)
			if short == nil {
				t.Fatal("it was not summarised")
			}
			assert.Same(t, doubted(t, short), c.want[:], "doubt in the summary: %s", short)
		})
	}
}

// world is a message that agents deliver, with what really happened to each recipient:
// the model that the history is compared with.
type world struct {
	*testing.T
	random *rand.Rand
	file   []byte
	s      *Spec
	rcpts  []model
	owners int
	now    time.Time
	agents []*sender
}

type model struct {
	offset int64
	lock   int // owner, maybe dead; 0: open
	done   bool
	// sent is the owner that sent to it and reported nothing; settled by an answer or an
	// event that says in doubt.
	sent int
}

// sender is an agent that lives, with the recipients that it locked.
type sender struct {
	owner int
	has   []int
	sent  bool
}

func (w *world) append(event string, owner int, about ...int) {
	w.now = w.now.Add(time.Second)
	e := Event{Time: w.now, Event: event, Text: "451 later"}
	if owner > 0 {
		e.Attrs = []Attr{{"owner", fmt.Sprint(owner)}}
	}
	if event == EventDeferred {
		e.Attrs = []Attr{{"attempt", "1"}, {"next", "5"}, {"status", "4.0.0"}}
	}
	var offsets []int64
	for _, r := range about {
		offsets = append(offsets, w.rcpts[r].offset)
	}
	if len(offsets) > 0 {
		w.s.SetAbout(&e, offsets)
	}
	w.file = AppendEvent(w.file, &e)
}

func (w *world) tag(r int, b []byte) { copy(w.file[TagOffset(w.rcpts[r].offset):], b) }

// open sets a recipient's tag to blank.
func (w *world) open(r int) {
	w.rcpts[r].lock = 0
	w.tag(r, TagBytes(w.s.Format, TagToDo))
}

// dead reports whether the owner of a lock has died.
func (w *world) dead(owner int) bool {
	return owner > 0 && !slices.ContainsFunc(w.agents, func(a *sender) bool { return a.owner == owner })
}

// start has a new agent lock recipients that are open, or whose owner is dead.
func (w *world) start() {
	a := &sender{}
	w.owners++
	a.owner = w.owners
	s := parsed(w, w.file)
	d := s.Doubts()
	one := w.random.IntN(4)
	for i := range w.rcpts {
		m := &w.rcpts[i]
		if m.done || m.lock > 0 && !w.dead(m.lock) || w.random.IntN(4) < one {
			continue
		}
		if owner := d.About(s.find(m.offset)); owner > 0 {
			w.append(EventInDoubt, owner, i)
		}
		m.lock, m.sent = a.owner, 0
		w.tag(i, LockBytes(a.owner))
		a.has = append(a.has, i)
	}
	if len(a.has) > 0 {
		w.agents = append(w.agents, a)
	}
}

// step has one agent, or the scheduler, do the next thing.
func (w *world) step() {
	if len(w.agents) == 0 || w.random.IntN(4) == 0 {
		w.start()
		return
	}
	i := w.random.IntN(len(w.agents))
	a := w.agents[i]
	switch what := w.random.IntN(5); {
	case what == 0: // it dies
		w.agents = slices.Delete(w.agents, i, i+1)
	case !a.sent:
		a.sent = true
		for _, r := range a.has {
			w.rcpts[r].sent = a.owner
		}
		if w.random.IntN(2) == 0 {
			w.append(EventSent, a.owner)
		} else {
			w.append(EventSent, a.owner, a.has...)
		}
	case what == 1: // it has not found out about one, and gives that back
		r := a.has[len(a.has)-1]
		w.append(EventUnlocked, a.owner, r)
		w.finish(a, i, 1, func(r int) { w.open(r); w.append(EventDeferred, 0, r) })
	default: // answers
		ok := w.random.IntN(3) == 0
		w.finish(a, i, 1+w.random.IntN(len(a.has)), func(r int) {
			w.rcpts[r].sent = 0
			w.open(r)
			if ok {
				w.rcpts[r].done = true
				w.tag(r, TagBytes(w.s.Format, TagOK))
			} else {
				w.append(EventDeferred, 0, r)
			}
		})
	}
	// The scheduler mends locks of the dead.
	for r := range w.rcpts {
		if m := &w.rcpts[r]; w.dead(m.lock) && w.random.IntN(3) == 0 {
			w.append(EventUnlocked, m.lock, r)
			w.open(r)
			w.append(EventDeferred, 0, r)
		}
	}
}

// finish takes the last n recipients from an agent, which ends when it has none.
func (w *world) finish(a *sender, i, n int, with func(r int)) {
	for range n {
		last := len(a.has) - 1
		with(a.has[last])
		a.has = a.has[:last]
	}
	if len(a.has) == 0 {
		w.agents = slices.Delete(w.agents, i, i+1)
	}
}

// check compares the doubts about recipients that an agent may take up with the model.
func (w *world) check(where string) {
	w.Helper()
	got := doubted(w, w.file)
	for r, m := range w.rcpts {
		if m.done || m.lock > 0 && !w.dead(m.lock) {
			continue
		}
		if got[r] != m.sent {
			w.Fatalf("%s: recipient %d at %d is in doubt by %d, want %d:\n%s", where, r, m.offset, got[r], m.sent, w.file)
		}
	}
}

// Del1: random lives of messages with several agents at a time, against a model that knows
// which agent has sent to whom; the history is summarised now and then when no one has a
// lock.
func TestDel1DoubtsAreThoseOfAModel(t *testing.T) {
	random := seeded(t)
	doubts, summaries := 0, 0
	for range 300 {
		w := &world{T: t, random: random, file: many(t, 4+2*random.IntN(6), 1), now: time.UnixMilli(1795220000000)}
		w.s = parsed(t, w.file)
		for _, off := range allOffsets(w.s) {
			w.rcpts = append(w.rcpts, model{offset: off})
		}
		for range 60 {
			w.step()
			w.check("after a step")
			locked := slices.ContainsFunc(w.rcpts, func(m model) bool { return m.lock > 0 })
			doubts += len(slices.DeleteFunc(doubted(t, w.file), func(owner int) bool { return owner == 0 }))
			if !locked {
				if w.file = Summarise(w.file, w.now); w.file == nil {
					t.Fatal("it was not summarised")
				}
				w.check("after a summary")
				summaries++
			}
		}
	}
	if doubts < 1000 || summaries < 50 {
		t.Errorf("%d doubts and %d summaries were met", doubts, summaries)
	}
}

// Del1: sent events that list no one, of ever other owners, do not stay in a summary
// because of recipients of which nothing is said any more.
func TestDel1SummaryDropsSentEventsThatAreOver(t *testing.T) {
	file := many(t, 200, 2)
	s := parsed(t, file)
	all := allOffsets(s)
	copy(file[TagOffset(all[0]):], TagBytes(s.Format, TagOK))
	for n := range 500 {
		now := time.UnixMilli(1795220000000).Add(time.Duration(n) * time.Minute)
		file = AppendEvent(file, &Event{Time: now, Event: EventSent, Attrs: []Attr{{"owner", fmt.Sprint(1000 + n)}}})
		e := Event{Time: now, Event: EventDeferred, Text: "451 later", Attrs: []Attr{{"attempt", fmt.Sprint(n + 1)}, {"next", "5"}, {"status", "4.0.0"}}}
		s.SetAbout(&e, all[1:])
		file = AppendEvent(file, &e)
	}
	out := Summarise(file, summarisedAt)
	if out == nil {
		t.Fatal("it was not summarised")
	}
	if got := parsed(t, out).History; len(got) > 3 {
		t.Errorf("the summary has %d events, want the first and the last deferral and what says that it is one", len(got))
	}
}
