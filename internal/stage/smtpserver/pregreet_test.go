package smtpserver

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// strangers has loopback be other hosts, who are tested.
func strangers(action string, wait time.Duration) func(*Config) {
	return func(c *Config) {
		c.Access.RelayNets = nil
		c.Pregreet = Pregreet{Wait: wait, Action: action, Keep: time.Hour}
	}
}

// A client that speaks before it is greeted is refused; what it is told and when depends on
// PREGREETACTION.
func TestEarlyTalkersAreRefused(t *testing.T) {
	for action, want := range map[string]string{"enforce": "550 5.5.1", "ignore": "250", "drop": ""} {
		t.Run(action, func(t *testing.T) {
			r := start(t, strangers(action, time.Minute)) // it ends as soon as the client speaks
			p := r.connect(0)
			p.send("EHLO client.example.net\r\nMAIL FROM:<a@example.net>\r\nRCPT TO:<b@localhost>\r\n")
			p.expect("220-") // reads the whole greeting of two lines
			if want != "" {
				p.expect("250")
				p.expect("250")
				p.expect(want)
			}
			r.log.Expect(t, 1, "msg=pregreet", "action="+action)
		})
	}
}

// A client that has waited is known, also after a restart, and is greeted at once.
func TestClientThatHasWaitedIsNotTestedAgain(t *testing.T) {
	r := start(t, strangers("enforce", 50*time.Millisecond))
	began := time.Now()
	p := r.connect(0)
	first, err := p.r.ReadString('\n')
	assert.Must(t, err)
	assert.Equal(t, strings.HasPrefix(first, "220-"), true)
	p.expect("220 ")
	if d := time.Since(began); d < 50*time.Millisecond {
		t.Errorf("greeted after %v", d)
	}
	p.say("EHLO client.example.net", "250")
	q := r.connect(0)
	second, err := q.r.ReadString('\n')
	assert.Must(t, err)
	assert.Equal(t, strings.HasPrefix(second, "220 "), true, second)
	p.Close()
	q.Close()
	r.ended()
	assert.Equal(t, strings.Join(r.names("clients"), " "), "greeted")
	r.log.Expect(t, 0, "msg=pregreet")
}

// A client that goes away while it waits is not known, and our own clients are not tested.
func TestOnlyStrangersAreTested(t *testing.T) {
	r := start(t, func(c *Config) { c.Pregreet = Pregreet{Wait: time.Minute, Action: "enforce"} }) // loopback may relay
	p := r.connect(0)
	p.send("EHLO client.example.net\r\n")
	p.expect("220 ")
	p.expect("250")
}
