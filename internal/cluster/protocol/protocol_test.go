package protocol

import (
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

const second = time.Second

// rig drives a machine by hand.
type rig struct {
	t   *testing.T
	m   *Machine
	now time.Duration
	out []Action
}

func newRig(t *testing.T) *rig {
	c := Config{Node: "a", Host: "machine a", TTL: 10 * second, Margin: 2 * second, Settle: second, Renew: 2 * second, Retry: 2 * second}
	return &rig{t: t, m: assert.Get(New(c))(t)}
}

// step lets time pass and has something happen; it returns what the machine wants.
func (r *rig) step(after time.Duration, e Event) []Action {
	r.now += after
	r.out = slices.Clone(r.m.Step(r.now, e))
	return r.out
}

// want returns the action of that verb among the last ones.
func (r *rig) want(v Verb) Action {
	r.t.Helper()
	for _, a := range r.out {
		if a.Verb == v {
			return a
		}
	}
	r.t.Fatalf("no action %d in %+v", v, r.out)
	return Action{}
}

func (r *rig) without(verbs ...Verb) {
	r.t.Helper()
	for _, a := range r.out {
		if slices.Contains(verbs, a.Verb) {
			r.t.Fatalf("action %+v", a)
		}
	}
}

func (r *rig) phase(postoffice string, want Phase, epoch uint64) {
	r.t.Helper()
	if p, e := r.m.Phase(postoffice); p != want || e != epoch {
		r.t.Fatalf("postoffice %s is in phase %d, epoch %d, want %d, %d", postoffice, p, e, want, epoch)
	}
}

// join makes the node a member whose claim of its own postoffice is on its way.
func (r *rig) join() Action {
	r.step(0, Event{})
	r.step(0, Event{Kind: AllEnded, ID: r.want(EndAll).ID})
	j := r.want(Join)
	r.step(0, Event{Kind: Joined, ID: j.ID, Sent: j.Sent})
	return r.want(Claim)
}

// write brings the node to where it writes the epoch of a postoffice whose claim is on its way.
func (r *rig) write(claim Action, revision, stored uint64) {
	r.step(0, Event{Kind: Won, Postoffice: claim.Postoffice, ID: claim.ID, Revision: revision})
	r.without(ReadEpoch, WriteEpoch, Start)
	r.step(second, Event{})
	r.step(0, Event{Kind: EpochRead, Postoffice: claim.Postoffice, ID: r.want(ReadEpoch).ID, Revision: stored})
	r.without(Start)
}

// serve brings the node to where it serves a postoffice whose claim is on its way.
func (r *rig) serve(claim Action, revision, stored uint64) {
	r.write(claim, revision, stored)
	r.step(0, Event{Kind: EpochWritten, Postoffice: claim.Postoffice, ID: r.want(WriteEpoch).ID})
	if s := r.want(Start); s.Epoch != revision {
		r.t.Fatalf("epoch %d, want %d", s.Epoch, revision)
	}
	r.phase(claim.Postoffice, Serving, revision)
}

// claimOf returns the claim of a foreign postoffice whose owner is away.
func (r *rig) claimOf(name string) Action {
	r.step(0, Event{Kind: Vanished, Postoffice: name, Revision: 1})
	return r.want(Claim)
}

func TestTheDeadlineCountsFromTheSending(t *testing.T) {
	r := newRig(t)
	r.join()
	r.step(3*second, Event{})
	renewal := r.want(Renew)
	r.step(4*second, Event{Kind: Renewed, Lease: renewal.Lease, Sent: renewal.Sent})
	if want := renewal.Sent + 8*second; r.want(Publish).Deadline != want || r.m.Deadline() != want {
		t.Errorf("deadline %v, want %v", r.m.Deadline(), want)
	}
}

func TestTheAnswerToAnOlderRenewalDoesNotMoveTheDeadlineBack(t *testing.T) {
	r := newRig(t)
	r.join()
	r.step(2*second, Event{})
	older := r.want(Renew)
	r.step(2*second, Event{})
	newer := r.want(Renew)
	r.step(0, Event{Kind: Renewed, Lease: newer.Lease, Sent: newer.Sent})
	r.step(0, Event{Kind: Renewed, Lease: older.Lease, Sent: older.Sent})
	r.without(Publish)
	if want := newer.Sent + 8*second; r.m.Deadline() != want {
		t.Errorf("deadline %v, want %v", r.m.Deadline(), want)
	}
}

func TestALeaseWhoseAnswerCameTooLateIsNotUsed(t *testing.T) {
	r := newRig(t)
	r.step(0, Event{})
	r.step(0, Event{Kind: AllEnded, ID: r.want(EndAll).ID})
	j := r.want(Join)
	r.step(8*second, Event{Kind: Joined, ID: j.ID, Sent: j.Sent})
	r.without(Claim, Renew)
	if r.m.Status() != Ending || r.m.Deadline() != 0 {
		t.Errorf("status %d, deadline %v", r.m.Status(), r.m.Deadline())
	}
}

func TestAnswersAboutAnEarlierLeaseAreIgnored(t *testing.T) {
	r := newRig(t)
	claim := r.join()
	r.step(8*second, Event{}) // it ends
	r.step(0, Event{Kind: AllEnded, ID: r.want(EndAll).ID})
	j := r.want(Join)
	r.step(0, Event{Kind: Joined, ID: j.ID, Sent: j.Sent})
	deadline := r.m.Deadline()
	r.step(second, Event{Kind: Renewed, Lease: claim.Lease, Sent: r.now + second})
	r.step(0, Event{Kind: LeaseGone, Lease: claim.Lease})
	if r.m.Status() != Member || r.m.Deadline() != deadline {
		t.Errorf("status %d, deadline %v, want %v", r.m.Status(), r.m.Deadline(), deadline)
	}
}

func TestTimeDoesNotGoBack(t *testing.T) {
	r := newRig(t)
	r.join()
	r.step(5*second, Event{})
	r.step(0, Event{})
	claim := r.want(Claim)
	r.step(-2*second, Event{Kind: Won, Postoffice: "a", ID: claim.ID, Revision: 5})
	r.step(2*second, Event{})
	r.without(ReadEpoch) // it settles from the latest time that was seen
	r.step(second, Event{})
	r.want(ReadEpoch)
}

func TestAnAnswerAfterTheDeadlineDoesNotExtendIt(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.step(2*second, Event{})
	renewal := r.want(Renew)
	// All programs were stopped meanwhile.
	r.step(60*second, Event{Kind: Renewed, Lease: renewal.Lease, Sent: renewal.Sent})
	r.without(Claim, Start, Join, Leave)
	if r.want(Publish).Deadline != 0 || r.m.Status() != Ending {
		t.Errorf("status %d, deadline %v", r.m.Status(), r.m.Deadline())
	}
	// The old lease ends, and a new one begins, only when no daemon exists.
	end := r.want(EndAll)
	r.step(60*second, Event{})
	r.without(Join, Leave)
	r.step(0, Event{Kind: AllEnded, ID: end.ID})
	r.want(Leave)
	r.want(Join)
}

func TestANewLifeEndsTheDaemonsOfTheOldOneFirst(t *testing.T) {
	r := newRig(t)
	r.step(0, Event{})
	r.want(EndAll)
	r.step(60*second, Event{Kind: Seen, Postoffice: "b", Holder: "b", Revision: 3})
	r.without(Join, Claim)
}

func TestTheSecondMachineWithANameIsRefusedAndTheFirstIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		holder   string
		renewed  bool // the key keeps its revision
		want     Status
		revision uint64
	}{
		"another machine that is alive":       {"machine x", true, Refused, 0},
		"other machines that come and go":     {"machine x", false, Apart, 0},
		"an earlier life of the same machine": {"machine a", true, Apart, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.step(0, Event{})
			r.step(0, Event{Kind: AllEnded, ID: r.want(EndAll).ID})
			revision := uint64(7)
			for range 12 {
				r.step(0, Event{Kind: NameTaken, ID: r.want(Join).ID, Holder: c.holder, Revision: revision})
				if r.m.Status() == Refused {
					break
				}
				if !c.renewed {
					revision++
				}
				r.step(2*second, Event{})
			}
			if c.want == Refused {
				if a := r.want(Refuse); r.m.Status() != Refused || a.Holder != c.holder {
					t.Errorf("status %d, named %q", r.m.Status(), a.Holder)
				}
				if r.step(60*second, Event{}); len(r.out) != 0 {
					t.Errorf("a refused node wants %+v", r.out)
				}
				return
			}
			r.want(Join) // it goes on trying
		})
	}
}

func TestADamagedEpochStopsThisPostofficeAlone(t *testing.T) {
	r := newRig(t)
	claim := r.join()
	r.step(0, Event{Kind: Won, Postoffice: "a", ID: claim.ID, Revision: 5})
	r.step(second, Event{})
	r.step(0, Event{Kind: EpochDamaged, Postoffice: "a", ID: r.want(ReadEpoch).ID})
	r.without(WriteEpoch, Start, Release)
	if a := r.want(Alarm); a.Trouble != Damaged || a.Postoffice != "a" {
		t.Errorf("alarm %+v", a)
	}
	r.serve(r.claimOf("b"), 9, 0)
	r.step(second, Event{})
	r.step(0, Event{Kind: EpochRead, Postoffice: "a", ID: r.want(ReadEpoch).ID, Revision: 3}) // repaired
	r.step(0, Event{Kind: EpochWritten, Postoffice: "a", ID: r.want(WriteEpoch).ID})
	r.phase("a", Serving, 5)
}

func TestAnEpochThatIsNotLowerMeansThatWeWereOvertaken(t *testing.T) {
	for _, stored := range []uint64{5, 6} {
		overtaken(t, stored)
	}
}

func overtaken(t *testing.T, stored uint64) {
	r := newRig(t)
	claim := r.join()
	r.step(0, Event{Kind: Won, Postoffice: "a", ID: claim.ID, Revision: 5})
	r.step(second, Event{})
	r.step(0, Event{Kind: EpochRead, Postoffice: "a", ID: r.want(ReadEpoch).ID, Revision: stored})
	r.without(WriteEpoch, Start)
	if a := r.want(Alarm); a.Trouble != Overtaken {
		t.Errorf("alarm %+v", a)
	}
	if a := r.want(Release); a.Epoch != 5 {
		t.Errorf("releases %d", a.Epoch)
	}
	r.step(0, Event{Kind: Released, Postoffice: "a", ID: r.want(Release).ID})
	// The other may serve until the end of a lease that etcd does not know any more.
	renewed := func() {
		r.step(0, Event{Kind: Renewed, Lease: r.want(Renew).Lease, Sent: r.now})
	}
	for range 5 {
		r.step(2*second, Event{})
		r.without(Claim)
		renewed()
	}
	r.step(2*second, Event{})
	r.want(Claim)
}

func TestAPostofficeIsHandedBackWhenItsDaemonsHaveEnded(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.serve(r.claimOf("b"), 9, 4)
	r.step(0, Event{Kind: NodeSeen, Node: "b"})
	r.without(Stop)
	r.step(0, Event{Kind: Asked, Postoffice: "b"})
	stop := r.want(Stop)
	r.step(second, Event{})
	r.without(Release)
	r.step(0, Event{Kind: Ended, Postoffice: "b", ID: stop.ID})
	release := r.want(Release)
	if release.Epoch != 9 {
		t.Errorf("releases epoch %d", release.Epoch)
	}
	r.step(0, Event{Kind: Released, Postoffice: "b", ID: release.ID})
	r.step(2*second, Event{})
	r.without(Claim) // its owner is there
	r.phase("b", Idle, 0)
	r.phase("a", Serving, 5)
}

func TestAnEpochWhoseWritingFailedIsWrittenAgain(t *testing.T) {
	r := newRig(t)
	r.write(r.join(), 5, 3)
	r.step(0, Event{Kind: RequestFailed, Postoffice: "a", ID: r.want(WriteEpoch).ID})
	r.without(Start)
	r.step(second, Event{})
	r.step(0, Event{Kind: EpochRead, Postoffice: "a", ID: r.want(ReadEpoch).ID, Revision: 5}) // it is stored, but maybe not synced
	r.without(Start)
	r.step(0, Event{Kind: EpochWritten, Postoffice: "a", ID: r.want(WriteEpoch).ID})
	r.want(Start)
}

func TestAHigherEpochThatIsFoundAfterTheWritingEndsTheClaim(t *testing.T) {
	r := newRig(t)
	r.write(r.join(), 5, 3)
	r.step(0, Event{Kind: EpochRead, Postoffice: "a", ID: r.want(WriteEpoch).ID, Revision: 6})
	r.without(Start, WriteEpoch)
	r.want(Release)
}

func TestAClaimThatIsGoneBeforeItsAnswerIsGivenUp(t *testing.T) {
	r := newRig(t)
	claim := r.join()
	r.step(0, Event{Kind: Vanished, Postoffice: "a", Revision: 6})
	r.step(0, Event{Kind: Won, Postoffice: "a", ID: claim.ID, Revision: 5})
	r.phase("a", Idle, 0)
}

func TestAReleaseEndsBeforeTheNextClaim(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.step(0, Event{Kind: NodeSeen, Node: "b"})
	// A claim whose answer was lost.
	r.step(0, Event{Kind: Seen, Postoffice: "b", Holder: "a", Revision: 7})
	release := r.want(Release)
	r.step(0, Event{Kind: NodeGone, Node: "b"})
	r.step(second, Event{})
	r.without(Claim)
	r.step(0, Event{Kind: Released, Postoffice: "b", ID: release.ID})
	r.step(2*second, Event{})
	r.want(Claim)
}

func TestAKeyThatAppearsDuringTheReleaseIsReleasedToo(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.step(0, Event{Kind: NodeSeen, Node: "b"})
	r.step(0, Event{Kind: Seen, Postoffice: "b", Holder: "a", Revision: 7})
	first := r.want(Release)
	// An earlier claim reaches etcd late.
	r.step(0, Event{Kind: Seen, Postoffice: "b", Holder: "a", Revision: 9})
	r.step(0, Event{Kind: Released, Postoffice: "b", ID: first.ID})
	r.step(2*second, Event{})
	if a := r.want(Release); a.Epoch != 9 {
		t.Errorf("releases %d", a.Epoch)
	}
}

func TestAClaimIsHandedBackBeforeAnythingWasTouched(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	claim := r.claimOf("b")
	r.step(0, Event{Kind: Won, Postoffice: "b", ID: claim.ID, Revision: 9})
	r.step(0, Event{Kind: Asked, Postoffice: "b"})
	first := r.want(Release)
	r.step(2*second, Event{}) // no answer
	second := r.want(Release)
	if first.Epoch != 9 || second.Epoch != 9 || first.ID == second.ID {
		t.Errorf("releases %+v, %+v", first, second)
	}
	r.without(ReadEpoch)
}

func TestAnEpochThatIsFoundDamagedAfterTheWritingStartsNothing(t *testing.T) {
	r := newRig(t)
	r.write(r.join(), 5, 3)
	r.step(0, Event{Kind: EpochDamaged, Postoffice: "a", ID: r.want(WriteEpoch).ID})
	r.want(Alarm)
	r.without(Start)
	r.phase("a", Unreadable, 5)
}

func TestTheOwnerAsksForWhatAnotherServes(t *testing.T) {
	r := newRig(t)
	claim := r.join()
	r.step(0, Event{Kind: Lost, Postoffice: "a", ID: claim.ID})
	r.step(0, Event{Kind: Seen, Postoffice: "a", Holder: "b", Revision: 4})
	r.step(2*second, Event{})
	r.want(Ask)
	r.without(Claim)
	r.step(0, Event{Kind: Vanished, Postoffice: "a", Revision: 8})
	r.step(2*second, Event{})
	r.serve(r.want(Claim), 10, 4)
}

func TestAnAnswerToAnEarlierRequestIsIgnored(t *testing.T) {
	r := newRig(t)
	first := r.join()
	r.step(2*second, Event{}) // it is given up
	r.step(0, Event{})
	second := r.want(Claim)
	r.step(0, Event{Kind: Won, Postoffice: "a", ID: first.ID, Revision: 5})
	r.phase("a", Claiming, 0)
	r.step(0, Event{Kind: Won, Postoffice: "a", ID: second.ID, Revision: 5})
	r.phase("a", Settling, 5)
}

func TestStorageThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		postoffice string
		want       Status
	}{
		"of the own postoffice ends the membership": {"a", Ending},
		"of another leaves the own alone":           {"b", Member},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.serve(r.join(), 5, 0)
			r.serve(r.claimOf("b"), 9, 4)
			r.step(0, Event{Kind: StorageFailed, Postoffice: c.postoffice})
			if r.m.Status() != c.want {
				t.Fatalf("status %d, want %d", r.m.Status(), c.want)
			}
			if c.want == Member {
				r.phase("a", Serving, 5)
				return
			}
			r.step(0, Event{Kind: AllEnded, ID: r.want(EndAll).ID})
			r.without(Join)
			r.step(60*second, Event{})
			r.without(Join)
			r.step(0, Event{Kind: StorageBack, Postoffice: "a"})
			r.want(Join)
		})
	}
}

func TestAPlannedStopWaitsForTheDaemons(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.step(0, Event{Kind: Quit})
	stop := r.want(Stop)
	r.without(Leave)
	r.step(0, Event{Kind: Ended, Postoffice: "a", ID: stop.ID})
	r.want(Leave)
	if r.m.Status() != Left {
		t.Errorf("status %d", r.m.Status())
	}
}

func TestAClaimThatWasDeletedByHandIsGivenUp(t *testing.T) {
	r := newRig(t)
	r.serve(r.join(), 5, 0)
	r.step(0, Event{Kind: Seen, Postoffice: "a", Holder: "b", Revision: 3}) // a watch that lags behind
	r.phase("a", Serving, 5)
	r.step(0, Event{Kind: Seen, Postoffice: "a", Holder: "b", Revision: 8})
	r.want(Stop)
}

func TestTimesThatContradictEachOtherAreRefused(t *testing.T) {
	good := Config{Node: "a", Host: "m", TTL: 10 * second, Margin: 2 * second, Settle: second, Renew: 2 * second, Retry: second}
	assert.Get(New(good))(t)
	for name, change := range map[string]func(*Config){
		"no name":                     func(c *Config) { c.Node = "" },
		"no margin":                   func(c *Config) { c.Margin = 0 },
		"no wait after the claim":     func(c *Config) { c.Settle = 0 },
		"a lease of one renewal only": func(c *Config) { c.Renew = 5 * second },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
