package tasmtp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/recent"
)

const (
	// openingsPerAddr bounds the sessions that are being opened at one address that has not
	// answered yet, for whatever hosts.
	openingsPerAddr = 4
	// openingWait is how long another one waits for the answer to them.
	openingWait = 10 * time.Second
	// shortTime is how long the opening of a session may take, at an address that has
	// not answered yet, while such openings hold half of the slots. RFC 5321 section
	// 4.5.3.2.1 asks for 5 minutes for the greeting alone, which they get otherwise.
	shortTime = 30 * time.Second
	// answeredAddrs is how many addresses that have answered are remembered at least.
	answeredAddrs = 10_000
)

// openings limits the sessions being opened at addresses that have not answered since the
// process started or since they were silent: a host that accepts connections and sends
// nothing must not hold the slots of this process, whatever names it has. An address that
// has answered is neither counted nor given less time.
type openings struct {
	slots int
	short time.Duration // shortTime, but in tests
	wait  time.Duration // openingWait, but in tests
	log   *slog.Logger
	// onLate, if set, is called when the short time of an opening is over.
	onLate func()

	mu       sync.Mutex
	answered recent.Set[string]
	at       map[string]*addrOpenings
	running  map[*opening]struct{}
	pressed  bool // openings hold half of the slots
}

// addrOpenings is the openings at one address.
type addrOpenings struct {
	running int
	free    chan struct{} // closed when one of them ends
}

// opening is a session being opened at an address that has not answered yet.
type opening struct {
	address string
	nc      net.Conn    // nil: it is being connected to, which has a shorter time-out
	timer   *time.Timer // of hurry
	late    bool        // hurry is over
	cut     bool        // and the connection was closed for it
}

func newOpenings(slots int, log *slog.Logger) *openings {
	return &openings{slots: slots, short: shortTime, wait: openingWait, log: log, answered: recent.New[string](answeredAddrs),
		at: map[string]*addrOpenings{}, running: map[*opening]struct{}{}}
}

// begin counts an opening, from the connecting to the end of it; nil: the address has
// answered before. ok is false if there are as many at the address as may be.
func (u *openings) begin(t target) (x *opening, ok bool) {
	if t.network == "unix" {
		return nil, true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.answered.Has(t.address) {
		return nil, true
	}
	w := u.at[t.address]
	if w != nil && w.running >= openingsPerAddr {
		return nil, false
	}
	x = &opening{address: t.address}
	u.running[x] = struct{}{}
	if w == nil {
		w = &addrOpenings{free: make(chan struct{})}
		u.at[t.address] = w
	}
	w.running++
	u.press()
	return x, true
}

// connected notes the connection of an opening: its short time begins.
func (u *openings) connected(x *opening, nc net.Conn) {
	if x == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	x.nc = nc
	x.timer = time.AfterFunc(u.short, func() { u.overdue(x) })
}

// press follows the number of openings: when they hold half of the slots, those that are
// late end.
func (u *openings) press() {
	was := u.pressed
	u.pressed = len(u.running) >= openingsPerAddr && 2*len(u.running) >= u.slots
	if was || !u.pressed {
		return
	}
	u.log.Info("silent-hosts", "openings", len(u.running), "slots", u.slots,
		"reason", fmt.Sprintf("half of the slots wait for hosts that have not answered; they get %v to open a session while that lasts", u.short))
	for x := range u.running {
		u.cutLate(x)
	}
}

// overdue ends an opening whose time is over, as soon as others need its slot.
func (u *openings) overdue(x *opening) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x.late = true
	if u.onLate != nil {
		u.onLate()
	}
	u.cutLate(x)
}

func (u *openings) cutLate(x *opening) {
	if _, there := u.running[x]; there && x.late && u.pressed && !x.cut {
		x.cut = true
		_ = x.nc.Close() // ends the read with an error
	}
}

// end ends an opening, if it has not ended, and reports whether it was cut. answered: the
// session is open.
func (u *openings) end(x *opening, answered bool) (cut bool) {
	if x == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, there := u.running[x]; !there {
		return x.cut
	}
	if x.timer != nil {
		x.timer.Stop()
	}
	delete(u.running, x)
	w := u.at[x.address]
	if w.running--; w.running == 0 {
		delete(u.at, x.address)
	}
	close(w.free)
	w.free = make(chan struct{})
	if answered {
		u.answered.Add(x.address)
	}
	u.press()
	return x.cut
}

// silent forgets that an address has answered.
func (u *openings) silent(t target) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answered.Drop(t.address)
}

// awaitFree returns those of a server's addresses at which another session may be opened
// now. If there are none it waits for one, but not for long, since waiting holds a slot,
// too. until is when the wait for this server ends; zero: it has not begun.
func (u *openings) awaitFree(ctx context.Context, addrs []target, until *time.Time) ([]target, *refusal) {
	var late <-chan time.Time
	for {
		list, busy := u.available(addrs)
		if busy == nil {
			return list, nil
		}
		if late == nil {
			if until.IsZero() {
				*until = time.Now().Add(u.wait)
			}
			timer := time.NewTimer(time.Until(*until))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-busy.free:
			continue
		case <-late:
		case <-ctx.Done():
		}
		return nil, crowded(addrs[0])
	}
}

// crowded returns the refusal of an address with too many openings.
func crowded(t target) *refusal {
	return &refusal{code: status.NoAnswer, weight: weightConnect, remote: t.remote(nil), crowded: true,
		reply: fmt.Sprintf("%d connections already wait for an answer of %s; no further one is tried", openingsPerAddr, t.address)}
}

// available returns those addresses without waiting; busy is what to wait for if there
// are none.
func (u *openings) available(addrs []target) (list []target, busy *addrOpenings) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, t := range addrs {
		w := u.at[t.address]
		if w == nil || w.running < openingsPerAddr || u.answered.Has(t.address) {
			if list != nil {
				list = append(list, t)
			}
			continue
		}
		if list == nil {
			list = append(make([]target, 0, len(addrs)), addrs[:i]...)
		}
		if busy == nil {
			busy = &addrOpenings{free: w.free}
		}
	}
	switch {
	case list == nil:
		return addrs, nil // the usual case costs no memory
	case len(list) > 0:
		return list, nil
	}
	return nil, busy
}
