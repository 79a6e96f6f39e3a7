package thread

import (
	"math/rand/v2"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func day(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// A5: clock set by a day, either way: a vertex, a host in trouble and a reminder come
// when they would have, and a message is as old as it was.
func TestWaitsAndAgesSurviveAClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{day(1), day(-1)} {
		t.Run(by.String(), func(t *testing.T) {
			c := newCore()
			at := time.Unix(2e9, 0)
			r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{10}, Expiry: 2 * time.Hour, AgeOrder: true})
			own := &Message{Number: 1, Stamp: at.UnixNano(), Open: 1}
			host := &Message{Number: 2, Stamp: at.UnixNano(), Open: 1}
			c.Add(own, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
			c.Add(host, r, "smtp", "b", []Recipient{NewRecipient(1, "")}, History{}, at)
			for range 2 {
				v := c.Take(r, at)
				v.Recipients()[0].Result = Deferred
				if v.Message == host {
					v.Recipients()[0].Result = HostDeferred
				}
				c.End(v, HostWait{}, at)
				c.Wait(v, at)
			}
			c.Remind(own, at.Add(5*time.Minute))
			// A minute passes, and the clock says something else.
			at = at.Add(time.Minute + by)
			c.Shift(by)
			if _, due := c.Advance(at); len(due) != 0 || c.Take(r, at) != nil {
				t.Errorf("at once: something is due")
			}
			if _, due := c.Advance(at.Add(4 * time.Minute)); len(due) != 1 {
				t.Errorf("after five minutes: got %d reminders, want 1", len(due))
			}
			// Ten minutes and an eighth are the longest wait.
			at = at.Add(11 * time.Minute)
			c.Advance(at)
			for n := range 2 {
				if c.Take(r, at) == nil {
					t.Errorf("after twelve minutes: got %d messages to try, want 2", n)
				}
			}
		})
	}
}

// M27: a message is too old when it is, not when the clock says so; one that is read
// from a file with a time to come is new.
func TestExpiryFollowsTheClockThatIsSet(t *testing.T) {
	begin := time.Unix(2e9, 0)
	tests := map[string]struct {
		stamp time.Duration // of the message, from the begin
		by    time.Duration
		want  time.Duration // of its expiry, from the begin
	}{
		"not set":                     {0, 0, 3 * time.Hour},
		"set forward":                 {0, day(1), 3 * time.Hour},
		"set back":                    {0, day(-1), 3 * time.Hour},
		"set back before it was read": {day(1), 0, 3 * time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCore()
			r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{1}, Expiry2: 3 * time.Hour})
			m := &Message{Number: 1, Stamp: begin.Add(tt.stamp).UnixNano(), Open: 1}
			v := c.Add(m, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{Next: begin.Add(time.Hour * 24 * 365), Attempts: 1}, begin)
			if tt.by != 0 {
				c.Shift(tt.by)
			}
			at := begin.Add(tt.by)
			if expired, _ := c.Advance(at.Add(tt.want - time.Millisecond)); len(expired) != 0 {
				t.Errorf("expired before %v", tt.want)
			}
			if expired, _ := c.Advance(at.Add(tt.want)); len(expired) != 1 || expired[0] != v {
				t.Errorf("got %v, want it to expire after %v", expired, tt.want)
			}
		})
	}
}

// M28, new mail that starves old: with ageorder a message from before the clock was
// set back goes before those that came after.
func TestMailFromBeforeTheClockWasSetBackGoesFirst(t *testing.T) {
	c := newCore()
	at := time.Unix(2e9, 0)
	r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{1}, AgeOrder: true})
	old := &Message{Number: 1, Stamp: at.UnixNano(), Open: 1}
	c.Add(old, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
	at = at.Add(day(-1) + time.Minute)
	c.Shift(day(-1))
	young := &Message{Number: 2, Stamp: at.UnixNano(), Open: 1}
	c.Add(young, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
	for _, want := range []*Message{old, young} {
		if v := c.Take(r, at); v == nil || v.Message != want {
			t.Fatalf("got %v, want message %d", v, want.Number)
		}
	}
}

// A clock that is set costs nothing for each message, neither those that wait then nor
// those that come later.
func TestClockThatIsSetTakesNoMemory(t *testing.T) {
	at := time.Unix(2e9, 0)
	c := newCore()
	r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{1}, Expiry: time.Hour})
	arrive := func(n uint64) *Message {
		m := &Message{Number: n, Stamp: at.UnixNano(), Open: 1}
		c.Add(m, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
		c.Remind(m, at.Add(time.Minute))
		return m
	}
	for n := range uint64(1000) {
		arrive(n)
	}
	if got := testing.AllocsPerRun(10, func() { c.Shift(time.Hour) }); got > 1 {
		t.Errorf("%v allocations for 1000 messages that wait, want one for all", got)
	}
	at = at.Add(11 * time.Hour)
	if v, w := arrive(2000), arrive(2001); v.odd != w.odd {
		t.Error("two that come later have memory of their own for that")
	}
}

// A message that is known is as old as it was, and one that comes later is new, however
// often the clock is set; what is odd about one is not about others.
func TestAgesAfterSeveralClocksThatAreSet(t *testing.T) {
	c := newCore()
	at := time.Unix(2e9, 0)
	begin := at
	r := c.Ring("r", Policy{Interval: time.Minute, Retries: []int{1}})
	born := map[*Message]time.Duration{} // since the begin, by a clock that is never set
	past := time.Duration(0)
	for i, by := range []time.Duration{day(2), day(-5), 0, day(3) + time.Hour, day(-1)} {
		for k := range 4 {
			m := &Message{Number: uint64(10*i + k), Stamp: at.UnixNano(), Open: 1}
			if k == 1 {
				m.SetName("odd")
			}
			if k == 2 {
				m.SetAway(time.Minute)
			}
			if k == 3 {
				c.Remind(m, at.Add(day(30))) // its recipients are held
			} else {
				c.Add(m, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
			}
			born[m] = past
		}
		at, past = at.Add(by+time.Minute), past+time.Minute
		c.Shift(by)
	}
	for m, since := range born {
		if m.first == nil {
			c.Add(m, r, "smtp", "a", []Recipient{NewRecipient(1, "")}, History{}, at)
			assert.Equal(t, c.Reminder(m).Sub(at), day(30)-past+since, "message %d: time until its reminder", m.Number)
		}
		assert.Equal(t, at.Sub(c.accepted(m)), past-since, "age of message %d", m.Number)
		assert.Equal(t, m.accepted(), begin.Add(since).UnixMilli(), "message %d: time of acceptance", m.Number)
		if odd := m.Number%10 == 1; odd != (m.Name() == "odd") {
			t.Errorf("message %d is called %s", m.Number, m.Name())
		}
	}
}

func newCore() *Core { return New(rand.New(rand.NewPCG(1, 2))) }
