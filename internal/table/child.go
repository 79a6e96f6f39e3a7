package table

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/run/config"
)

// children is how many children of a source are started without a wait, and kept.
const children = 2

// leave is how long a child has to end when its standard input does.
const leave = time.Second

// openExec makes a table of a program that is asked on its standard input. It is started
// at the first lookup. settings is a file that it reads, as the Keeper opens it; "": none.
func openExec(s Source, argv []string, settings string, o Options) (Table, error) {
	program, err := exec.LookPath(argv[0])
	if err == nil && !filepath.IsAbs(program) {
		err = errors.New("want a path from the root")
	}
	if err != nil {
		return nil, &config.Error{File: s.Text, Reason: "its program " + argv[0] + " cannot be run", Err: bareExec(err)}
	}
	r := newRemote(s.Text, o.Name, children, o)
	r.connect = func(context.Context) (*conn, error) { return r.start(argv, settings) }
	return r, nil
}

func bareExec(err error) error {
	if eerr := (*exec.Error)(nil); errors.As(err, &eerr) {
		return bare(eerr.Err)
	}
	return bare(err)
}

// child is a program that answers on its standard output.
type child struct {
	cmd      *exec.Cmd
	to, from *os.File // its standard input and output
	stderr   *os.File
	ended    chan struct{} // it was waited for
}

// start starts a child. It has a process group of its own, so that whatever it starts
// can be ended with it.
func (r *remote) start(argv []string, settings string) (*conn, error) {
	var pipes [3][2]*os.File
	for i := range pipes {
		reader, writer, err := os.Pipe()
		if err != nil {
			for _, p := range pipes[:i] {
				p[0].Close()
				p[1].Close()
			}
			return nil, fmt.Errorf("start %s: %w", argv[0], err)
		}
		pipes[i] = [2]*os.File{reader, writer}
	}
	c := &child{to: pipes[0][1], from: pipes[1][0], stderr: pipes[2][0], ended: make(chan struct{})}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	if c.cmd.Dir = r.o.Dir; r.o.Dir == "" {
		c.cmd.Dir = "/" // ours may be taken away
	}
	c.cmd.Env = environment()
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = pipes[0][0], pipes[1][1], pipes[2][1]
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	attached, err := func() {}, error(nil)
	if r.o.Keeper != nil && settings != "" {
		attached, err = r.o.Keeper.Attach(c.cmd, settings)
	}
	if err == nil {
		err = c.cmd.Start()
		attached()
	}
	pipes[0][0].Close()
	pipes[1][1].Close()
	pipes[2][1].Close()
	if err != nil {
		c.closePipes()
		return nil, fmt.Errorf("start %s: %w", argv[0], bareExec(err))
	}
	go r.hear(c.stderr, c.cmd.Process.Pid)
	go func() {
		_ = c.cmd.Wait() // its answers have shown how it ended
		close(c.ended)
	}()
	var once sync.Once
	return &conn{
		r: bufio.NewReader(c.from), w: c.to, from: c.from,
		setDeadline: func(t time.Time) error {
			return errors.Join(c.to.SetWriteDeadline(t), c.from.SetReadDeadline(t))
		},
		close: func(orderly bool) { once.Do(func() { c.end(orderly) }) },
	}, nil
}

func (c *child) closePipes() {
	c.to.Close()
	c.from.Close()
	c.stderr.Close()
}

// end ends a child and all that it has started: an idle one by the end of its input, one
// that broke the protocol at once.
func (c *child) end(orderly bool) {
	c.to.Close()
	if orderly {
		t := time.NewTimer(leave)
		defer t.Stop()
		select {
		case <-c.ended:
		case <-t.C:
		}
	}
	select {
	case <-c.ended:
	default:
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.ended
	}
	c.closePipes()
}

// environment returns what a child gets of ours.
func environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TZ", "LANG", "ZCONFIG"} {
		if text, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+text)
		}
	}
	return env
}

// What a child may put into the log: lines of its standard error.
const (
	heardLines  = 20 // in heardWindow
	heardLength = 500
	heardWindow = time.Minute
)

// hear logs what a child says on its standard error, as far as it does not flood the log.
func (r *remote) hear(f *os.File, pid int) {
	lines := bufio.NewReaderSize(f, heardLength)
	var window time.Time
	said, lost := 0, 0
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		for more && err == nil { // the rest of a long line
			_, more, err = lines.ReadLine()
		}
		if now := r.o.Now(); now.Sub(window) >= heardWindow || now.Before(window) {
			window, said = now, 0
		}
		if said++; said > heardLines {
			lost++
			continue
		}
		text := strings.ToValidUTF8(string(line), "?")
		r.o.Log.Info("source-said", "source", r.source, "pid", pid, "text", text, "lost", lost)
		lost = 0
	}
}
