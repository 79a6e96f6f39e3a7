package durable

import "sync"

// Sharer is an FS on which one commit can make many files durable: it keeps its changes
// in one journal, so that the last of them is not on the disk before the others.
type Sharer interface {
	// SharesSync reports whether SyncAll costs less than a Sync of each file.
	SharesSync() bool
	// SyncAll makes open files durable as Sync does with each. An error is of all of them:
	// none may be trusted.
	SyncAll(files []File) error
}

// groupMost is how many files one sync takes.
const groupMost = 128

// Group has goroutines that make a file each durable share the disk's commits. Who finds
// no one at it syncs its file at once, alone. Who does not waits with others for the end
// of that; one of them then syncs for all. No one waits for company.
//
// Why one at a time, and what it is worth, is in docs/notes/group-commit.md.
type Group struct {
	fs Sharer

	mu      sync.Mutex
	busy    bool // somebody syncs
	waiting []*member
}

// member is a file that waits for its sync.
type member struct {
	f    File
	turn chan turn // one value
}

// turn is what a member waits for: to sync for all that wait, or how it was done for it.
type turn struct {
	leads bool
	err   error
}

// NewGroup makes a group of the files of an FS; nil if there is nothing to share.
func NewGroup(f FS) *Group {
	if s, ok := f.(Sharer); ok && s.SharesSync() {
		return &Group{fs: s}
	}
	return nil
}

// Sync makes a file durable, as File.Sync does. The sync that it returns from began
// after the call. An error may be another file's: nothing of the group that shared it
// may be trusted.
func (g *Group) Sync(f File) error {
	if g == nil {
		return f.Sync()
	}
	g.mu.Lock()
	if !g.busy {
		g.busy = true
		g.mu.Unlock()
		defer g.leave()
		return f.Sync()
	}
	m := &member{f: f, turn: make(chan turn, 1)}
	g.waiting = append(g.waiting, m)
	g.mu.Unlock()
	if t := <-m.turn; !t.leads {
		return t.err
	}
	defer g.leave()
	return g.lead(m)
}

// Waiting returns how many files wait for their sync now.
func (g *Group) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// lead syncs a file and those that wait now. They have been written, or they would not
// wait; who comes from here on waits for the next sync.
func (g *Group) lead(m *member) error {
	g.mu.Lock()
	n := min(len(g.waiting), groupMost-1)
	others := append([]*member(nil), g.waiting[:n]...)
	g.waiting = append(g.waiting[:0:0], g.waiting[n:]...)
	g.mu.Unlock()
	if len(others) == 0 {
		return m.f.Sync()
	}
	files := make([]File, 0, n+1)
	for _, o := range others {
		files = append(files, o.f)
	}
	err := g.fs.SyncAll(append(files, m.f))
	for _, o := range others {
		o.turn <- turn{err: err}
	}
	return err
}

// leave has the first that waits go on, if any does.
func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.busy = false
		return
	}
	first := g.waiting[0]
	g.waiting = g.waiting[1:]
	first.turn <- turn{leads: true}
}
