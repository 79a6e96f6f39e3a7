package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// The engine measures waits by a clock that cannot be set, and has the time of day
// from one that can. When the second one jumps, what is left of each wait stays as it
// was: the core, which has most of them, keeps a time of its own, and the few others are
// moved (docs/notes/clock.md).

// clocks are where the engine's time comes from.
type clocks struct {
	now    func() time.Time     // time of day; nil: the system's
	steady func() time.Duration // since some moment, never set, counting on while the machine sleeps; nil: bootClock
}

// stepped is how far the two clocks must have parted to say that the one was set. The
// kernel's own corrections go into both.
const stepped = 2 * time.Second

func (c clocks) orSystem() clocks {
	if c.now == nil {
		c.now = time.Now
	}
	if c.steady == nil {
		b := bootClock{ask: func() (time.Duration, bool) {
			var t unix.Timespec
			err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
			return time.Duration(t.Nano()), err == nil
		}}
		begin := time.Now()
		c.steady = func() time.Duration {
			now := time.Now()
			return b.read(time.Duration(now.UnixNano()), now.Sub(begin))
		}
	}
	return c
}

// bootClock reads CLOCK_BOOTTIME. That is a system call, so mostly it is computed from
// Go's clock, which is none: the two part while the machine sleeps and at no other time, and
// the time of day goes on then.
type bootClock struct {
	ask   func() (time.Duration, bool) // reads it; false: it cannot be read
	asked bool
	boot  time.Duration // at the last system call,
	day   time.Duration // the time of day then,
	even  time.Duration // and Go's clock
}

// askedEvery is for how long it is computed without a system call.
const askedEvery = time.Second

func (b *bootClock) read(day, even time.Duration) time.Duration {
	passed := even - b.even
	if b.asked && passed < askedEvery && (day-b.day-passed).Abs() < stepped/2 {
		return b.boot + passed
	}
	boot, ok := b.ask()
	if !ok {
		boot = b.boot + passed
	}
	b.asked, b.boot, b.day, b.even = true, boot, day, even
	return boot
}

// clock keeps the time of the engine's turns.
type clock struct {
	*base
	intake    *intake
	placement *placement
	scanner   *scanner
	monitor   *monitor
	heap      *heap
	deadline  *time.Time // of a stop

	day   time.Time     // the time of day when the steady clock
	since time.Duration // was at this
}

// tick reads the clocks.
func (e *clock) tick() {
	wall, steady := e.conf.tuning.clocks.now().Round(0), e.conf.tuning.clocks.steady()
	if e.day.IsZero() {
		e.day, e.since = wall, steady
	}
	if by := wall.Sub(e.day) - (steady - e.since); by.Abs() >= stepped {
		e.day, e.since = wall, steady
		e.log.Warn("clock-set", "by", by.Round(time.Millisecond), "reason", "the system's clock was set; waits go on as they were")
		e.now = wall
		e.agents.Tick(wall)
		e.shift(by)
	}
	e.now = wall
	e.agents.Tick(wall)
}

// shift has everything that is to come stay as far away as it was.
func (e *clock) shift(by time.Duration) {
	e.core.Shift(by)
	e.agents.Shift(by)
	later := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	later(&e.placement.lockedAt)
	later(&e.scanner.lookAt)
	later(&e.heap.trimAt)
	later(&e.scanner.lookEnded)
	later(e.deadline)
	later(&e.monitor.at)
	for name, r := range e.intake.refused {
		later(&r.alone)
		e.intake.refused[name] = r
	}
	for t, s := range e.monitor.still {
		later(&s.since)
		e.monitor.still[t] = s
	}
}
