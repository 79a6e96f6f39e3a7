// Package greylist defers mail of unknown origin for some minutes: the first message of a
// client's network, sender and recipient is answered 4xx, and a later attempt is accepted. A
// network from which several such attempts came is not tested any more.
//
// It owns the files greylist-waiting, greylist-passed and greylist-clients, by package
// remember, which has what survives a crash. Each is bounded, and a network that makes up
// senders replaces its own entries first.
//
// Diagnostics: Check has no errors; a table that cannot be kept works in memory.
package greylist

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/remember"
)

// Defaults, as postgrey has them.
const (
	DefaultDelay   = 5 * time.Minute
	DefaultRetry   = 2 * 24 * time.Hour
	DefaultKeep    = 35 * 24 * time.Hour
	DefaultAllow   = 5
	DefaultEntries = 200000
	// countEvery is how often an attempt of one network counts towards its being allowed.
	countEvery = time.Hour
)

// Config defines a List.
type Config struct {
	FS      durable.FS // of the postoffice; nil: nothing is kept on disk
	Delay   time.Duration
	Retry   time.Duration // within which a second attempt has to come
	Keep    time.Duration // after the last message
	Allow   int           // attempts after which a network is allowed; 0: never
	Entries int           // of each table
	Now     func() time.Time
	Log     *slog.Logger
	Keeper  config.Keeper // of alarms; may be nil
}

// List is the greylist. It may be used by many goroutines.
type List struct {
	c                        Config
	waiting, passed, clients *remember.Table
}

// Open reads the tables.
func Open(c Config) *List {
	if c.Now == nil {
		c.Now = time.Now
	}
	table := func(name string, keep time.Duration) *remember.Table {
		return remember.Open(remember.Config{FS: c.FS, Name: "greylist-" + name, Most: c.Entries, Keep: keep, Now: c.Now, Log: c.Log, Keeper: c.Keeper})
	}
	return &List{c: c, waiting: table("waiting", c.Retry), passed: table("passed", c.Keep), clients: table("clients", c.Keep)}
}

// With returns a list that decides by other settings, over the same tables. FS is that of l.
func (l *List) With(c Config) *List {
	next := *l
	c.FS, c.Log, c.Now, c.Keeper = l.c.FS, l.c.Log, l.c.Now, l.c.Keeper
	next.c = c
	l.waiting.Limit(c.Entries, c.Retry)
	l.passed.Limit(c.Entries, c.Keep)
	l.clients.Limit(c.Entries, c.Keep)
	return &next
}

// Close writes what was not written yet.
func (l *List) Close() {
	for _, t := range []*remember.Table{l.waiting, l.passed, l.clients} {
		t.Close()
	}
}

// Sizes returns how many entries the tables have.
func (l *List) Sizes() (waiting, passed, clients int) {
	return l.waiting.Len(), l.passed.Len(), l.clients.Len()
}

// Result is a decision.
type Result struct {
	Pass bool
	Why  string        // new, early, known, allowed or returned
	Wait time.Duration // not Pass: how long until an attempt is accepted
}

// Network returns the part of an address that counts: senders try again from another machine
// beside the first.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 64
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // an address that is valid has so many
	return p
}

// siteBits is how much of an IPv6 address is one owner's, for whose entries others' are not dropped:
// a site has a /48 and so 65,536 networks, each of which could bring a few entries.
const siteBits = 48

// group returns what entries of one origin share when the table is full.
func group(client netip.Addr) uint32 {
	n := Network(client)
	if n.Addr().Is6() {
		n, _ = n.Addr().Prefix(siteBits) // it has so many
	}
	k := hash(n.String())
	return max(binary.LittleEndian.Uint32(k[:4]), 1)
}

// hash makes a key of parts.
func hash(parts ...string) (k remember.Key) {
	h := sha256.New()
	for _, p := range parts {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	copy(k[:], h.Sum(nil))
	return k
}

// Check decides about a message of an untrusted client, and remembers it. With look nothing is
// remembered.
func (l *List) Check(client netip.Addr, from, to address.Mailbox, look bool) Result {
	now := l.c.Now()
	second := now.Unix()
	network := Network(client).String()
	origin := hash(network)
	group := group(client)
	host, known := l.clients.Get(origin)
	if known && l.c.Allow > 0 && int(host.Count) >= l.c.Allow {
		l.refresh(l.clients, origin, host, look)
		return Result{Pass: true, Why: "allowed"}
	}
	triple := hash(network, sender(from), key(to))
	if e, ok := l.passed.Get(triple); ok {
		l.refresh(l.passed, triple, e, look)
		return Result{Pass: true, Why: "known"}
	}
	e, ok := l.waiting.Get(triple)
	if !ok {
		if !look {
			l.waiting.Put(triple, remember.Entry{First: second, Last: second, Count: 1, Group: group})
		}
		return Result{Why: "new", Wait: l.c.Delay}
	}
	if e.First > second && !look {
		// The clock was ahead when it was written: the sender would wait until that time.
		e.First, e.Last = second, second
		l.waiting.Put(triple, e)
	}
	if left := l.c.Delay - now.Sub(time.Unix(e.First, 0)); left > 0 {
		return Result{Why: "early", Wait: min(left, l.c.Delay)}
	}
	if !look {
		l.waiting.Drop(triple)
		l.passed.Put(triple, remember.Entry{First: e.First, Last: second, Count: 1, Group: group})
		if !known || isDue(host.Last, second) {
			if !known {
				host.First = second
			}
			host.Last, host.Count = second, host.Count+1
			l.clients.Put(origin, host)
		}
	}
	return Result{Pass: true, Why: "returned"}
}

// isDue reports whether something that counts once in countEvery counts again; so it does after the
// clock was set back.
func isDue(last, now int64) bool { return now < last || now-last >= int64(countEvery/time.Second) }

// refresh notes that an entry was used, not more often than every hour.
func (l *List) refresh(t *remember.Table, k remember.Key, e remember.Entry, look bool) {
	now := l.c.Now().Unix()
	if look || !isDue(e.Last, now) {
		return
	}
	e.Last = now
	t.Put(k, e)
}

// sender returns a sender in the form in which it counts: numbers in the local part, which
// lists change with each message, are all the same.
func sender(m address.Mailbox) string {
	var b strings.Builder
	digit := false
	local, domain, _ := strings.Cut(key(m), "@")
	for _, c := range []byte(local) {
		if c >= '0' && c <= '9' {
			if !digit {
				b.WriteByte('#')
			}
			digit = true
			continue
		}
		digit = false
		b.WriteByte(c)
	}
	return b.String() + "@" + domain
}

func key(m address.Mailbox) string { return strings.ToLower(m.Key()) }
