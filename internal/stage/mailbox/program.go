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
	"unicode"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
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

// run starts the program with its input, and waits for its end. An error means that it
// did not run.
func (p *program) run(in *os.File) (e ended, err error) {
	cmd := p.cmd()
	out, err := p.start(cmd, in)
	if err != nil {
		return e, &fault{code: configTrouble, text: "the program cannot be started", err: err}
	}
	read := make(chan string, 1)
	go func() { read <- keep(out) }()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		waitExit(cmd.Process.Pid)
	}()
	limit := time.NewTimer(p.limit)
	defer limit.Stop()
	select {
	case <-exited:
	case <-limit.C:
		select {
		case <-exited: // just in time
		default:
			e.late = true
			end(-cmd.Process.Pid, exited)
		}
	}
	_ = out.SetReadDeadline(time.Now().Add(outputGrace))
	e.output, e.limit = <-read, p.limit
	// The errors are the pipe's and the exit code's, which are looked at.
	_, _ = out.Close(), cmd.Wait()
	e.state, _ = cmd.ProcessState.Sys().(syscall.WaitStatus)
	return e, nil
}

// cmd returns the command without its pipes: started directly if no shell is needed.
func (p *program) cmd() *exec.Cmd {
	args := []string{"/bin/sh", "-c", p.command}
	if strings.HasPrefix(p.command, "/") && !strings.ContainsAny(p.command, "\"'`$\\;&|<>(){}[]*?~#!\t\n") {
		args = strings.Fields(p.command)
	}
	// A session of its own: the user's program cannot type into root's terminal (TIOCSTI).
	c := &exec.Cmd{Path: args[0], Args: args, Env: p.env, Dir: p.dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if p.as != nil {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.as.uid), Gid: uint32(p.as.gid)}
	}
	return c
}

// start starts the command with its input; out is its output, both streams.
func (p *program) start(cmd *exec.Cmd, in *os.File) (out *os.File, err error) {
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, childOut, childOut
	err = cmd.Start()
	_ = childOut.Close() // the child has its own
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

// inputFile writes what a program is to read to a file without a name and opens that
// for reading, at its beginning. A pipe that ends when its writer is killed would have
// the program take a part for the whole. dir is where the file is, if its file system
// can do that.
func inputFile(dir string, write func(io.Writer) error) (in *os.File, err error) {
	f, err := unnamed(dir)
	if err != nil {
		return nil, inputFault(err)
	}
	defer func() { _ = f.Close() }() // in is another one
	b := bufio.NewWriterSize(f, bufferSize)
	if err = write(b); err == nil {
		err = b.Flush()
	}
	if err == nil {
		// /dev/stdin can be opened by the user that the program runs as, and by no other.
		err = f.Chmod(0o444)
	}
	if err != nil {
		return nil, inputFault(err)
	}
	// Not to be written: it is not of the program's quota.
	if in, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
		return nil, inputFault(err)
	}
	return in, nil
}

// unnamed opens a new file that has no name and gets none.
func unnamed(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE|os.O_EXCL, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return f, err
	}
	if f, err = os.CreateTemp("", "ta-mailbox-*"); err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// inputFault is trouble of the mail system, not of a mailbox.
func inputFault(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &fault{code: status.Code{Class: 4, Subject: 3, Detail: 1}, text: "the mail system's disk is full", err: err}
	}
	return &fault{code: status.SystemTrouble, text: "the message cannot be given to the program", err: err}
}

// keep reads the output to its end and keeps the beginning.
func keep(out io.Reader) string {
	var b strings.Builder
	_, _ = io.CopyN(&b, out, maxOutput) // it may end before, or never
	_, _ = io.Copy(io.Discard, out)
	return b.String()
}

// waitExit returns when a child has ended. It is not reaped: until then its number, which
// belongs to its process group only.
func waitExit(pid int) {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}

// end ends a process group: by SIGTERM, and the rest of it by SIGKILL.
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

// Exit codes that mean that the program is not as it should be: EX_CONFIG, and a shell's for
// a command that it cannot run.
const (
	exConfig        = 78
	exNotExecutable = 126
	exNotFound      = 127
)

// result returns the result of the recipient of a program that has ended.
func (e *ended) result() agent.Result {
	code, how := e.verdict()
	first, _, _ := strings.Cut(strings.TrimSpace(e.output), "\n")
	words := printable(first)
	// A program may print a full status, of the class of its exit code.
	if printed, rest, _ := strings.Cut(words, " "); printed != "" && code.Class != 2 {
		if c, ok := status.Parse(printed); ok && c.Class == code.Class {
			code, words = c, rest
		}
	}
	reply := how
	if code.Class != 2 {
		reply = code.String() + " " + how
	}
	if words != "" {
		reply += ": " + words
	}
	return agent.Result{Outcome: code.Outcome(), Code: code, Reply: reply, Text: how + "\n" + printable(e.output)}
}

// verdict returns the status of a program's end, and a description.
func (e *ended) verdict() (status.Code, string) {
	exit := e.state.ExitStatus()
	code, permanent := sysexits[exit]
	switch {
	case e.late:
		return status.SystemTrouble, fmt.Sprintf("the program was killed, it had run for %s", e.limit)
	case e.state.Signaled():
		return status.SystemTrouble, "the program was ended by " + unix.SignalName(e.state.Signal())
	case exit == 0:
		return status.OK, "the program took it"
	case permanent:
	case exit == exConfig, exit == exNotExecutable, exit == exNotFound:
		code = configTrouble
	default: // EX_TEMPFAIL with them
		code = status.SystemTrouble
	}
	return code, fmt.Sprintf("the program exited with %d", exit)
}

// printable has a blank for every control character but the newline, and ? for what is
// no UTF-8.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == unicode.ReplacementChar:
			return '?'
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, s))
}
