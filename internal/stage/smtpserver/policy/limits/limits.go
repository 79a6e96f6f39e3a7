// Package limits counts connections, messages, recipients and wrong passwords of each
// address, user or sender, and measures the space and load of the machine (M46).
//
// It owns nothing on disk and reads /proc/loadavg. The counts do not survive the program.
// Its memory is bounded: with more addresses than it can hold, it forgets those that have
// used least of their rates.
//
// Diagnostics: *Excess names the limit that was reached; it is temporary. Space's other
// errors mean that the file system cannot be measured.
package limits

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/run/config"
)

// maxCounted is how many addresses and users are counted at a time. Some 200 bytes each.
const maxCounted = 100_000

// Rate limits events per interval; after a pause, Count of them may come at once. The zero
// value: no limit.
type Rate struct {
	Count int
	Per   time.Duration
}

// ParseRate reads "60/1m"; "off" is no limit.
func ParseRate(s string) (Rate, error) {
	if s == "off" {
		return Rate{}, nil
	}
	count, per, ok := strings.Cut(s, "/")
	n, err := strconv.Atoi(count)
	d, derr := config.ParseDuration(per)
	if !ok || err != nil || derr != nil || n < 1 || d < time.Second {
		return Rate{}, errors.New("want a number and an interval, like 60/1m, or off")
	}
	return Rate{n, d}, nil
}

func (r Rate) String() string {
	if r.Count == 0 {
		return "off"
	}
	return fmt.Sprintf("%d in %v", r.Count, r.Per)
}

// What is counted.
const (
	connecting = iota
	sending
	naming
	sendingAs
	namingAs
	guessing
	kinds
)

// Config is the limits; zero values are no limits.
type Config struct {
	PerAddress  int  // connections of one address at a time
	Connections Rate // of one address
	Messages    Rate // of one user, or address
	Recipients  Rate // the same
	// SenderMessages and SenderRecipients are of one envelope sender, whichever client or user
	// names it.
	SenderMessages, SenderRecipients Rate

	Failures Rate // of passwords, of one address
	Exempt   []netip.Prefix

	MinFree  int64   // bytes that are to be left for others
	MinFiles int64   // the same for files
	MaxLoad  float64 // load average of a minute

	Now     func() time.Time
	Load    func() (float64, error)        // nil: /proc/loadavg
	Measure func(dir string) (Room, error) // nil: statfs(2)
}

// Excess is a limit that was reached.
type Excess struct {
	What string // "connections of your address", for the client
	By   string // the limit as it is set, for the log
	Kind string // "user-messages" and so on, for the metrics
}

func (e *Excess) Error() string { return "limits: too many " + e.What + " (" + e.By + ")" }

// Limits counts. It may be used by many goroutines.
type Limits struct {
	c     Config
	rates [kinds]Rate
	most  int // of accounts; smaller in tests

	*counted

	space gauge[Room]
	wrote atomic.Int64 // bytes since the space was measured
	load  gauge[float64]
}

// counted is what was counted.
type counted struct {
	mu       sync.Mutex
	accounts map[key]*account
}

// key is a user, an envelope sender, or the network that an address is counted as.
type key struct {
	user   string
	sender string
	net    netip.Prefix
}

// account is the counts of one key: for each kind the theoretical arrival time of GCRA
// (ITU-T I.371), up to which the rate is used in advance.
type account struct {
	open int // connections
	upto [kinds]time.Time
	own  *[kinds]Rate // those that replace the configured ones; nil: it never had any
}

// New makes Limits with nothing counted.
func New(c Config) *Limits { return (&Limits{counted: &counted{accounts: map[key]*account{}}}).With(c) }

// With returns other limits for what l has counted.
func (l *Limits) With(c Config) *Limits {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Load == nil {
		c.Load = readLoad
	}
	if c.Measure == nil {
		c.Measure = measure
	}
	n := &Limits{c: c, most: maxCounted, counted: l.counted}
	n.rates = [kinds]Rate{connecting: c.Connections, sending: c.Messages, naming: c.Recipients, sendingAs: c.SenderMessages, namingAs: c.SenderRecipients, guessing: c.Failures}
	return n
}

// Exempt reports whether a client is not counted: in LIMITSEXEMPT, or on a Unix socket.
func (l *Limits) Exempt(a netip.Addr) bool {
	if !a.IsValid() {
		return true
	}
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(l.c.Exempt, func(n netip.Prefix) bool { return n.Contains(a) })
}

// Network returns the network that an address is counted as: for IPv6 the 64 bits that one
// customer has at least.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	n, _ := a.Prefix(bits) // bits fit
	return n
}

// who returns the key of a client: the user from any address, else the address. For directories,
// tables of RATELIMITS and SENDERLOGIN capitals make no other user.
func who(a netip.Addr, user string) key {
	if user != "" {
		return key{user: strings.ToLower(user)}
	}
	return key{net: Network(a)}
}

// account returns the account of a key, a new one if need be. l.mu is held.
func (l *Limits) account(k key, now time.Time) *account {
	a := l.accounts[k]
	if a == nil {
		if len(l.accounts) >= l.most {
			l.forget(now)
		}
		a = &account{}
		l.accounts[k] = a
	}
	return a
}

// forget removes accounts whose rates are unused; if there are none, the least used of some.
// l.mu is held.
func (l *Limits) forget(now time.Time) {
	const sample = 64
	var least key
	var upto time.Time
	seen, gone := 0, 0
	for k, a := range l.accounts { // begins at a random one
		if a.open > 0 {
			continue // as many as there are connections
		}
		last := a.last()
		if !last.After(now) {
			delete(l.accounts, k)
			gone++
		} else if least == (key{}) || last.Before(upto) {
			least, upto = k, last
		}
		if seen++; seen >= sample {
			break
		}
	}
	if gone == 0 && least != (key{}) {
		delete(l.accounts, least)
	}
}

// last returns the time until which some rate is used.
func (a *account) last() time.Time {
	return slices.MaxFunc(a.upto[:], time.Time.Compare)
}

// take counts one of a kind; false: the rate is used up, and nothing was counted.
func (l *Limits) take(k key, kind int) bool { return l.takeAt(k, kind, l.rates[kind]) }

// takeAt is take with a rate of the key's own.
func (l *Limits) takeAt(k key, kind int, r Rate) bool {
	if r.Count == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.c.Now()
	a := l.account(k, now)
	next := a.upto[kind]
	if next.Before(now) {
		next = now
	}
	next = next.Add(r.Per / time.Duration(r.Count))
	if next.Sub(now) > r.Per {
		return false
	}
	a.upto[kind] = next
	if a.own != nil {
		a.own[kind] = r
	} else if r != l.rates[kind] {
		own := l.rates
		own[kind] = r
		a.own = &own
	}
	return true
}

// undo undoes a takeAt.
func (l *Limits) undo(k key, kind int, r Rate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[k]; a != nil && r.Count > 0 {
		a.upto[kind] = a.upto[kind].Add(-r.Per / time.Duration(r.Count))
	}
}

// Connect counts a connection until done is called. done is nil with an *Excess.
func (l *Limits) Connect(a netip.Addr) (done func(), err error) {
	if l.Exempt(a) {
		return func() {}, nil
	}
	k := who(a, "")
	if !l.take(k, connecting) {
		return nil, &Excess{What: "connections from your address in a short time", By: l.c.Connections.String(), Kind: "client-connections"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.account(k, l.c.Now())
	if l.c.PerAddress > 0 && one.open >= l.c.PerAddress {
		return nil, &Excess{What: "connections from your address", By: strconv.Itoa(l.c.PerAddress)}
	}
	one.open++
	var once sync.Once
	return func() {
		once.Do(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if one.open--; one.open == 0 && !one.last().After(l.c.Now()) {
				delete(l.accounts, k)
			}
		})
	}, nil
}

// Open returns how many connections of an address are open; 0 for one that is not counted.
func (l *Limits) Open(a netip.Addr) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.accounts[who(a, "")]; one != nil {
		return one.open
	}
	return 0
}

// Rates are the rates of one user or sender in place of the configured ones.
type Rates struct {
	Messages, Recipients *Rate // nil: the configured one
}

// Who is the client of a message, and the rates that hold for it.
type Who struct {
	Addr   netip.Addr
	User   string // "": not authenticated; the address is counted
	Sender string // the envelope sender in one spelling; "": not counted

	UserRates, SenderRates Rates
}

// CountsSenders reports whether there is a rate for envelope senders.
func (l *Limits) CountsSenders() bool { return l.c.SenderMessages.Count+l.c.SenderRecipients.Count > 0 }

// Message counts a message.
func (l *Limits) Message(w *Who) error {
	return l.count(w, sending, sendingAs, w.UserRates.Messages, w.SenderRates.Messages, "messages")
}

// Recipient counts a recipient.
func (l *Limits) Recipient(w *Who) error {
	return l.count(w, naming, namingAs, w.UserRates.Recipients, w.SenderRates.Recipients, "recipients")
}

// count counts one event of a client, and of its sender. Above either rate neither is counted.
func (l *Limits) count(w *Who, kind, kindAs int, own, ownAs *Rate, what string) error {
	if w.User == "" && l.Exempt(w.Addr) {
		return nil
	}
	client, r, word := who(w.Addr, w.User), l.rates[kind], "client-"
	if w.User != "" {
		word = "user-"
		if own != nil {
			r = *own
		}
	}
	if !l.takeAt(client, kind, r) {
		return &Excess{What: what + " in a short time", By: r.String(), Kind: word + what}
	}
	if w.Sender == "" {
		return nil
	}
	as := l.rates[kindAs]
	if ownAs != nil {
		as = *ownAs
	}
	if !l.takeAt(key{sender: w.Sender}, kindAs, as) {
		l.undo(client, kind, r)
		return &Excess{What: what + " of this sender in a short time", By: as.String(), Kind: "sender-" + what}
	}
	return nil
}

// Guess counts a password before it is checked, so that concurrent attempts count too; right
// undoes it.
func (l *Limits) Guess(a netip.Addr) (right func(), err error) {
	k := who(a, "")
	if l.Exempt(a) {
		return func() {}, nil
	}
	if !l.take(k, guessing) {
		return nil, &Excess{What: "wrong passwords from your address", By: l.c.Failures.String()}
	}
	return func() { l.undo(k, guessing, l.c.Failures) }, nil
}
