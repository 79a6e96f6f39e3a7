package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"zmailer/internal/run/human"
)

// daemonState is how one daemon does.
type daemonState struct {
	Daemon string `json:"daemon"`
	Runs   bool   `json:"runs"`
	// Ready: it has said so, or has lived for a moment.
	Ready bool       `json:"ready"`
	Pid   int        `json:"pid,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// Starts is how often it was started.
	Starts int `json:"starts,omitempty"`
	// Last is how it ended the last time.
	Last    string `json:"last,omitempty"`
	Stopped bool   `json:"stopped,omitempty"` // by a person
	// Replaced: there is another program under its name now.
	Replaced bool `json:"replaced,omitempty"`

	ends int // how often it ended since it was started by a person
}

// readyAfter is the life after which a daemon that says nothing counts as ready.
const readyAfter = time.Second

// began notes that the process runs. d.mu is held.
func (d *daemon) began(pid int) {
	now := time.Now()
	d.state = daemonState{Daemon: d.name, Runs: true, Pid: pid, Since: &now, Starts: d.state.Starts + 1, Last: d.state.Last, ends: d.state.ends}
	time.AfterFunc(readyAfter, func() { d.ready(pid) })
	d.tell()
}

// ready notes that this process serves.
func (d *daemon) ready(pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Pid == pid && !d.state.Ready {
		d.state.Ready = true
		d.tell()
	}
}

// tell wakes who waits for another state. d.mu is held.
func (d *daemon) tell() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// now is the state, and what is closed when there is another.
func (d *daemon) now() (daemonState, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.state
	st.Replaced = st.Runs && replaced(st.Pid)
	return st, d.changed
}

// replaced tells whether the program of a process is no longer there, or another one.
func replaced(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.HasSuffix(exe, " (deleted)")
}

// awaitUp waits until a daemon is ready; it errs when it has ended more than so many
// times instead, also if it is started again.
func (d *daemon) awaitUp(ctx context.Context, ends int) error {
	for {
		st, changed := d.now()
		switch {
		case st.Ready:
			return nil
		case st.ends > ends:
			return fmt.Errorf("%s has ended: %s", d.name, st.Last)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", d.name, ctx.Err())
		}
	}
}

// String tells it to a person.
func (st *daemonState) String() string {
	name := st.Daemon
	if name == agentsUnit { // it comes and goes with its user
		name = "scheduler"
	}
	switch {
	case st.Runs && st.Replaced:
		return "its program was replaced since: zmctl restart " + name
	case st.Runs && !st.Ready:
		return "starting"
	case st.Runs && st.Starts > 1:
		return fmt.Sprintf("started %s; it had ended: %s", human.Often(st.Starts), st.Last)
	case st.Runs:
		return ""
	case st.Stopped:
		return "stopped: zmctl start " + name
	case st.Last != "":
		return "ended: " + st.Last
	}
	return "not started"
}
