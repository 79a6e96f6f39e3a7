package scheduler

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/logging"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/wire/taproto"
)

// launch is how an agent is started.
type launch struct {
	dir         string
	argv, env   []string
	user, group string
	nice        int
}

// launchOf is the start of an agent for a channel and host.
func launchOf(s *conf.Settings, channel, host string) launch {
	l := launch{user: s.User, group: s.Group, nice: s.Nice}
	l.argv, l.env = s.Command.Build(channel, host)
	if len(s.Sources) > 0 {
		l.env = append(l.env, "SOURCES="+strings.Join(s.Sources, ","))
	}
	if s.Helo != "" {
		l.env = append(l.env, "HELO="+s.Helo)
	}
	if s.TLS != "" {
		l.env = append(l.env, "TLSPOLICY="+s.TLS)
	}
	if s.Auth != "" {
		l.env = append(l.env, "ACCOUNT="+s.Auth)
	}
	return l
}

// process is a running agent.
type process interface {
	Wait() (how string, err error) // until it has ended
	Signal(sig syscall.Signal) error
}

// child is an agent that the scheduler has started itself.
type child struct{ *os.Process }

// Wait implements process.
func (c child) Wait() (string, error) {
	state, err := c.Process.Wait()
	if err != nil {
		return "", err
	}
	return state.String(), nil
}

// Signal implements process.
func (c child) Signal(sig syscall.Signal) error { return c.Process.Signal(sig) }

// start starts a process in dir whose standard input and output are pipes; one that by
// starts, if it is not nil, where we may not. channel and host are whom it is for.
func (l launch) start(by *StarterClient, channel, host string) (*agent, *os.File, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, childIn.Close(), in.Close())
	}
	a := &agent{in: in, window: window(in)}
	if by != nil && l.elsewhere() {
		p := (*started)(nil)
		if p, err = by.start(channel, host, childIn, childOut); err == nil {
			a.proc, a.pid = p, p.pid
		}
	} else {
		p := (*os.Process)(nil)
		if p, err = l.begin(childIn, childOut, os.Geteuid() == 0); err == nil {
			a.proc, a.pid = child{p}, p.Pid
		}
	}
	cerr := errors.Join(childIn.Close(), childOut.Close())
	if err = errors.Join(err, cerr); err != nil {
		return nil, nil, errors.Join(err, in.Close(), out.Close())
	}
	return a, out, nil
}

// begin starts the process with its standard input and output. root tells whether it may
// be somebody else's.
func (l launch) begin(in, out *os.File, root bool) (*os.Process, error) {
	program, err := conf.FindProgram(l.argv[0])
	if err != nil {
		return nil, err
	}
	who, err := conf.Credential(l.user, l.group, root)
	if err != nil {
		return nil, err
	}
	env := l.env
	if stream := os.Getenv(logging.JournalVariable); stream != "" {
		// Its standard error is ours: it writes as we do.
		env = append(slices.Clip(env), logging.JournalVariable+"="+stream)
	}
	if env == nil {
		env = []string{}
	}
	return l.process(program, &os.ProcAttr{
		Dir: l.workDir(who), Env: env, Files: []*os.File{in, out, os.Stderr},
		// A session of its own: a terminal's interrupt is for us, who end our agents in good
		// order, and what runs as another user cannot type into our terminal (TIOCSTI).
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: who},
	})
}

// workDir is the directory that the process starts in: transport/ or, for a user to whom
// that is closed, the postoffice.
func (l launch) workDir(who *syscall.Credential) string {
	var st unix.Stat_t
	if who == nil || who.Uid == 0 || unix.Stat(l.dir, &st) != nil || st.Uid == who.Uid || st.Gid == who.Gid || st.Mode&0o001 != 0 {
		return l.dir
	}
	return filepath.Dir(l.dir)
}

// process starts the process with its priority.
func (l launch) process(program string, attr *os.ProcAttr) (proc *os.Process, err error) {
	if l.nice == 0 {
		return os.StartProcess(program, l.argv, attr)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A child is as nice as the thread that makes it, and this thread ends with its
		// goroutine, which is why it is never unlocked.
		runtime.LockOSThread()
		if err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), l.nice); err != nil {
			err = fmt.Errorf("start %s with nice %d: %w", program, l.nice, err)
			return
		}
		proc, err = os.StartProcess(program, l.argv, attr)
	}()
	<-done
	return proc, err
}

// window is how many bytes fit into a pipe even if its pages are filled by halves.
func window(f *os.File) int {
	const least = 2048
	raw, err := f.SyscallConn()
	if err != nil {
		return least
	}
	size := 0
	err = raw.Control(func(fd uintptr) {
		size, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
	})
	if err != nil {
		return least
	}
	return max(size/2, least)
}

// maxSpare bounds the list of an agent's lines that is kept for the next ones.
const maxSpare = 1024

// afterwords is how long an agent may take to end after the end of its output.
const afterwords = time.Second

// attendAgent reads what an agent says until it has ended.
func (e *engine) attendAgent(a *agent, out *os.File) {
	waited := make(chan string, 1)
	go func() {
		state, err := a.proc.Wait()
		if err != nil {
			state = "unknown"
		}
		// What it said before is in the pipe; a child of its own may keep the pipe open.
		_ = out.SetReadDeadline(time.Now().Add(time.Second))
		waited <- state
	}()
	r := taproto.NewReader(out)
	list := []taproto.Line(nil)
	spare := make(chan []taproto.Line, 1) // that the engine is done with
	var end error
	for {
		l, err := r.Line()
		if err != nil {
			end = err // a last line without newline is dropped
			break
		}
		list = append(list, l)
		// What was read together is taken together: the #hungry of an agent's start above
		// all, which tell how many slots it has.
		if !r.Ready() {
			said := list
			e.post(func() {
				e.lines(a, said)
				if clear(said); cap(said) > maxSpare {
					return
				}
				select {
				case spare <- said[:0]:
				default:
				}
			})
			select {
			case list = <-spare:
			default:
				list = nil
			}
		}
	}
	if len(list) > 0 {
		e.post(func() { e.lines(a, list) })
	}
	var state string
	select {
	case state = <-waited:
	case <-time.After(afterwords):
		// It lives and cannot answer: its output is closed, or nothing but an endless line.
		e.post(func() { e.speechless(a, end) })
		state = <-waited
	}
	_ = out.Close()
	e.post(func() { e.agentEnded(a, state) })
}
