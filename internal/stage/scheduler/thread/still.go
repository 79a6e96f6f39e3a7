package thread

import "time"

// Waits tells whether some of the message's recipients are in a thread.
func (m *Message) Waits() bool { return m.first != nil }

// Could tells how many deliveries of the thread could begin and how many are under way,
// none if its host, a rate or a person stands against it; and how many have begun since
// the thread came to be. It is cheap.
func (t *Thread) Could(now time.Time) (ready, running int, begun uint64) {
	if t.ready == 0 && t.running == 0 {
		return 0, 0, t.attempts
	}
	if state, _ := t.state(t.Ring.core.ms(now)); state != Active {
		return 0, 0, t.attempts
	}
	return t.ready, t.running, t.attempts
}
