// Package lease answers whether this machine still holds its lease in a cluster: until when its
// programs may do what others can see. It owns the page, a file of one memory page in a directory
// below /run: zmcluster writes it, every other program maps it for reading.
//
//	p, err := lease.Open(lease.Options{Dir: "/run/zmailer", Node: "a"})
//	if err := p.Check(lease.Step); err != nil { ... } // nothing is sent, renamed or answered
//
// A nil *Page means that the machine is in no cluster: everything is allowed, and the test for nil
// is all that it costs.
//
// The page counts if its magic number and version are right, it names this node and this boot, its
// checksum is right, its deadline is in the future and at most Longest away, and the file belongs
// to an accepted user and cannot be written by others. In all other cases there is no lease. A
// deadline is valid for the programs of one lease only (docs/cluster.md): a Page remembers the
// number of the first lease that it saw, and no other one counts after that.
//
// Times are those of CLOCK_BOOTTIME, which no change of the date moves and which goes on while
// the machine sleeps.
//
// Nothing survives a restart of the machine, and nothing needs to. Crash: a writer that is killed
// between any two instructions leaves the record before or the new one, because it writes the one
// that is not in use and then says in one store which one is.
//
// Diagnostics: Check's error wraps ErrNoLease and names the page and what is wrong with it. Open
// fails for options that cannot be right; a page that is not there yet is no error, because
// zmcluster may start later. Create's errors mean that no page can be published.
package lease

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
)

const (
	// Step is what must be left of the lease before a step that others see begins: a rename or
	// removal in the postoffice, a reply, a job for an agent, a final dot. It is longer than the
	// pause between the look at the deadline and the step, and shorter than what is left of a
	// lease whose renewals succeed.
	Step = time.Second
	// Soon is what must be left for a machine to be healthy: load balancers send it no clients
	// any more before its programs refuse them.
	Soon = 3 * time.Second
	// Longest is how far away a deadline may be. A page with a later one is damaged.
	Longest = time.Minute
)

// ErrNoLease means that this machine may not do what others can see.
var ErrNoLease = errors.New("no lease")

// Options say which page counts.
type Options struct {
	Dir  string // in which the page is
	Node string // whose page it is
	// Owners are users to whom the page may belong, beside root and the user of this process.
	Owners []uint32
	// Now is the time of CLOCK_BOOTTIME; nil: the system's.
	Now func() time.Duration
}

// Page is a node's page as a program reads it. Its methods may be used by many goroutines, and
// with nil.
type Page struct {
	options Options
	path    string
	boot    [16]byte

	memory atomic.Pointer[memory] // nil: no page could be mapped
	number atomic.Uint64          // of the lease that this program belongs to; 0: it has seen none

	opening sync.Mutex
	tried   time.Duration // when the page was opened or that failed
	file    fileID        // of memory
	why     error         // why there is no memory
}

// PathOf returns the path of a node's page.
func PathOf(dir, node string) string { return filepath.Join(dir, node+".lease") }

// From returns the page of this machine by its settings; nil: it is in no cluster. The page may
// belong to the owner of the postoffice, too.
func From(c *config.Config) (*Page, error) {
	cluster, err := c.Cluster()
	if err != nil || !cluster.On() {
		return nil, err
	}
	o := Options{Dir: cluster.Dir, Node: cluster.Node}
	var st unix.Stat_t
	if unix.Stat(c.PostOffice(), &st) == nil { // else the program reports that the postoffice cannot be used
		o.Owners = []uint32{st.Uid}
	}
	p, err := Open(o)
	if err != nil {
		return nil, c.Invalid("NODE", "cannot be used", err)
	}
	return p, nil
}

// Use is From for a program that collects the mistakes of its settings.
func Use(r *config.Reader) *Page {
	p, err := From(r.Config)
	r.Add(err)
	return p
}

// Open returns the page of a node.
func Open(o Options) (*Page, error) {
	if err := config.CheckNode(o.Node); err != nil {
		return nil, fmt.Errorf("open the lease of a node: %w", err)
	}
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("open the lease of node %s: %q is no absolute path", o.Node, o.Dir)
	}
	if o.Now == nil {
		o.Now = Now
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("open the lease of node %s: %w", o.Node, err)
	}
	p := &Page{options: o, path: PathOf(o.Dir, o.Node), boot: boot}
	p.open(o.Now())
	return p, nil
}

// Now returns the time of CLOCK_BOOTTIME.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return math.MaxInt64 // every deadline has passed
	}
	return time.Duration(t.Nano())
}

// Path returns the path of the page.
func (p *Page) Path() string {
	if p == nil {
		return ""
	}
	return p.path
}

// Check reports why a step that needs some time may not begin. nil: more than that is left.
func (p *Page) Check(need time.Duration) error {
	if p == nil {
		return nil
	}
	left, err := p.left()
	if err == nil && left <= need {
		err = fmt.Errorf("%v is left, and %v is needed", left.Round(time.Millisecond), need)
	}
	if err != nil {
		// The cause is not wrapped: a page that does not exist is not a message that does not.
		return fmt.Errorf("%w: %s: %v", ErrNoLease, p.path, err)
	}
	return nil
}

// Left returns how much is left of the lease: 0 without a lease, the longest duration in no
// cluster.
func (p *Page) Left() time.Duration {
	if p == nil {
		return math.MaxInt64
	}
	left, err := p.left()
	if err != nil {
		return 0
	}
	return left
}

// Joined reports whether this program has seen a lease, whatever is left of it.
func (p *Page) Joined() bool { return p != nil && p.number.Load() != 0 }

// left reads the page. What is left is above 0, or there is an error.
func (p *Page) left() (time.Duration, error) {
	left, err := p.look()
	if err != nil && p.openAgain() {
		left, err = p.look()
	}
	return left, err
}

func (p *Page) look() (time.Duration, error) {
	m := p.memory.Load()
	if m == nil {
		p.opening.Lock()
		defer p.opening.Unlock()
		return 0, p.why
	}
	r, err := m.read(p.options.Node, p.boot)
	// The time is read after the record: a program that was stopped in between finds that it
	// is late.
	now := p.options.Now()
	switch left := r.deadline - now; {
	case err != nil:
		return 0, err
	case r.state != Held || r.number == 0:
		return 0, errors.New("the node has no lease")
	case left <= 0:
		return 0, fmt.Errorf("the deadline passed %v ago", -left.Round(time.Millisecond))
	case left > Longest:
		return 0, fmt.Errorf("the page is damaged: its deadline is in %v", left.Round(time.Second))
	case !p.number.CompareAndSwap(0, r.number) && p.number.Load() != r.number:
		return 0, errors.New("this program belongs to an earlier lease, and must be started again")
	default:
		return left, nil
	}
}

// again is the time between two attempts to open a page that does not count.
const again = time.Second

// openAgain opens the page anew if no page could be mapped, or another one has taken its place. It reports
// whether it did.
func (p *Page) openAgain() bool {
	if !p.opening.TryLock() {
		return false
	}
	defer p.opening.Unlock()
	now := p.options.Now()
	if now-p.tried < again {
		return false
	}
	return p.openLocked(now)
}

func (p *Page) open(now time.Duration) {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.openLocked(now)
}

func (p *Page) openLocked(now time.Duration) bool {
	p.tried = now
	f, err := openFile(p.path, unix.O_RDONLY, p.options.Owners)
	if err == nil {
		// The mapping stays when the file is closed.
		defer f.Close()
		if id := identify(f); p.memory.Load() != nil && id == p.file {
			return false
		}
		var m *memory
		if m, err = mapFile(f, unix.PROT_READ); err == nil {
			// The mapping before is not removed: others may be reading it.
			p.file = identify(f)
			p.memory.Store(m)
			return true
		}
	}
	// Without a file that counts, what was mapped before does not count either.
	p.why = err
	p.memory.Store(nil)
	return false
}

// read returns the record in use.
func (m *memory) read(node string, boot [16]byte) (r record, err error) {
	err = guarded(func() error {
		r, err = m.current(node, boot)
		return err
	})
	return r, err
}

// guarded calls f. A fault in it is an error: the kernel sends SIGBUS to those who use a page whose
// file was cut short.
func guarded(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if recover() != nil {
			err = errors.New("the page is damaged: it cannot be read")
		}
	}()
	return f()
}
