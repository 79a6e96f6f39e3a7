package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// counter is a message, the scheduler's steps and an operator: the
// operator's operations come between any two operations of the scheduler, and the other way
// round.
type counter struct {
	*box
	disk  *cutfs.FS
	hook  *faultfs.FS // the scheduler's disk
	desk  *postoffice.PostOffice
	name  string
	id    postoffice.SpoolID
	owner *postoffice.Owner // of the agent that has the first recipient
	// Of each address: how often an agent delivered to it, and its last tag.
	got  map[string]int
	last map[string]workspec.Tag
}

const (
	first, second = "x@h", "y@h"
	betweenConf   = storetest.Conf + "hold/*\n\tinterval=1s\n"
)

// newCounter makes one; state prepares the message.
func newCounter(t *testing.T, state func(c *counter)) *counter {
	t.Helper()
	disk := cutfs.New()
	c := &counter{disk: disk, hook: faultfs.New(disk), got: map[string]int{}, last: map[string]workspec.Tag{}}
	c.box = newBoxConf(t, c.hook, 0, betweenConf)
	disk.SetClock(func() time.Time { return c.Now })
	c.spool.Started = c.Now.Add(-time.Hour)
	var err error
	if c.desk, err = postoffice.Open(postoffice.Config{FS: disk}); err != nil {
		t.Fatal(err)
	}
	c.hook.On(faultfs.Remove, "transport/[0-9]*", faultfs.Always, func(string) error {
		c.note(c.Parse(c.name))
		return nil
	})
	first := storetest.Rcpt{Line: "smtp h " + first}
	if strings.Contains(t.Name(), "on_channel_hold") {
		first.Line = "hold age:1 " + first.Line[len("smtp h "):]
	}
	c.name = c.Queue("a@b", first, storetest.Rcpt{Line: "smtp h " + second})
	c.id = c.Request(c.name).ID
	c.load(c.name)
	c.Now = c.Now.Add(time.Minute)
	state(c)
	return c
}

// note keeps the tags as they are.
func (c *counter) note(s *workspec.Spec) {
	for _, r := range s.Groups[0].Recipients {
		c.last[r.Address] = r.Tag
	}
}

func (c *counter) must(err error) {
	c.T.Helper()
	assert.Must(c.T, err)
}

// at returns a request about the first recipient.
func (c *counter) at() operations.Request {
	return operations.Request{PostOffice: c.desk, ID: c.id, Now: c.Now, Who: "an operator", Order: "20261121-081400-x-1",
		Match: func(_ *workspec.Group, r *workspec.Recipient) bool { return r.Address == first }}
}

// fails has the agent fail the first recipient, so that its report is due.
func (c *counter) fails() {
	c.Mark(c.name, 0, "failed", workspec.TagFailed)
	c.Now = c.Now.Add(10 * time.Minute)
}

func (c *counter) deliverSecond() {
	c.Mark(c.name, 1, "", workspec.TagOK)
	c.got[second]++
}

func (c *counter) lockFirst() {
	var err error
	c.owner, err = c.PO.Owners.Take("test-agent")
	c.must(err)
	c.Lock(c.name, 0, c.owner.Number())
}

// states are those of a message when the operator comes.
var states = map[string]func(c *counter){
	"waiting":         func(c *counter) { c.deferredOnce(c.name, 0) },
	"failed":          func(c *counter) { c.fails() },
	"failed, alone":   func(c *counter) { c.fails(); c.deliverSecond() },
	"removed":         func(c *counter) { c.Ordered(operations.Remove(c.at(), c.name))(1) },
	"removed, alone":  func(c *counter) { c.Ordered(operations.Remove(c.at(), c.name))(1); c.deliverSecond() },
	"expired":         func(c *counter) { c.expires(); c.Now = c.Now.Add(10 * time.Minute) },
	"expired, alone":  func(c *counter) { c.expires(); c.deliverSecond() },
	"frozen":          func(c *counter) { c.Ordered(operations.Freeze(c.at(), c.name, workspec.CausePerson))(1) },
	"held":            func(c *counter) { c.Ordered(operations.Hold(c.at(), c.name, c.Now.Add(time.Hour)))(1) },
	"old":             func(c *counter) { c.deferredOnce(c.name, 0); c.Now = c.Now.Add(100 * time.Hour) },
	"on channel hold": func(c *counter) {},
	"in flight":       func(c *counter) { c.lockFirst() },
	"opened again": func(c *counter) {
		c.fails()
		q := c.at()
		q.Failed = true
		c.Ordered(operations.Retry(q, c.name))(1)
	},
	"with a dead agent": func(c *counter) { c.lockFirst(); c.must(c.owner.Leave()) },
}

func (c *counter) expires() {
	q := c.at()
	q.Report = true
	c.Ordered(operations.Expire(q, c.name))(1)
}

// steps are what the scheduler does meanwhile.
var steps = map[string]func(c *counter) error{
	"load":   func(c *counter) error { _, err := c.spool.Load(c.name); return err },
	"settle": func(c *counter) error { _, err := c.spool.Settle(c.name, nil); return err },
	"expire": func(c *counter) error {
		_, err := c.expire(c.name, []int64{c.offset()}, "it said no")
		return err
	},
	// Of an agent that has it: it is given back.
	"record": func(c *counter) error {
		if c.owner != nil {
			if err := storetest.Mark(c.PO, c.name, 0, "", workspec.TagToDo, c.Now); err != nil {
				return err
			}
		}
		return c.record(c.name, []Outcome{{Offset: c.offset(), Address: first, Result: thread.Deferred, Attempt: 3, Next: c.Now.Add(time.Minute)}})
	},
}

// offset returns the first recipient's; the specification's head does not change.
func (c *counter) offset() int64 {
	raw := "transport/" + c.name
	if _, err := c.disk.Stat(raw); err != nil {
		return 0
	}
	return storetest.OffsetOf(c.Parse(c.name), 0)
}

// verbs are the operator's operations; says is what must become of the recipient then.
var verbs = map[string]struct {
	give func(q operations.Request, name string) (operations.Result, error)
	says string
}{
	"hold": {func(q operations.Request, n string) (operations.Result, error) {
		return operations.Hold(q, n, time.Time{})
	}, "waits"},
	"freeze": {func(q operations.Request, n string) (operations.Result, error) {
		return operations.Freeze(q, n, workspec.CausePerson)
	}, "waits"},
	"release": {operations.Release, ""},
	"thaw":    {operations.Thaw, "goes"},
	"expire": {func(q operations.Request, n string) (operations.Result, error) {
		q.Report = true
		return operations.Expire(q, n)
	}, "fails"},
	"drop":    {operations.Expire, "fails"},
	"remove":  {operations.Remove, "fails"},
	"reroute": {operations.Reroute, "copied"},
	"retry": {func(q operations.Request, n string) (operations.Result, error) {
		q.Failed = true
		return operations.Retry(q, n)
	}, ""},
	"undo": {func(q operations.Request, n string) (operations.Result, error) {
		res, err := operations.Undo(q, n)
		for range 3 {
			if !errors.Is(err, operations.ErrMoved) {
				break
			}
			if res, err = operations.UndoShelved(q); errors.Is(err, operations.ErrMoved) {
				res, err = operations.Undo(q, n)
			}
		}
		return res, err
	}, ""},
}

// done is what an order came to.
type done struct {
	res operations.Result
	err error
}

// free reports whether no process has the specification's lock at this moment.
func (c *counter) free() bool {
	for _, name := range []string{"transport/" + c.name, "removed/" + c.id.String() + ".spec"} {
		f, err := c.disk.Open(name, 0, 0)
		if err != nil {
			continue
		}
		ok, err := f.TryLock()
		c.must(errors.Join(err, f.Close()))
		if !ok {
			return false
		}
	}
	return true
}

// mayFail are the answers that an order, or a step of the scheduler, may have.
func mayFail(err error) bool {
	for _, known := range []error{nil, operations.ErrNothing, operations.ErrMoved, postoffice.ErrGone, cutfs.ErrCut, ErrMessageGone} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// end has the message go its way: a scheduler reads it, an agent delivers what is open,
// an operator ends holds.
func (c *counter) end(says string, given done) {
	t := c.T
	ordered := given.err == nil && slices.Contains(given.res.Changed, first)
	for round := 0; ; round++ {
		if round == 10 {
			t.Errorf("it does not end: %s", c.Read("transport/"+c.name))
			return
		}
		l, err := c.spool.Load(c.name)
		if errors.Is(err, postoffice.ErrGone) || err == nil && l.Gone {
			break
		}
		c.must(err)
		for _, w := range l.Open {
			if w.Locked {
				c.must(storetest.Mark(c.PO, c.name, c.index(w.Address), "", workspec.TagToDo, c.Now))
				c.must(c.record(c.name, []Outcome{{Offset: w.Offset, Address: w.Address, Result: thread.Deferred, Attempt: 9, Next: c.Now}}))
				continue
			}
			if w.Address == first && ordered && round == 0 && says != "" && says != "goes" {
				t.Errorf("an agent would have it, but it %s", says)
			}
			c.Mark(c.name, c.index(w.Address), "", workspec.TagOK)
			c.got[w.Address]++
		}
		if s, err := c.spool.Settle(c.name, nil); s.Finished || errors.Is(err, postoffice.ErrGone) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		c.Now = c.Now.Add(10 * time.Minute)
		if round > 1 {
			for _, give := range []func(operations.Request, string) (operations.Result, error){operations.Release, operations.Thaw} {
				q := c.at()
				q.Order = ""
				if _, err := give(q, c.name); !mayFail(err) {
					t.Error(err)
				}
			}
		}
	}
	c.account(says, ordered)
}

func (c *counter) index(address string) int {
	return map[string]int{first: 0, second: 1}[address]
}

// account looks what became of both recipients: each has one end.
func (c *counter) account(says string, ordered bool) {
	t := c.T
	for _, name := range c.List("removed") {
		if strings.HasSuffix(name, ".spec") {
			s, err := workspec.Parse([]byte(c.Read("removed/" + name)))
			c.must(err)
			c.note(s)
		}
	}
	copies, told := map[string]int{}, map[string]int{}
	for _, m := range c.copies() {
		for _, r := range m.Recipients {
			copies[r.Address]++
		}
	}
	for _, text := range c.Reports() {
		for _, to := range storetest.Fields(text, "Final-Recipient") {
			if strings.Contains(text, "Action: failed") {
				told[strings.TrimPrefix(to, "rfc822; ")]++
			}
		}
	}
	for _, a := range []string{first, second} {
		failed := 0
		if c.last[a] == workspec.TagFailed {
			failed = 1
		}
		if n := c.got[a] + copies[a] + failed; n != 1 {
			t.Errorf("%s was delivered %d times, copied %d times, failed %d times", a, c.got[a], copies[a], failed)
		}
		if told[a] > failed {
			t.Errorf("the sender has %d reports that %s failed, delivered %d times, copied %d times", told[a], a, c.got[a], copies[a])
		}
	}
	if !ordered {
		return
	}
	if says == "fails" && c.last[first] != workspec.TagFailed || says == "copied" && copies[first] != 1 {
		t.Errorf("it %s, but: delivered %d times, copied %d, tag %q", says, c.got[first], copies[first], c.last[first])
	}
}

// each calls fn for each state, step of the scheduler and verb; with -short for some.
func each(t *testing.T, fn func(t *testing.T, c func(*testing.T) *counter, step func(*counter) error, verb string)) {
	for state, prepare := range states {
		for step, run := range steps {
			for verb := range verbs {
				if testing.Short() && rand.IntN(8) > 0 {
					continue // a part of them, another each time; the name says which failed
				}
				t.Run(fmt.Sprintf("%s: %s, %s", state, step, verb), func(t *testing.T) {
					fn(t, func(t *testing.T) *counter { return newCounter(t, prepare) }, run, verb)
				})
			}
		}
	}
}

// stride returns how many operations are between two that are tried.
func stride() int {
	if testing.Short() {
		return 5
	}
	return 1
}

// The operator's operation comes between any two operations of the scheduler.
func TestOrderBetweenTwoOperationsOfTheScheduler(t *testing.T) { // M41
	each(t, func(t *testing.T, make func(*testing.T) *counter, step func(*counter) error, verb string) {
		for at := 0; ; at += stride() {
			c := make(t)
			var given done
			n, ran := 0, false
			rule := c.hook.On(faultfs.Any, "*/*", faultfs.Always, func(string) error {
				if n++; n == at+1 && c.free() {
					ran = true
					given.res, given.err = verbs[verb].give(c.at(), c.name)
				}
				return nil
			})
			err := step(c)
			rule.End()
			if !mayFail(err) || !mayFail(given.err) {
				t.Fatalf("at %d: %v; the order: %v", at, err, given.err)
			}
			if ran || n > at {
				c.end(verbs[verb].says, given)
			}
			if t.Failed() {
				t.Fatalf("at operation %d: %+v, %v", at, given.res, given.err)
			}
			if n <= at {
				return
			}
		}
	})
}

// The scheduler works between any two steps of the operator's operation.
func TestSchedulerBetweenTwoOperationsOfAnOrder(t *testing.T) { // M41
	each(t, func(t *testing.T, make func(*testing.T) *counter, step func(*counter) error, verb string) {
		for at := 0; ; at += stride() {
			c := make(t)
			between := faultfs.New(c.disk)
			desk, err := postoffice.Open(postoffice.Config{FS: between})
			c.must(err)
			c.desk = desk
			n := 0
			between.On(faultfs.Any, "*/*", faultfs.Always, func(string) (none error) {
				if n++; n == at+1 && c.free() {
					err = step(c)
				}
				return none
			})
			var given done
			given.res, given.err = verbs[verb].give(c.at(), c.name)
			if !mayFail(err) || !mayFail(given.err) {
				t.Fatalf("at %d: %v; the order: %v", at, err, given.err)
			}
			c.end(verbs[verb].says, given)
			if t.Failed() {
				t.Fatalf("at operation %d: %+v, %v", at, given.res, given.err)
			}
			if n <= at {
				return
			}
		}
	})
}
