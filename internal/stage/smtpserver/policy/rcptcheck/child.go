package rcptcheck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// greeting is a child's first line: its tables are read.
const greeting = "zmailer rcpt-check 1"

// errEnded means that the child has ended, by itself or because it was killed.
var errEnded = errors.New("the process has ended")

const (
	// maxAnswer is how long a line of a child may be. Bytes.
	maxAnswer = 8 << 10
	// maxStderr is how much of its standard error is kept. Bytes.
	maxStderr = 2 << 10
	// leave is how long it has to end when its standard input does.
	leave = time.Second
	// starting is how long it has to read its tables.
	starting = 30 * time.Second
)

// child is a program that answers questions, several at a time.
type child struct {
	name    string
	o       *Options
	cmd     *exec.Cmd
	to      *os.File // its standard input
	from    *os.File
	said    *tail
	started time.Time
	gone    chan struct{} // closed when it answers no more
	waited  chan struct{} // closed when it was waited for
	writing sync.Mutex

	mu      sync.Mutex
	waiting map[string]chan string // by the number of the question
	heard   uint64                 // lines that it said
	greeted bool
	over    bool  // it is waited for: its number may be another's
	why     error // why it is gone
}

// start starts a child, in a process group of its own, so that whatever it starts can
// be ended with it.
func start(o *Options) (*child, error) {
	in, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Program[0], err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		in.Close()
		to.Close()
		return nil, fmt.Errorf("start %s: %w", o.Program[0], err)
	}
	k := &child{
		name: filepath.Base(o.Program[0]) + " " + o.Mode, o: o, to: to, from: from, said: &tail{}, started: time.Now(),
		gone: make(chan struct{}), waited: make(chan struct{}), waiting: map[string]chan string{},
	}
	k.cmd = exec.Command(o.Program[0], o.Program[1:]...)
	k.cmd.Dir = "/" // ours may be taken away
	k.cmd.Env = o.Env
	for _, name := range []string{"PATH", "HOME", "TZ", "LANG"} {
		if text, ok := os.LookupEnv(name); ok {
			k.cmd.Env = append(k.cmd.Env[:len(k.cmd.Env):len(k.cmd.Env)], name+"="+text)
		}
	}
	k.cmd.Stdin, k.cmd.Stdout, k.cmd.Stderr = in, out, k.said
	k.cmd.WaitDelay = leave // for a child of its own that keeps standard error open
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	attached := func() {}
	if o.Attach != nil {
		attached, err = o.Attach(k.cmd)
	}
	if err == nil {
		err = k.cmd.Start()
		attached()
	}
	in.Close()
	out.Close()
	if err != nil {
		to.Close()
		from.Close()
		return nil, fmt.Errorf("start %s: %w", o.Program[0], err)
	}
	o.Log.Info("rcpt-check-started", "path", o.Program[0], "pid", k.cmd.Process.Pid)
	go k.hear()
	return k, nil
}

// read reads the child's answers until it ends, and wakes the goroutines that wait for them.
func (k *child) hear() {
	lines := bufio.NewReaderSize(k.from, maxAnswer)
	first := true
	for {
		b, err := lines.ReadSlice('\n')
		if err != nil {
			break
		}
		line := strings.TrimSuffix(string(b), "\n")
		if first {
			if first = false; line != k.o.Greeting {
				break
			}
			k.mu.Lock()
			k.greeted = true
			k.mu.Unlock()
			continue
		}
		id, answer, _ := strings.Cut(line, " ")
		k.mu.Lock()
		k.heard++
		if to := k.waiting[id]; to != nil {
			delete(k.waiting, id)
			to <- answer
		}
		k.mu.Unlock()
	}
	// It may have closed its output only.
	k.kill()
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	werr := k.cmd.Wait()
	k.mu.Lock()
	k.why = errEnded
	if text := k.said.String(); text != "" {
		k.why = fmt.Errorf("%w: %s", errEnded, text)
	} else if werr != nil {
		k.why = fmt.Errorf("%w: %w", errEnded, werr)
	}
	k.mu.Unlock()
	close(k.gone)
	k.to.Close()
	k.from.Close()
	close(k.waited)
}

// kill ends the child's process group, and wakes the goroutine that reads from it.
func (k *child) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		_ = syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL)
		_ = k.from.SetReadDeadline(time.Unix(1, 0))
	}
}

func (k *child) dead() bool {
	select {
	case <-k.gone:
		return true
	default:
		return false
	}
}

// ask sends a question and waits for its answer. A child that answers nothing in that time
// is killed; one that answers others may need longer for this.
func (k *child) ask(ctx context.Context, id uint64, question string) (string, error) {
	number := strconv.FormatUint(id, 10)
	answer := make(chan string, 1)
	k.mu.Lock()
	k.waiting[number] = answer
	heard := k.heard
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.waiting, number)
		k.mu.Unlock()
	}()
	if err := k.write(ctx, number+" "+question+"\n"); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// It is ending: its standard error has the reason.
		k.kill()
	}
	select {
	case line := <-answer:
		return line, nil
	case <-k.gone:
		return "", k.reason()
	case <-ctx.Done():
	}
	k.mu.Lock()
	stuck := k.heard == heard && (k.greeted || time.Since(k.started) > starting)
	k.mu.Unlock()
	if stuck && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.kill()
		<-k.gone
	}
	return "", fmt.Errorf("%s does not answer: %w", k.name, ctx.Err())
}

func (k *child) reason() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Errorf("%s: %w", k.name, k.why)
}

// write writes a line, or a part of it until the time is over: then the child is killed.
func (k *child) write(ctx context.Context, line string) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	until, _ := ctx.Deadline()
	if err := k.to.SetWriteDeadline(until); err != nil {
		return err
	}
	n, err := k.to.WriteString(line)
	if err != nil && n > 0 {
		// The next line would go on in the middle of this one.
		k.kill()
	}
	return err
}

// end ends the child: by the end of its input, or else by force.
func (k *child) end() {
	k.to.Close()
	t := time.NewTimer(leave)
	defer t.Stop()
	select {
	case <-k.gone:
	case <-t.C:
		k.kill()
	}
	<-k.waited
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if n := len(t.b) - maxStderr; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

// String is it in one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.Join(strings.Fields(string(t.b)), " "), "?")
}
