package thread

import "time"

// The core's time is the time of day as it was when the core was made, going on evenly:
// when the clock is set, it is not. All times of vertices, threads, rings and messages are
// in it, so that setting the clock changes nothing but the offset between the two.

// Shift follows a clock that was set by so much: the rest of each wait and the age
// of each message stay as they are.
func (c *Core) Shift(by time.Duration) {
	c.offset += by.Milliseconds()
	c.newcomers = &odd{ahead: -c.offset, common: true}
}

// ms is a time of day in milliseconds of the core's time.
func (c *Core) ms(t time.Time) int64 { return t.UnixMilli() - c.offset }

// time is the time of day that ms is of.
func (c *Core) time(ms int64) time.Time { return time.UnixMilli(ms + c.offset) }

// enter takes note of a message that has just come: its stamp is by the clock as it is
// now set.
func (c *Core) enter(m *Message) {
	if m.name[2]&entered != 0 {
		return
	}
	m.name[2] |= entered
	switch {
	case c.newcomers == nil:
	case m.odd == nil:
		m.odd = c.newcomers
	default:
		m.oddly().ahead -= c.offset
	}
}

// accepted is when m was accepted, in milliseconds of the core's time.
func (m *Message) accepted() int64 { return m.Stamp/int64(time.Millisecond) + m.ahead() }

// accepted is when m was accepted by the clock as it is now set.
func (c *Core) accepted(m *Message) time.Time {
	return time.Unix(0, m.when()+c.offset*int64(time.Millisecond))
}

// notAhead has a message that comes from the future, which it does when the clock was
// set back since, be accepted now.
func (m *Message) notAhead(ms int64) {
	if m.first == nil && m.accepted() > ms {
		m.oddly().ahead = ms - m.Stamp/int64(time.Millisecond)
	}
}

// Accepted sets when a message was accepted whose stamp is ahead of the clock. It has no
// vertex yet.
func (c *Core) Accepted(m *Message, at time.Time) {
	c.enter(m)
	m.oddly().ahead = c.ms(at) - m.Stamp/int64(time.Millisecond)
}

// when is when m was accepted, in nanoseconds of the core's time, to order messages by.
func (m *Message) when() int64 { return m.Stamp + m.ahead()*int64(time.Millisecond) }
