package thread

import "time"

// Waits reports whether some of the message's recipients are in a thread.
func (m *Message) Waits() bool { return m.first != nil }

// Could returns how many deliveries of the thread could begin and how many run, none if its
// host, a rate or an operator prevents that; and how many have begun since
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
