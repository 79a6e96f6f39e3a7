package engine

import "strings"

// The options of a start, as ZMailer's scheduler has them (M22): how much is read at one
// go (-E), whether all is read before the first delivery (-S), a look without deliveries
// (-F), and one thread alone (-p).

// atMost is a number of specifications, or what -E allows.
func (c *Config) atMost(n int) int {
	if c.AtOnce > 0 {
		return min(n, c.AtOnce)
	}
	return n
}

// startsNothing tells whether deliveries are not to begin, at all or not yet.
func (e *engine) startsNothing() bool {
	return e.conf.Freeze || e.conf.ReadFirst && e.scanner.scan != scanTold
}

// apart tells whether a thread is none of those that are served. Its recipients stay in
// their files.
func (e *placement) apart(channel, host string) bool {
	c := &e.conf
	if c.OnlyChannel == "" {
		return false
	}
	return c.OnlyChannel != "*" && c.OnlyChannel != channel || c.OnlyHost != "*" && !strings.EqualFold(c.OnlyHost, host)
}

// ahead is how many specifications may wait to be read when more are listed.
func (c *Config) ahead() int {
	if c.AtOnce > 0 {
		return 0
	}
	return loadsAhead
}
