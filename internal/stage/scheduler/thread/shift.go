package thread

import "time"

// The core's time is the time of day as it was when the core was made, going on evenly:
// when the clock is set, it is not. All times of vertices, threads, rings and messages are
// in it, so that setting the clock changes nothing but the offset between the two.

// clock is the core's time.
type clock struct {
	now       int64 // the last time that the caller passed
	offset    int64 // see Shift
	newcomers *odd  // of messages that come since the clock was set, nil: it was not
}

// Shift follows a clock that was set by so much: the rest of each wait and the age
// of each message stay as they are.
func (c *clock) Shift(by time.Duration) {
	c.offset += by.Milliseconds()
	c.newcomers = &odd{ahead: -c.offset, common: true}
}

// ms returns a time of day in milliseconds of the core's time.
func (c *clock) ms(t time.Time) int64 { return t.UnixMilli() - c.offset }

// time returns the time of day that ms is of.
func (c *clock) time(ms int64) time.Time { return time.UnixMilli(ms + c.offset) }

// enter takes note of a message that has just come: its stamp is by the clock as it is
// now set.
func (c *clock) enter(m *Message) {
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
func (c *clock) accepted(m *Message) time.Time {
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
func (c *clock) Accepted(m *Message, at time.Time) {
	c.enter(m)
	m.oddly().ahead = c.ms(at) - m.Stamp/int64(time.Millisecond)
}

// when is when m was accepted, in nanoseconds of the core's time, to order messages by.
func (m *Message) when() int64 { return m.Stamp + m.ahead()*int64(time.Millisecond) }

// at takes note of the time.
func (c *clock) at(now time.Time) int64 {
	c.now = c.ms(now)
	return c.now
}

// farthest bounds how long a host is left alone on request of an agent or a file: one
// wrong digit must not stop its mail for ever.
const farthest = 30 * 24 * time.Hour

// notFar returns a time in milliseconds, at most farthest away.
func (c *clock) notFar(t time.Time, ms int64) int64 {
	if latest := ms + farthest.Milliseconds(); t.After(c.time(latest)) {
		return latest
	}
	return c.ms(t)
}
