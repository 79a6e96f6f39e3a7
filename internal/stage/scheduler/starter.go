package scheduler

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

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/helper"
	"zmailer/internal/stage/scheduler/conf"
)

// A scheduler that is not root has agents that run as somebody else started by another
// process, the starter, which is. It is asked for a channel and host, and starts what
// scheduler.conf says of these, as it reads it itself: whoever gets hold of the
// scheduler can start agents, and nothing else (docs/privileges.md). The two talk over a
// socket of type SOCK_SEQPACKET, a message of JSON at a time.

// starterOrder is what the starter is told. Start: with the agent's standard input and output
// as descriptors. Signal: to an agent that it has started.
type starterOrder struct {
	Hello   bool   `json:"hello,omitempty"` // the first one: a scheduler is there
	Start   uint64 `json:"start,omitempty"` // a number for the answer
	Channel string `json:"channel,omitempty"`
	Host    string `json:"host,omitempty"`
	Signal  int    `json:"signal,omitempty"`
	Agent   uint64 `json:"agent,omitempty"` // the number of its start
	Pid     int    `json:"pid,omitempty"`   // for a starter of an earlier version, which goes by it
}

// starterNotice is what the starter says: that it is there, that an agent was started or could not be, that one
// has ended.
type starterNotice struct {
	Start uint64 `json:"start,omitempty"` // of the order; 0 with Pid 0: a greeting
	Pid   int    `json:"pid,omitempty"`
	Error string `json:"error,omitempty"`
	Ended string `json:"ended,omitempty"` // how, as os.ProcessState says it
	// Agent is the number of the start of one that has ended: its pid may be that of a later
	// one by now.
	Agent uint64 `json:"agent,omitempty"`
}

// starterPatience is how long each of the two waits for the other to say what it has to, and
// to take what it is told.
const starterPatience = 30 * time.Second

// maxOrder is how long an order or notice may be: a host's name is in it. Bytes.
const maxOrder = 64 << 10

// Starter starts agents for a scheduler that cannot become other users.
type Starter struct {
	// Settings are zmailer.conf, for scheduler.conf beside it.
	Settings *config.Config
	// Own is the scheduler's user: an agent whose clause names nobody runs as him, unless
	// it is the one for mailboxes, which becomes users by itself.
	Own string
	// Patience is for a scheduler that says nothing or takes nothing; 0: the usual.
	Patience time.Duration

	mu     sync.Mutex // of all below, and of writing
	conf   *conf.File
	file   os.FileInfo            // scheduler.conf when it was read; nil: there is none
	agents map[uint64]*os.Process // that run, by the number of their start
	began  bool                   // one was started
}

// Use is how much depends on a starter's connection.
type Use int

// The uses, from the least.
const (
	Unused Use = iota // no agent was ever started over it
	Idle              // none runs
	Busy
)

// Use tells it.
func (s *Starter) Use() Use {
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

// Serve starts what a scheduler at the other end of a connection asks for, until that
// ends. Agents that run then are left to themselves: their input has ended, too.
func (s *Starter) Serve(conn *net.UnixConn) error {
	s.mu.Lock()
	s.agents = map[uint64]*os.Process{}
	err := s.read()
	s.mu.Unlock()
	hello := starterNotice{}
	if err != nil {
		hello.Error = err.Error()
	}
	if werr := s.say(conn, hello); err != nil || werr != nil {
		return errors.Join(err, werr)
	}
	// Who does not even say that he is there gets no place. A scheduler may have nothing to
	// say for long.
	if err := conn.SetReadDeadline(time.Now().Add(s.patience())); err != nil {
		return err
	}
	for first := true; ; first = false {
		var o starterOrder
		files, err := helper.Receive(conn, maxOrder, &o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && first {
			err = conn.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return fmt.Errorf("read from the scheduler: %w", err)
		}
		if err := s.obey(conn, o, files); err != nil {
			return err
		}
	}
}

func (s *Starter) patience() time.Duration { return cmp.Or(s.Patience, starterPatience) }

// obey does what an order says. Its error is that of the connection.
func (s *Starter) obey(conn *net.UnixConn, o starterOrder, files []*os.File) error {
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
		return s.say(conn, starterNotice{Start: o.Start, Error: err.Error()})
	}
	s.mu.Lock()
	s.agents[o.Start], s.began = proc, true
	s.mu.Unlock()
	err = s.say(conn, starterNotice{Start: o.Start, Pid: proc.Pid})
	go s.await(conn, o.Start, proc) // also if nobody was told: a child that has ended stays until then
	return err
}

// await says when an agent has ended.
func (s *Starter) await(conn *net.UnixConn, start uint64, proc *os.Process) {
	state, err := proc.Wait() // from here on its pid may be that of another
	how := "unknown"
	if err == nil {
		how = state.String()
	}
	s.mu.Lock()
	delete(s.agents, start)
	s.mu.Unlock()
	if err := s.say(conn, starterNotice{Agent: start, Pid: proc.Pid, Ended: how}); err != nil {
		// A scheduler that is gone, or that would wait for this agent for ever.
		_ = conn.Close()
	}
}

// start starts the agent for a channel and host.
func (s *Starter) start(o starterOrder, files []*os.File) (*os.Process, error) {
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
	s.mu.Lock()
	err := s.read()
	conf := s.conf
	s.mu.Unlock()
	if conf == nil {
		return nil, err
	}
	settings := conf.Match(o.Channel, o.Host)
	if settings == nil {
		return nil, fmt.Errorf("no clause of scheduler.conf serves %s/%s", o.Channel, o.Host)
	}
	l := launchOf(settings, o.Channel, o.Host)
	l.dir = filepath.Join(s.Settings.PostOffice(), postoffice.Transport)
	if s.Settings.File != "" {
		l.env = append([]string{"ZCONFIG=" + s.Settings.File}, l.env...)
	}
	if l.user == "" && filepath.Base(l.argv[0]) != mailboxAgent {
		l.user = s.Own
	}
	return l.begin(files[0], files[1], true)
}

// read reads scheduler.conf if it has changed. One that cannot be used leaves the one
// before it. s.mu is held.
func (s *Starter) read() error {
	path := s.Settings.Path("scheduler.conf")
	info, err := os.Stat(path)
	if err != nil {
		info = nil // the built-in one holds
	}
	if s.conf != nil && sameFile(s.file, info) {
		return nil
	}
	if err := onlyRoots(path, info); err != nil {
		return err
	}
	f, err := conf.Load(s.Settings, true)
	if err != nil {
		return err
	}
	s.conf, s.file = f, info
	return nil
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// onlyRoots tells whether nobody but root says as whom agents run.
func onlyRoots(path string, info os.FileInfo) error {
	if info == nil {
		return nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && (st.Uid != 0 || st.Mode&0o022 != 0) {
		return &config.Error{File: path, Reason: "it says as whom agents run, and others than root may write it: chown root, chmod go-w"}
	}
	return nil
}

// say writes a notice.
func (s *Starter) say(conn *net.UnixConn, n starterNotice) error {
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
