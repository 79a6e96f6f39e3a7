package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/wire/taproto"
)

// Run serves the scheduler on in and out with the given number of slots until in
// ends, an empty line comes, or ctx is done: jobs not yet begun are dropped then,
// running deliveries finish, and Run returns. With one slot jobs run in the order
// they came.
//
// The process ignores SIGPIPE and SIGHUP from here on: a scheduler that dies must not
// take running deliveries with it. The kernel sends SIGHUP to an agent that is stopped
// when that leaves its process group without a parent (setpgid(2)).
func (a *Agent) Run(ctx context.Context, in io.Reader, out io.Writer, slots int, to Deliverer) error {
	// Caught, not ignored: programs that an agent runs would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP)
	if in == io.Reader(os.Stdin) {
		in = input()
	}
	return newSession(a, out, to).run(ctx, in, max(slots, 1))
}

// session is one conversation with a scheduler.
type session struct {
	agent *Agent
	out   io.Writer
	to    Deliverer
	// hosts: a #resync names the host of its job, because several jobs of one message
	// may be at work. ZMailer's scheduler, under which we have one slot, reads names only.
	hosts bool

	mu      sync.Mutex
	more    sync.Cond         // a command came, or ended
	queue   []taproto.Command // not begun yet
	ended   bool
	err     error
	pending []byte // to be written by the slot that is writing
	spare   []byte
	writing bool
}

func newSession(a *Agent, out io.Writer, to Deliverer) *session {
	s := &session{agent: a, out: out, to: to}
	s.more.L = &s.mu
	return s
}

func (s *session) run(ctx context.Context, in io.Reader, slots int) error {
	var hungry []byte
	if slots > 1 {
		// So many #hungry may not fit into one read of the scheduler.
		s.hosts = true
		hungry = taproto.AppendLine(hungry, &taproto.Line{Kind: taproto.LineSlots, Slots: slots})
	}
	for range slots {
		hungry = taproto.AppendLine(hungry, &taproto.Line{Kind: taproto.LineHungry})
	}
	s.send(hungry)

	defer context.AfterFunc(ctx, func() { s.end(nil) })()
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.end(s.read(in))
	}()
	// A delivery that has begun is not broken off (see Deliverer).
	work := context.WithoutCancel(ctx)
	var workers sync.WaitGroup
	for range slots {
		workers.Go(func() { s.work(work) })
	}
	workers.Wait()
	// Where a read can be broken off its goroutine ends now; a blocked read of
	// standard input ends with the process.
	if f, ok := in.(interface{ SetReadDeadline(time.Time) error }); ok && f.SetReadDeadline(time.Unix(1, 0)) == nil {
		<-read
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end stops the hand-out of jobs; the first error stays.
func (s *session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.ended {
		s.err = err
	}
	s.ended = true
	s.more.Broadcast()
}

// read takes commands until the input ends. A last line without newline is
// discarded (M32).
func (s *session) read(in io.Reader) error {
	r := taproto.NewReader(in)
	for {
		c, err := r.Command()
		switch {
		case errors.Is(err, taproto.ErrCommand):
			s.agent.log().Warn("command-ignored", "reason", err)
			continue
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("read from scheduler: %w", err)
		case c.Kind == taproto.CommandEnd:
			return nil
		}
		s.mu.Lock()
		s.queue = append(s.queue, c)
		s.more.Signal()
		s.mu.Unlock()
	}
}

// next waits for a command; false: the session has ended.
func (s *session) next() (taproto.Command, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.ended {
		s.more.Wait()
	}
	if s.ended {
		return taproto.Command{}, false
	}
	c := s.queue[0]
	s.queue[0] = taproto.Command{}
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	return c, true
}

// maxKept is how much memory is kept for answers. Bytes.
const maxKept = 64 << 10

// work is one slot: it performs commands until the session ends.
func (s *session) work(ctx context.Context) {
	var b []byte
	for {
		c, ok := s.next()
		if !ok {
			return
		}
		if b = b[:0]; cap(b) > maxKept {
			b = nil // of a list with very many
		}
		if c.Kind == taproto.CommandJob {
			s.agent.do(ctx, c.Job, s.to, func(l *taproto.Line) {
				if s.hosts && l.Kind == taproto.LineResync {
					l.Host = c.Job.Host
				}
				b = taproto.AppendLine(b, l)
			})
		}
		// After #idle too: the credit that it used up is returned.
		b = taproto.AppendLine(b, &taproto.Line{Kind: taproto.LineHungry})
		s.send(b)
	}
}

// send writes whole lines. While one slot writes, the others leave theirs for it to
// write together.
func (s *session) send(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, b...)
	if s.writing {
		return
	}
	s.writing = true
	// Other slots that have answers ready add them first.
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
	for len(s.pending) > 0 {
		now := s.pending
		s.pending = s.spare[:0]
		s.mu.Unlock()
		_, err := s.out.Write(now)
		s.mu.Lock()
		if s.spare = now[:0]; cap(now) > maxKept {
			s.spare = nil
		}
		if err != nil {
			// The scheduler is gone: the next one reads the tags in the files.
			if s.err == nil && !s.ended {
				s.err = fmt.Errorf("write to scheduler: %w", err)
			}
			s.ended = true
			s.more.Broadcast()
		}
	}
	s.writing = false
}

// input is standard input. A pipe or a socket, as from a scheduler, is read through the
// poller, so that no thread blocks in read(2): the thread that reads a job can then go on
// with it and need not wake another.
func input() io.Reader {
	var st unix.Stat_t
	err := unix.Fstat(unix.Stdin, &st)
	if kind := st.Mode & unix.S_IFMT; err != nil || kind != unix.S_IFIFO && kind != unix.S_IFSOCK {
		return os.Stdin // other processes share a terminal
	}
	if unix.SetNonblock(unix.Stdin, true) != nil {
		return os.Stdin
	}
	return os.NewFile(uintptr(unix.Stdin), "/dev/stdin")
}
