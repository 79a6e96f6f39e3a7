package scheduler

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/taproto"
)

// startAgent starts a process in dir whose standard input and output are pipes.
func startAgent(dir string, argv, env []string) (*agent, *os.File, error) {
	program, err := findProgram(argv[0])
	if err != nil {
		return nil, nil, err
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, childIn.Close(), in.Close())
	}
	if env == nil {
		env = []string{}
	}
	proc, err := os.StartProcess(program, argv, &os.ProcAttr{
		Dir: dir, Env: env, Files: []*os.File{childIn, childOut, os.Stderr},
		// A terminal's interrupt is for us; we end our agents in good order.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	cerr := errors.Join(childIn.Close(), childOut.Close())
	if err = errors.Join(err, cerr); err != nil {
		return nil, nil, errors.Join(err, in.Close(), out.Close())
	}
	return &agent{proc: proc, pid: proc.Pid, in: in, window: window(in)}, out, nil
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

// findProgram looks for a program without a slash beside our own, then in PATH.
func findProgram(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside the scheduler nor in PATH: %w", name, err)
	}
	return filepath.Abs(path)
}

// attendAgent reads what an agent says until it has ended.
func (e *engine) attendAgent(a *agent, out *os.File) {
	waited := make(chan *os.ProcessState, 1)
	go func() {
		state, err := a.proc.Wait()
		if err != nil {
			state = nil
		}
		// What it said before is in the pipe; a child of its own may keep the pipe open.
		_ = out.SetReadDeadline(time.Now().Add(time.Second))
		waited <- state
	}()
	r := taproto.NewReader(out)
	var list []taproto.Line
	for {
		l, err := r.Line()
		if err != nil {
			break // the end; a last line without newline is dropped
		}
		list = append(list, l)
		if !r.Ready() || len(list) >= 256 {
			said := list
			e.post(func() { e.lines(a, said) })
			list = nil
		}
	}
	if len(list) > 0 {
		e.post(func() { e.lines(a, list) })
	}
	// An agent may close its output before it ends; what it still says is lost.
	state := <-waited
	_ = out.Close()
	e.post(func() { e.agentEnded(a, state) })
}
