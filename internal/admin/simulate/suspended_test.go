package simulate

import (
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
)

// Op5: a simulation knows what is suspended: a host until its time, a sender until it is
// resumed.
func TestOp5SimulationKnowsSuspensions(t *testing.T) {
	b, c := simBox(t)
	whole := assert.Get(c.run(Options{Seed: 1}))(t)
	assert.Equal(t, whole.Courses[0].Left, 0, "left without a suspension")
	until := time.Now().Add(7 * time.Hour)
	assert.Must(t, suspension.Change(b.PO, time.Now(), func(l *suspension.List) error {
		for i, s := range []suspension.Suspension{{Host: "h0.test", Until: until}, {Sender: "s1@b"}, {Accepting: true}} {
			s.Order, s.Since = postoffice.NewOperationID(time.Now(), "suspend", i+1), time.Now()
			l.Add(assert.Get(suspension.New(s))(t))
		}
		return nil
	}))
	r := assert.Get(c.run(Options{Seed: 1, Until: 24 * time.Hour}))(t)
	for _, h := range r.Courses[0].Hosts {
		switch h.Host {
		case "smtp/h0.test":
			if h.Left != 0 || h.Drained < 6.9*3600 {
				t.Errorf("the suspended host: %+v", h)
			}
		case "smtp/h1.test": // whose mail is all of the suspended sender
			assert.Equal(t, h.Left, 40, "left of the suspended sender")
		default:
			assert.Equal(t, h.Left, 0, "left at another host")
		}
	}
}
