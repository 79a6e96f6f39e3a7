package greylist

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
)

type rig struct {
	t   *testing.T
	now time.Time
	*List
}

func newRig(t *testing.T, change func(*Config)) *rig {
	r := &rig{t: t, now: time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)}
	c := Config{Delay: DefaultDelay, Retry: DefaultRetry, Keep: DefaultKeep, Allow: DefaultAllow, Entries: 1000, Now: func() time.Time { return r.now }}
	if change != nil {
		change(&c)
	}
	r.List = Open(c)
	return r
}

func (r *rig) want(client, from, to, why string) {
	r.t.Helper()
	box := func(s string) address.Mailbox { return assert.Get(address.Parse(s))(r.t) }
	got := r.Check(netip.MustParseAddr(client), box(from), box(to), false)
	assert.Equal(r.t, got.Why, why, "%s %s %s", client, from, to)
	assert.Equal(r.t, got.Pass, why == "known" || why == "allowed" || why == "returned")
}

func TestSecondAttemptAfterTheDelayIsAccepted(t *testing.T) {
	r := newRig(t, nil)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "new")
	r.now = r.now.Add(DefaultDelay - time.Second)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "early")
	r.now = r.now.Add(time.Second)
	r.want("192.0.2.1", "a@b.test", "y@here.test", "new")        // another recipient
	r.want("192.0.2.200", "A@B.test", "X@here.test", "returned") // the same network
	r.want("192.0.3.1", "a@b.test", "x@here.test", "new")        // another network
	r.now = r.now.Add(DefaultKeep - time.Minute)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "known")
	r.now = r.now.Add(DefaultKeep - time.Minute) // each use lengthens it
	r.want("192.0.2.1", "a@b.test", "x@here.test", "known")
	r.now = r.now.Add(DefaultKeep + time.Minute)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "new")
}

func TestAttemptThatComesTooLateIsAFirstOne(t *testing.T) {
	r := newRig(t, nil)
	r.want("2001:db8::1", "<>", "x@here.test", "new")
	r.now = r.now.Add(DefaultRetry + time.Second)
	r.want("2001:db8::1", "<>", "x@here.test", "new")
	r.now = r.now.Add(DefaultDelay)
	r.want("2001:db8::ffff", "<>", "x@here.test", "returned") // /64
}

func TestNumbersOfListsDoNotCount(t *testing.T) {
	r := newRig(t, nil)
	r.want("192.0.2.1", "bounce-123-77@list.test", "x@here.test", "new")
	r.now = r.now.Add(DefaultDelay)
	r.want("192.0.2.1", "bounce-4-5555@list.test", "x@here.test", "returned")
	r.want("192.0.2.1", "bounce-x@list.test", "x@here.test", "new")
}

// As postgrey's auto-whitelist-clients: several messages, not more than one an hour.
func TestNetworkIsAllowedAfterSeveralMessages(t *testing.T) {
	r := newRig(t, nil)
	for i := range DefaultAllow {
		for j := range 3 {
			r.want("192.0.2.1", fmt.Sprintf("%c%c@b.test", 'a'+i, 'a'+j), "x@here.test", "new")
		}
		r.now = r.now.Add(time.Hour)
		for j := range 3 {
			r.want("192.0.2.1", fmt.Sprintf("%c%c@b.test", 'a'+i, 'a'+j), "x@here.test", map[bool]string{true: "returned", false: "allowed"}[i+1 < DefaultAllow || j == 0])
		}
	}
	r.want("192.0.2.9", "new@b.test", "x@here.test", "allowed")
	r.now = r.now.Add(DefaultKeep + time.Hour)
	r.want("192.0.2.9", "new@b.test", "x@here.test", "new")
}

// A stranger with one network cannot push out what others wait for.
func TestMadeUpSendersDoNotFillTheGreylist(t *testing.T) {
	r := newRig(t, nil)
	for i := range 50 {
		r.want(fmt.Sprintf("10.0.%d.1", i), "a@b.test", "x@here.test", "new")
	}
	x := assert.Get(address.Parse("x@here.test"))(t)
	for i := range 20000 {
		r.Check(netip.MustParseAddr("192.0.2.1"), address.Mailbox{Local: fmt.Sprintf("a%c%c%c", 'a'+i%26, 'a'+i/26%26, 'a'+i/676), Domain: "s.test"}, x, false)
	}
	waiting, _, _ := r.Sizes()
	assert.Equal(t, waiting, 1000)
	r.now = r.now.Add(DefaultDelay)
	returned := 0
	for i := range 50 {
		if r.Check(netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", i)), address.Mailbox{Local: "a", Domain: "b.test"}, x, false).Pass {
			returned++
		}
	}
	if returned < 47 {
		t.Errorf("%d of 50 messages of others pass", returned)
	}
}

// Nor can one with a whole site of IPv6, whose networks are all new.
func TestManyNetworksOfOneSiteDoNotFillTheGreylist(t *testing.T) {
	r := newRig(t, nil)
	box := func(s string) address.Mailbox { return assert.Get(address.Parse(s))(t) }
	from, x := box("a@b.test"), box("x@here.test")
	for i := range 50 {
		r.want(fmt.Sprintf("2001:db8:%x::1", i), "a@b.test", "x@here.test", "new")
	}
	r.now = r.now.Add(time.Second)
	for i := range 20000 {
		r.Check(netip.MustParseAddr(fmt.Sprintf("2001:db8:ffff:%x::1", i)), from, x, false)
	}
	r.now = r.now.Add(DefaultDelay)
	returned := 0
	for i := range 50 {
		if r.Check(netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i)), from, x, false).Pass {
			returned++
		}
	}
	if returned < 47 {
		t.Errorf("%d of 50 messages of others pass", returned)
	}
}

// A clock that was ahead for a while has nobody wait until its time comes again.
func TestClockThatWasAheadDelaysNobody(t *testing.T) {
	r := newRig(t, nil)
	right := r.now
	r.now = right.AddDate(10, 0, 0)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "new")
	r.want("192.0.2.1", "b@b.test", "x@here.test", "new")
	r.now = r.now.Add(DefaultDelay)
	r.want("192.0.2.1", "b@b.test", "x@here.test", "returned")
	r.now = right
	r.want("192.0.2.1", "a@b.test", "x@here.test", "early")
	r.now = right.Add(DefaultDelay)
	r.want("192.0.2.1", "a@b.test", "x@here.test", "returned")
	// What was learned then counts, and is forgotten in its time.
	r.want("192.0.2.1", "b@b.test", "x@here.test", "known")
	r.now = r.now.Add(DefaultKeep + time.Hour)
	r.want("192.0.2.1", "b@b.test", "x@here.test", "new")
}

// With look, nothing is remembered.
func TestLookingChangesNothing(t *testing.T) {
	r := newRig(t, nil)
	m := address.Mailbox{Local: "a", Domain: "b.test"}
	for range 3 {
		assert.Equal(t, r.Check(netip.MustParseAddr("192.0.2.1"), m, m, true).Why, "new")
		r.now = r.now.Add(DefaultDelay)
	}
	waiting, passed, clients := r.Sizes()
	assert.Equal(t, waiting+passed+clients, 0)
}
