package agents

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

	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/wire/taproto"
)

// Launch is how an agent is started.
type Launch struct {
	Argv, Env   []string
	User, Group string // "": ours
	Nice        int
}

// LaunchOf returns how an agent for a channel and host is started.
func LaunchOf(s *conf.Settings, channel, host string) Launch {
	l := Launch{User: s.User, Group: s.Group, Nice: s.Nice}
	l.Argv, l.Env = s.Command.Build(channel, host)
	for _, v := range []struct{ name, value string }{
		{"SOURCES", strings.Join(s.Sources, ",")}, {"HELO", s.Helo}, {"TLSPOLICY", s.TLS}, {"ACCOUNT", s.Auth},
	} {
		if v.value != "" {
			l.Env = append(l.Env, v.name+"="+v.value)
		}
	}
	return l
}

// Processes starts agents as processes.
type Processes struct {
	Dir      string          // that they run in: transport/
	ZConfig  string          // path of zmailer.conf for them; "" if there is none
	Launcher *LauncherClient // starts those of other users; nil: we do
	Keys     *keys.Client    // opens keys for agents that run as we do; nil: none does
	Post     func(fn func()) // has fn called in the pool's goroutine
}

// Start implements Spawner.
func (s *Processes) Start(l Launch, channel, host string, started func(Process, error)) {
	go func() {
		p, err := s.start(l.under(s.ZConfig, "scheduler"), channel, host)
		s.Post(func() { started(p, err) })
	}()
}

// under returns the launch with the variables by which agents find zmailer.conf, and the version of
// it by which the daemon goes that starts them.
func (l Launch) under(zconfig, daemon string) Launch {
	if zconfig != "" {
		l.Env = append([]string{"ZCONFIG=" + zconfig, config.DaemonVariable + "=" + daemon}, l.Env...)
	}
	return l
}

// handle is a process that was started by us or by the launcher.
type handle interface {
	Wait() (state string, err error) // until it has ended
	Signal(sig syscall.Signal) error
}

// child is a process that the scheduler has started itself.
type child struct{ *os.Process }

func (c child) Wait() (string, error) {
	state, err := c.Process.Wait()
	if err != nil {
		return "", err
	}
	return state.String(), nil
}

func (c child) Signal(sig syscall.Signal) error { return c.Process.Signal(sig) }

// process is an agent with pipes as standard input and output.
type process struct {
	handle
	pid     int
	in, out *os.File // our ends
	window  int
	post    func(func())
}

// start starts a process; by the launcher, if there is one, where we may not.
func (s *Processes) start(l Launch, channel, host string) (*process, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, childIn.Close(), in.Close())
	}
	p := &process{in: in, out: out, window: window(in), post: s.Post}
	if s.Launcher != nil && l.elsewhere() {
		c := (*launched)(nil)
		if c, err = s.Launcher.start(channel, host, childIn, childOut); err == nil {
			p.handle, p.pid = c, c.pid
		}
	} else {
		c := (*os.Process)(nil)
		var open *os.File
		if open, err = s.keysFor(l); err == nil {
			c, err = l.begin(s.Dir, childIn, childOut, open, os.Geteuid() == 0)
		}
		if open != nil {
			_ = open.Close() // the agent has it
		}
		if err == nil {
			p.handle, p.pid = child{c}, c.Pid
		}
	}
	cerr := errors.Join(childIn.Close(), childOut.Close())
	if err = errors.Join(err, cerr); err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return p, nil
}

// relayAgent is the program whose keys are opened for it.
const relayAgent = "ta-smtp"

// keysFor returns a connection to the process that opens keys, for an agent that has some.
func (s *Processes) keysFor(l Launch) (*os.File, error) {
	if s.Keys == nil || filepath.Base(l.Argv[0]) != relayAgent {
		return nil, nil
	}
	f, err := s.Keys.Hand("")
	if errors.Is(err, keys.ErrGone) {
		return nil, nil // agents go on with what they can read, and report what they cannot
	}
	return f, err
}

// Pid implements Process.
func (p *process) Pid() int { return p.pid }

// Window implements Process.
func (p *process) Window() int { return p.window }

// Write implements Process.
func (p *process) Write(lines []byte) error {
	_, err := p.in.Write(lines)
	return err
}

// CloseInput implements Process.
func (p *process) CloseInput() { _ = p.in.Close() } // nothing is buffered in it

// Signal implements Process.
func (p *process) Signal(sig syscall.Signal) { _ = p.handle.Signal(sig) } // an error means that it has ended

// Unread implements Process.
func (p *process) Unread() int {
	raw, err := p.in.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if cerr != nil || err != nil {
		return 0
	}
	return n
}

const (
	// maxSpare bounds the list of an agent's lines that is kept for the next ones.
	maxSpare = 1024
	// endGrace is how long an agent may take to end after the end of its output.
	endGrace = time.Second
)

// Listen implements Process.
func (p *process) Listen(a *Agent) { go p.read(a) }

// read reads what an agent writes until it has ended.
func (p *process) read(a *Agent) {
	waited := make(chan string, 1)
	go func() {
		state, err := p.Wait()
		if err != nil {
			state = "unknown"
		}
		// What it wrote before is in the pipe; a child of its own may keep the pipe open.
		_ = p.out.SetReadDeadline(time.Now().Add(time.Second))
		waited <- state
	}()
	r := taproto.NewReader(p.out)
	list := []taproto.Line(nil)
	spare := make(chan []taproto.Line, 1) // that the pool is done with
	var end error
	for {
		l, err := r.Line()
		if err != nil {
			end = err // a last line without newline is dropped
			break
		}
		list = append(list, l)
		// What was read together is taken together: the #hungry of an agent's start above
		// all, which show how many slots it has.
		if !r.Ready() {
			lines := list
			p.post(func() {
				a.Lines(lines)
				if clear(lines); cap(lines) > maxSpare {
					return
				}
				select {
				case spare <- lines[:0]:
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
		p.post(func() { a.Lines(list) })
	}
	var state string
	select {
	case state = <-waited:
	case <-time.After(endGrace):
		// It lives and cannot answer: its output is closed, or nothing but an endless line.
		p.post(func() { a.Mute(end) })
		state = <-waited
	}
	_ = p.out.Close()
	p.post(func() { a.Ended(state) })
}

// begin starts the process in a directory with its standard input and output, and open, a
// connection for keys, unless it is nil. root: it may run as another user.
func (l Launch) begin(dir string, in, out, open *os.File, root bool) (*os.Process, error) {
	program, err := conf.FindProgram(l.Argv[0])
	if err != nil {
		return nil, err
	}
	as, err := conf.Credential(l.User, l.Group, root)
	if err != nil {
		return nil, err
	}
	env := l.Env
	if stream := os.Getenv(logging.JournalVariable); stream != "" {
		// Its standard error is ours: it writes as we do.
		env = append(slices.Clip(env), logging.JournalVariable+"="+stream)
	}
	files := []*os.File{in, out, os.Stderr}
	if open != nil {
		files = append(files, open)
		env = append(slices.Clip(env), keys.Variable+"=3")
	}
	if env == nil {
		env = []string{}
	}
	return l.process(program, &os.ProcAttr{
		Dir: workDir(dir, as), Env: env, Files: files,
		// A session of its own: a terminal's interrupt is for us, who end our agents in good
		// order, and what runs as another user cannot type into our terminal (TIOCSTI).
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: as},
	})
}

// workDir returns the directory that a process starts in: transport/ or, for a user to whom
// that is closed, the postoffice.
func workDir(dir string, as *syscall.Credential) string {
	var st unix.Stat_t
	if as == nil || as.Uid == 0 || unix.Stat(dir, &st) != nil || st.Uid == as.Uid || st.Gid == as.Gid || st.Mode&0o001 != 0 {
		return dir
	}
	return filepath.Dir(dir)
}

// process starts the process with its priority.
func (l Launch) process(program string, attr *os.ProcAttr) (proc *os.Process, err error) {
	if l.Nice == 0 {
		return os.StartProcess(program, l.Argv, attr)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A child is as nice as the thread that makes it, and this thread ends with its
		// goroutine, which is why it is never unlocked.
		runtime.LockOSThread()
		if err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), l.Nice); err != nil {
			err = fmt.Errorf("start %s with nice %d: %w", program, l.Nice, err)
			return
		}
		proc, err = os.StartProcess(program, l.Argv, attr)
	}()
	<-done
	return proc, err
}

// window returns how many bytes fit into a pipe even if its pages are filled by halves.
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
