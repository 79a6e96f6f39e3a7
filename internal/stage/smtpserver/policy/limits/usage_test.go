package limits

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// What is left of a rate is what is accepted at once.
func TestWhatIsLeftMayComeAtOnce(t *testing.T) {
	c := newClock()
	l := New(Config{Messages: Rate{10, time.Minute}, Recipients: Rate{20, time.Hour}, SenderMessages: Rate{100, time.Hour}, Now: c.Now})
	own := Rate{5, time.Hour}
	for name, w := range map[string]*Who{
		"a user":            {User: "Jane", Sender: "j@x.example"},
		"another sender":    {User: "jane", Sender: "k@x.example"},
		"a rate of its own": {User: "joe", UserRates: Rates{Messages: &own}},
		"an address":        {Addr: netip.MustParseAddr("2001:db8::1")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wait := range []time.Duration{0, time.Second, 90 * time.Second} {
				c.add(wait)
				before := l.Of(w)
				u := before[0]
				for n := range u.Left() {
					if err := l.Message(w); err != nil {
						t.Fatalf("%+v: %d: %v", u, n, err)
					}
				}
				if err := l.Message(w); !isExcess(err) {
					t.Errorf("%+v: one more: %v", u, err)
				}
				assert.Equal(t, l.Of(w)[0].Left(), 0, "left afterwards")
			}
		})
	}
}

// Who has least left comes first; those with rates of their own are compared by those, and users that
// have used nothing are not there.
func TestTopIsBoundedAndSorted(t *testing.T) {
	c := newClock()
	l := New(Config{Messages: Rate{1000, time.Hour}, Failures: Rate{20, time.Hour}, Now: c.Now})
	for i := range 500 {
		for range i {
			assert.Must(t, l.Message(&Who{User: fmt.Sprintf("user%03d", i)}))
		}
	}
	own := Rate{2, time.Hour}
	assert.Must(t, l.Message(&Who{User: "few", UserRates: Rates{Messages: &own}}), l.Message(&Who{User: "few", UserRates: Rates{Messages: &own}}))
	for range 15 {
		_, err := l.Guess(netip.MustParseAddr("192.0.2.1"))
		assert.Must(t, err)
	}
	got := l.Top(4)
	want := []Usage{
		{"user-messages", "few", 2, 2, time.Hour}, {"client-password-failures", "192.0.2.1", 15, 20, time.Hour},
		{"user-messages", "user499", 499, 1000, time.Hour}, {"user-messages", "user498", 498, 1000, time.Hour},
	}
	assert.Same(t, got, want, "the first four")
	assert.Equal(t, len(l.Top(1000)), 501, "all that have used something")
	c.add(2 * time.Hour)
	assert.Equal(t, len(l.Top(1000)), 0, "after a pause")
}

// Counting a rate of the configuration allocates nothing for the answers.
func TestAnswersCostNothingWithoutOwnRates(t *testing.T) {
	l := New(Config{Messages: Rate{1 << 30, time.Hour}})
	w := &Who{User: "jane"}
	assert.Must(t, l.Message(w))
	assert.Equal(t, testing.AllocsPerRun(1000, func() { _ = l.Message(w) }), 0, "allocations")
}
