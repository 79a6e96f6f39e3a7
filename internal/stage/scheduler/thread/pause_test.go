package thread

import "time"

// Pause lets nothing of the thread begin until Kick asks for it, and again when what
// there was then is over or waits. What runs goes on.
func (c *Core) Pause(t *Thread, now time.Time) {
	t.pausing, t.paused = true, true
	c.update(t, c.ms(now))
}

// Resume ends a pause.
func (c *Core) Resume(t *Thread, now time.Time) {
	t.pausing, t.paused = false, false
	c.update(t, c.ms(now))
}
