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
	// unheardAtOnce bounds the sessions that are being opened at one address that has not
	// answered yet, for whatever hosts.
	unheardAtOnce = 4
	// unheardWait is how long another one waits for the answer to them.
	unheardWait = 10 * time.Second
	// hurriedTime is how long the opening of a session may take, at an address that has
	// not answered yet, while such openings hold half of the slots. RFC 5321 section
	// 4.5.3.2.1 asks for 5 minutes for the greeting alone, which is what they get otherwise.
	hurriedTime = 30 * time.Second
	// heardAddresses is how many addresses that have answered are remembered at least.
	heardAddresses = 10_000
)

// unheard is the addresses that sessions are being opened at and that have not answered
// since the process started or since they were silent: a host that accepts connections
// and says nothing must not hold the slots of this process, under whatever names it is.
// An address that has answered is neither counted nor hurried.
type unheard struct {
	slots int
	hurry time.Duration // hurriedTime, but in tests
	wait  time.Duration // unheardWait, but in tests
	log   *slog.Logger
	// onLate, if set, is called when the short time of a trial is over.
	onLate func()

	mu     sync.Mutex
	heard  recent.Set[string]
	at     map[string]*waitingAt
	trials map[*trial]struct{}
	hectic bool // half of the slots are held by trials
}

// waitingAt is the trials at one address.
type waitingAt struct {
	trials int
	free   chan struct{} // closed when one of them ends
}

// trial is the opening of a session at an address that has not answered yet.
type trial struct {
	address string
	nc      net.Conn    // nil: it is being connected to, which has a shorter time-out
	timer   *time.Timer // of hurry
	late    bool        // hurry is over
	cut     bool        // and the connection was closed for it
}

func newUnheard(slots int, log *slog.Logger) *unheard {
	return &unheard{slots: slots, hurry: hurriedTime, wait: unheardWait, log: log, heard: recent.New[string](heardAddresses),
		at: map[string]*waitingAt{}, trials: map[*trial]struct{}{}}
}

// begin counts an opening, from the connecting to the end of it; nil: the address has
// answered before. ok is false if there are as many at the address as may be.
func (u *unheard) begin(t target) (x *trial, ok bool) {
	if t.network == "unix" {
		return nil, true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.heard.Has(t.address) {
		return nil, true
	}
	w := u.at[t.address]
	if w != nil && w.trials >= unheardAtOnce {
		return nil, false
	}
	x = &trial{address: t.address}
	u.trials[x] = struct{}{}
	if w == nil {
		w = &waitingAt{free: make(chan struct{})}
		u.at[t.address] = w
	}
	w.trials++
	u.press()
	return x, true
}

// connected notes the connection of an opening: its short time begins.
func (u *unheard) connected(x *trial, nc net.Conn) {
	if x == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	x.nc = nc
	x.timer = time.AfterFunc(u.hurry, func() { u.overdue(x) })
}

// press follows the number of trials: when they come to hold half of the slots, those that
// are late end.
func (u *unheard) press() {
	was := u.hectic
	u.hectic = len(u.trials) >= unheardAtOnce && 2*len(u.trials) >= u.slots
	if was || !u.hectic {
		return
	}
	u.log.Info("silent-hosts", "openings", len(u.trials), "slots", u.slots,
		"reason", fmt.Sprintf("half of the slots wait for hosts that have not answered; they get %v to open a session while that lasts", u.hurry))
	for x := range u.trials {
		u.cutLate(x)
	}
}

// overdue ends a trial whose time is over, if others need its slot, or when they do.
func (u *unheard) overdue(x *trial) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x.late = true
	if u.onLate != nil {
		u.onLate()
	}
	u.cutLate(x)
}

func (u *unheard) cutLate(x *trial) {
	if _, there := u.trials[x]; there && x.late && u.hectic && !x.cut {
		x.cut = true
		_ = x.nc.Close() // whoever reads from it ends with an error
	}
}

// end ends a trial, if it has not ended, and reports whether it was cut. answered: the
// session is open.
func (u *unheard) end(x *trial, answered bool) (cut bool) {
	if x == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, there := u.trials[x]; !there {
		return x.cut
	}
	if x.timer != nil {
		x.timer.Stop()
	}
	delete(u.trials, x)
	w := u.at[x.address]
	if w.trials--; w.trials == 0 {
		delete(u.at, x.address)
	}
	close(w.free)
	w.free = make(chan struct{})
	if answered {
		u.heard.Add(x.address)
	}
	u.press()
	return x.cut
}

// silent forgets that an address has answered.
func (u *unheard) silent(t target) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.heard.Drop(t.address)
}

// free gives those of a server's addresses that another session may be opened at now. If
// there are none it waits for one, but not for long: whoever waits holds a slot, too. until
// is when the wait for this server ends; zero: it has not begun.
func (u *unheard) free(ctx context.Context, addrs []target, until *time.Time) ([]target, *refusal) {
	var late <-chan time.Time
	for {
		list, busy := u.look(addrs)
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

// crowded is why an address is not connected to.
func crowded(t target) *refusal {
	return &refusal{code: status.NoAnswer, weight: weightConnect, remote: t.remote(nil), crowded: true,
		reply: fmt.Sprintf("%d connections wait for an answer of %s already; it is not tried beside them", unheardAtOnce, t.address)}
}

// look is free without the wait: busy is what to wait for if there are none.
func (u *unheard) look(addrs []target) (list []target, busy *waitingAt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, t := range addrs {
		w := u.at[t.address]
		if w == nil || w.trials < unheardAtOnce || u.heard.Has(t.address) {
			if list != nil {
				list = append(list, t)
			}
			continue
		}
		if list == nil {
			list = append(make([]target, 0, len(addrs)), addrs[:i]...)
		}
		if busy == nil {
			busy = &waitingAt{free: w.free}
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
