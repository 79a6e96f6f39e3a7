package supervise

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// State describes one program.
type State struct {
	Daemon string `json:"daemon"`
	Runs   bool   `json:"runs"`
	// Ready: the program has reported so, or has run for a second.
	Ready bool       `json:"ready"`
	Pid   int        `json:"pid,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Starts counts the starts since an operator started it.
	Starts int `json:"starts,omitempty"`
	// Last is the reason for which it ended the last time.
	Last    string `json:"last,omitempty"`
	Stopped bool   `json:"stopped,omitempty"` // by an operator
	// Replaced: the file of the running program was replaced, as an upgrade does.
	Replaced bool `json:"replaced,omitempty"`

	ends int // how often it ended
}

// States returns the states of all programs, in the order of stopping.
func (s *Supervisor) States() []State {
	var all []State
	for _, p := range s.programs {
		st, _, _ := p.now()
		st.Replaced = st.Runs && Replaced(st.Pid)
		all = append(all, st)
	}
	return all
}

// AwaitReady waits until every program that no operator has stopped is ready.
func (s *Supervisor) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	for _, p := range s.programs {
		if st, _, _ := p.now(); st.Stopped {
			continue
		}
		if err := p.awaitReady(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until a program is ready, or has ended more than ends times.
func (p *program) awaitReady(ctx context.Context, ends int) error {
	for {
		st, _, changed := p.now()
		switch {
		case st.Ready:
			return nil
		case st.ends > ends:
			return fmt.Errorf("%s has ended: %s", p.name, st.Last)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.name, ctx.Err())
		}
	}
}

// now returns the state, whether the program is wanted, and a channel that is closed when
// either changes.
func (p *program) now() (st State, wanted bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.wanted, p.changed
}

// started records that the process runs. p.mu is held.
func (p *program) started(pid int) {
	now := time.Now()
	p.state = State{Daemon: p.name, Runs: true, Pid: pid, Since: &now, Starts: p.state.Starts + 1, Last: p.state.Last, ends: p.state.ends}
	time.AfterFunc(readyAfter, func() { p.ready(pid) })
	p.notify()
}

// ready records that this process serves.
func (p *program) ready(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Pid == pid && !p.state.Ready {
		p.state.Ready = true
		p.notify()
	}
}

// notify wakes those that wait for a change. p.mu is held.
func (p *program) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Replaced reports whether the file of a running program was removed or replaced.
func Replaced(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.HasSuffix(exe, " (deleted)")
}
