package agents

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/run/helper"
)

// A scheduler that is not root has agents that run as another user started by another
// process, the launcher, which is. The scheduler asks for a channel and host, and the
// launcher starts the agent that scheduler.conf, as the launcher reads it itself, has for
// them: whoever takes over the scheduler can start agents, and nothing else
// (docs/privileges.md). The two exchange messages of JSON over a socket of type
// SOCK_SEQPACKET.

// launchRequest is a message to the launcher. Start: with the agent's standard input and
// output as descriptors. Signal: to an agent that it has started.
type launchRequest struct {
	Hello   bool   `json:"hello,omitempty"` // the first one: a scheduler is there
	Start   uint64 `json:"start,omitempty"` // a number for the answer
	Channel string `json:"channel,omitempty"`
	Host    string `json:"host,omitempty"`
	Signal  int    `json:"signal,omitempty"`
	Agent   uint64 `json:"agent,omitempty"` // the number of its start
	Pid     int    `json:"pid,omitempty"`   // for a launcher of an earlier version, which goes by it
}

// launchNotice is a message of the launcher: that it is there, that an agent was started
// or could not be, that one has ended.
type launchNotice struct {
	Start uint64 `json:"start,omitempty"` // of the request; 0 with Pid 0: a greeting
	Pid   int    `json:"pid,omitempty"`
	Error string `json:"error,omitempty"`
	Ended string `json:"ended,omitempty"` // how, as os.ProcessState has it
	// Agent is the number of the start of one that has ended: its pid may be that of a later
	// one by now.
	Agent uint64 `json:"agent,omitempty"`
}

const (
	// launcherPatience is how long each of the two waits for the other to write or read.
	launcherPatience = 30 * time.Second
	// maxMessage is how long a message may be: a host's name is in it. Bytes.
	maxMessage = 64 << 10
)

// Launcher starts agents for a scheduler that cannot become other users.
type Launcher struct {
	// Check reports why the launcher cannot work.
	Check func() error
	// Launch is how an agent for a channel and host is started.
	Launch func(channel, host string) (Launch, error)
	// Dir is the directory that agents run in, and ZConfig the path of zmailer.conf.
	Dir, ZConfig string
	// Own is the scheduler's user: an agent whose clause names no user runs as him, unless
	// it is the one for mailboxes, which becomes users by itself.
	Own string
	// Patience is for a scheduler that writes or reads nothing; 0: the usual.
	Patience time.Duration

	mu     sync.Mutex             // of all below, and of writing
	agents map[uint64]*os.Process // that run, by the number of their start
	began  bool                   // one was started
}

// Use is how much depends on a launcher's connection.
type Use int

// The uses, from the least.
const (
	Unused Use = iota // no agent was ever started over it
	Idle              // none runs
	Busy
)

// Use returns it.
func (s *Launcher) Use() Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.agents) > 0:
		return Busy
	case s.began:
		return Idle
	}
	return Unused
}

// mailboxAgent is the program that needs root to become the users it delivers to.
const mailboxAgent = "ta-mailbox"

// Serve starts the agents that a scheduler at the other end of a connection asks for, until
// the connection ends. Agents that run then are left to themselves: their input has ended, too.
func (s *Launcher) Serve(conn *net.UnixConn) error {
	s.mu.Lock()
	s.agents = map[uint64]*os.Process{}
	s.mu.Unlock()
	hello := launchNotice{}
	err := s.Check()
	if err != nil {
		hello.Error = err.Error()
	}
	if werr := s.send(conn, hello); err != nil || werr != nil {
		return errors.Join(err, werr)
	}
	// A client that does not even say hello gets no place. A scheduler may have nothing to
	// ask for long.
	if err := conn.SetReadDeadline(time.Now().Add(s.patience())); err != nil {
		return err
	}
	for first := true; ; first = false {
		var o launchRequest
		files, err := helper.Receive(conn, maxMessage, &o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && first {
			err = conn.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return fmt.Errorf("read from the scheduler: %w", err)
		}
		if err := s.do(conn, o, files); err != nil {
			return err
		}
	}
}

func (s *Launcher) patience() time.Duration { return cmp.Or(s.Patience, launcherPatience) }

// do does what a request asks for. Its error is that of the connection.
func (s *Launcher) do(conn *net.UnixConn, o launchRequest, files []*os.File) error {
	defer func() {
		for _, f := range files {
			_ = f.Close() // the agent has its own
		}
	}()
	if o.Hello {
		return nil
	}
	if o.Signal != 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p := s.agents[o.Agent]; p != nil {
			_ = p.Signal(syscall.Signal(o.Signal)) // it may have ended
		}
		return nil
	}
	s.mu.Lock()
	used := s.agents[o.Start] != nil
	s.mu.Unlock()
	var proc *os.Process
	err := fmt.Errorf("start an agent: number %d is that of one that runs", o.Start)
	if !used {
		proc, err = s.start(o, files)
	}
	if err != nil {
		return s.send(conn, launchNotice{Start: o.Start, Error: err.Error()})
	}
	s.mu.Lock()
	s.agents[o.Start], s.began = proc, true
	s.mu.Unlock()
	err = s.send(conn, launchNotice{Start: o.Start, Pid: proc.Pid})
	go s.await(conn, o.Start, proc) // even if the notice was not sent: a child that has ended stays until then
	return err
}

// await sends a notice when an agent has ended.
func (s *Launcher) await(conn *net.UnixConn, start uint64, proc *os.Process) {
	state, err := proc.Wait() // from here on its pid may be that of another
	how := "unknown"
	if err == nil {
		how = state.String()
	}
	s.mu.Lock()
	delete(s.agents, start)
	s.mu.Unlock()
	if err := s.send(conn, launchNotice{Agent: start, Pid: proc.Pid, Ended: how}); err != nil {
		// A scheduler that is gone, or that would wait for this agent for ever.
		_ = conn.Close()
	}
}

// start starts the agent for a channel and host.
func (s *Launcher) start(o launchRequest, files []*os.File) (*os.Process, error) {
	if len(files) != 2 {
		return nil, fmt.Errorf("start an agent: got %d descriptors, not its input and output", len(files))
	}
	// They become arguments, perhaps of root's program.
	if strings.HasPrefix(o.Channel, "-") || strings.HasPrefix(o.Host, "-") {
		return nil, fmt.Errorf("start an agent for %q/%q: that is an option", o.Channel, o.Host)
	}
	for _, f := range files {
		if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
			return nil, errors.Join(errors.New("start an agent: its input and output are to be pipes"), err)
		}
	}
	l, err := s.Launch(o.Channel, o.Host)
	if err != nil {
		return nil, err
	}
	if l.User == "" && filepath.Base(l.Argv[0]) != mailboxAgent {
		l.User = s.Own
	}
	return l.under(s.ZConfig, "scheduler").begin(s.Dir, files[0], files[1], nil, true)
}

// send writes a notice.
func (s *Launcher) send(conn *net.UnixConn, n launchNotice) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = conn.SetWriteDeadline(time.Now().Add(s.patience()))
	if err == nil {
		_, err = conn.Write(b)
	}
	if err != nil {
		return fmt.Errorf("answer the scheduler: %w", err)
	}
	return nil
}
