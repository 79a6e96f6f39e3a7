package mailbox

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/status"
)

const (
	// endGrace is how long a program has between SIGTERM and SIGKILL.
	endGrace = 5 * time.Second
	// outputGrace is how long its output is read when it has ended: a process that it
	// has left behind may keep it open.
	outputGrace = time.Second
	// maxOutput is how much of its output is kept. Bytes.
	maxOutput = 4 << 10
)

// program is one run of a program.
type program struct {
	command string
	dir     string
	env     []string
	as      *identity // nil: as ourselves
	limit   time.Duration
}

// ended is how a program ended.
type ended struct {
	state  syscall.WaitStatus
	output string
	late   bool // it was killed at its limit
	limit  time.Duration
}

// run starts the program, writes the message to it, and waits for its end. An error
// means that it did not run, or that the message could not be read to its end.
func (p *program) run(write func(io.Writer) error) (e ended, err error) {
	cmd := p.cmd()
	in, out, err := p.start(cmd)
	if err != nil {
		return e, &fault{code: configTrouble, text: "the program cannot be started", err: err}
	}
	fed, read := make(chan error, 1), make(chan string, 1)
	go func() { fed <- feed(in, write) }()
	go func() { read <- keep(out) }()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		waitExit(cmd.Process.Pid)
	}()
	limit := time.NewTimer(p.limit)
	defer limit.Stop()
	group := -cmd.Process.Pid
	for feeding := true; ; {
		select {
		case <-exited:
		case <-limit.C:
			e.late = true
			end(group, exited)
		case err = <-fed:
			if feeding = false; err == nil {
				// The program sees the end of its input.
				err = in.Close()
			}
			if err == nil || errors.Is(err, os.ErrClosed) {
				err, fed = nil, nil
				continue
			}
			// It must not take what it has for the whole message.
			_ = unix.Kill(group, unix.SIGKILL)
			<-exited
		}
		_ = in.Close() // ends feed; it may be closed
		if feeding && fed != nil {
			<-fed
		}
		break
	}
	_ = out.SetReadDeadline(time.Now().Add(outputGrace))
	e.output, e.limit = <-read, p.limit
	// The errors are the pipes' and the exit code's, which are looked at.
	_, _ = out.Close(), cmd.Wait()
	if err != nil {
		return e, fmt.Errorf("give the message to the program: %w", err)
	}
	e.state, _ = cmd.ProcessState.Sys().(syscall.WaitStatus)
	return e, nil
}

// cmd is the command without its pipes: started as it stands if no shell is needed.
func (p *program) cmd() *exec.Cmd {
	args := []string{"/bin/sh", "-c", p.command}
	if strings.HasPrefix(p.command, "/") && !strings.ContainsAny(p.command, "\"'`$\\;&|<>(){}[]*?~#!\t\n") {
		args = strings.Fields(p.command)
	}
	c := &exec.Cmd{Path: args[0], Args: args, Env: p.env, Dir: p.dir, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if p.as != nil {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.as.uid), Gid: uint32(p.as.gid)}
	}
	return c
}

// start starts the command; in is its input, out its output, both streams.
func (p *program) start(cmd *exec.Cmd) (in, out *os.File, err error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, childIn.Close(), in.Close())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, childOut
	err = cmd.Start()
	// The child has its own.
	_, _ = childIn.Close(), childOut.Close()
	if err != nil {
		return nil, nil, errors.Join(err, in.Close(), out.Close())
	}
	return in, out, nil
}

// feed writes the message. That the program does not read all of it is its own affair;
// the error of reading the message is ours.
func feed(in *os.File, write func(io.Writer) error) error {
	w := &sink{to: in}
	b := bufio.NewWriterSize(w, bufferSize)
	err := write(b)
	if err == nil {
		err = b.Flush()
	}
	if w.err != nil {
		return nil
	}
	return err
}

// sink remembers that a write failed: the reader has closed its end, or has ended.
type sink struct {
	to  io.Writer
	err error
}

func (s *sink) Write(b []byte) (n int, err error) {
	n, err = s.to.Write(b)
	s.err = err
	return n, err
}

// keep reads the output to its end and keeps the beginning.
func keep(out io.Reader) string {
	var b strings.Builder
	_, _ = io.CopyN(&b, out, maxOutput) // it may end before, or never
	_, _ = io.Copy(io.Discard, out)
	return b.String()
}

// waitExit returns when a child has ended. It is not reaped: until then its number, which
// is its process group's, is nobody else's.
func waitExit(pid int) {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}

// end ends a process group: by SIGTERM, and what is left of it by SIGKILL.
func end(group int, exited <-chan struct{}) {
	_ = unix.Kill(group, unix.SIGTERM)
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case <-exited:
	case <-grace.C:
	}
	_ = unix.Kill(group, unix.SIGKILL)
	<-exited
}

// sysexits are the exit codes of sysexits.h that say that the message can never be
// delivered. All others may be trouble of this machine, which is never the sender's.
var sysexits = map[int]status.Code{
	65: {Class: 5, Subject: 6, Detail: 0}, // EX_DATAERR
	67: status.BadMailbox,                 // EX_NOUSER
	68: status.BadDomain,                  // EX_NOHOST
	69: {Class: 5, Subject: 3, Detail: 0}, // EX_UNAVAILABLE
	76: {Class: 5, Subject: 5, Detail: 0}, // EX_PROTOCOL
	77: {Class: 5, Subject: 7, Detail: 0}, // EX_NOPERM
}
