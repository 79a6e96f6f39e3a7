// Package keys lets a daemon that has given root up read keys and passwords that root alone can
// read, such as certbot's. A helper process (package helper), which is started before and keeps
// the right to read every file, opens them and hands over descriptors, at the start and whenever
// a file changes. It opens the files that zmailer.conf names as keys of its program, and only
// where no one but root could have put another file in their place (policy.go). That of smtpserver
// opens the addresses that zmailer.conf names, too, also ports below 1024, when a reload brings them. It
// owns nothing on disk.
//
// Diagnostics: an error of Open with fs.ErrPermission is a file that is not handed over, with
// the reason. fs.ErrNotExist and others are errors of the system. ErrGone: the helper has ended; the
// daemon goes on with what it has read, and has to be started again before it can read more.
package keys

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/helper"
)

const (
	// Flag makes a daemon's program the helper of another one.
	Flag = "open-keys"
	// Usage describes it.
	Usage = "only open keys and addresses that root alone may open, for another process of this program (docs/privileges.md)"
	// Variable has the descriptor of a connection to the helper, in the environment of a
	// program that a daemon starts.
	Variable = "KEYOPENER"
)

// ErrGone means that the helper has ended.
var ErrGone = errors.New("the process that opens keys has ended: restart this daemon")

// errSilent means that a disk, or the helper, hangs.
var errSilent = errors.New("the process that opens keys does not answer")

// patience is how long a file may take.
const patience = 10 * time.Second

// maxMessage is how long a message may be: it has a path. Bytes.
const maxMessage = 16 << 10

// request asks for a file. Paths are bytes: JSON would change those that are not UTF-8. Without
// a path it brings the end of another connection to be served.
type request struct {
	N      uint64 `json:"n"`
	Path   []byte `json:"path,omitempty"`
	Listen string `json:"listen,omitempty"` // an address to listen on, in place of a path
	Share  bool   `json:"share,omitempty"`  // others of this user may overlap with it
	Only   []byte `json:"only,omitempty"`   // what the connection that comes with it is for; without: all
}

// answer comes with a descriptor, or with the reason why not.
type answer struct {
	N       uint64        `json:"n"`
	Errno   syscall.Errno `json:"errno,omitempty"`
	Refused string        `json:"refused,omitempty"`
}

// Client is a daemon's end. Many goroutines may use it. A nil Client opens nothing.
type Client struct {
	conn     *net.UnixConn
	patience time.Duration

	mu   sync.Mutex
	n    uint64
	gone bool
}

// Start starts the helper of a program, if this process has the right to read every file and is
// to give it up. It is called before confine.Enter. nil without an error: there is nothing to
// hand over, because this process keeps its rights, or has none.
func Start(settings *config.Config, program string) (*Client, error) {
	if settings.File == "" {
		return nil, nil
	}
	holds, err := plan(settings, program).HoldsAny()
	if err != nil {
		return nil, settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	if !holds {
		return nil, nil
	}
	conn, err := helper.Start("--"+Flag, settings)
	if err != nil {
		return nil, fmt.Errorf("start the process that opens keys: %w", err)
	}
	return NewClient(conn), nil
}

// plan returns what the helper of a program keeps: to read, and for smtpserver to listen.
func plan(settings *config.Config, program string) confine.Plan {
	if program == "smtpserver" {
		return confine.PlanFor("server-opener", settings)
	}
	return confine.PlanFor("opener", settings)
}

// Help is the helper process of a daemon's program that Start has started. It ends with the daemon.
func Help(settings *config.Config, program string) error {
	conn, err := helper.Inherited()
	if err != nil {
		return fmt.Errorf("--%s: it must be started by a daemon: %w", Flag, err)
	}
	if _, err := plan(settings, program).Enter(); err != nil {
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	// The daemon ends this process when it is done. Not signal.Ignore, which a child would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return Serve(conn, NewPolicy(settings.File, program))
}

// NewClient takes a connection to Serve.
func NewClient(conn *net.UnixConn) *Client { return &Client{conn: conn, patience: patience} }

// FromEnvironment returns the connection that the process which has started this one has
// passed, or nil.
func FromEnvironment() *Client {
	fd, err := strconv.Atoi(os.Getenv(Variable))
	if err != nil || fd < 3 {
		return nil
	}
	_ = os.Unsetenv(Variable) // it is ours
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "keys")
	defer f.Close() // the connection has a descriptor of its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil // no descriptor has that number: keys are read as this process can
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil
	}
	return NewClient(u)
}

// Open opens a regular file for reading.
func (c *Client) Open(path string) (*os.File, error) {
	if c == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: config.ErrNotHanded}
	}
	f, err := c.ask(request{Path: []byte(path)}, nil)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

// Secret opens a file, by the helper if this process may not.
func (c *Client) Secret(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // no pipe is waited for
	if c == nil || !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	return c.Open(path)
}

// Listen opens a TCP address that the settings name for this daemon. share: the sockets of this user
// that allow it may overlap with it.
func (c *Client) Listen(addr string, share bool) (net.Listener, error) {
	if c == nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: fs.ErrPermission}
	}
	f, err := c.ask(request{Listen: addr, Share: share}, nil)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	defer f.Close() // the listener has a descriptor of its own
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

// Hand returns the end of another connection to the same helper, for a program that is
// started; Variable is to have its number there. nil: there is no helper. With a path it is for that
// file, and those that it names, alone.
func (c *Client) Hand(only string) (*os.File, error) {
	if c == nil {
		return nil, nil
	}
	ours, theirs, err := helper.Sockets()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if _, err := c.ask(request{Only: []byte(only)}, unix.UnixRights(int(theirs.Fd()))); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// Attach gives a program that is about to be started a connection of its own, as
// FromEnvironment finds it. done is called when it was started.
func (c *Client) Attach(cmd *exec.Cmd) (done func(), err error) { return c.AttachFor(cmd, "") }

// AttachFor is Attach for a file, such as that of a table's database, and the files of passwords that
// it names.
func (c *Client) AttachFor(cmd *exec.Cmd, path string) (done func(), err error) {
	f, err := c.Hand(path)
	if f == nil {
		return func() {}, err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], Variable+"="+strconv.Itoa(2+len(cmd.ExtraFiles)))
	return func() { _ = f.Close() }, nil
}

// ask sends a request and waits for its answer.
func (c *Client) ask(r request, rights []byte) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, ErrGone
	}
	c.n++
	r.N = c.n
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(b) > maxMessage {
		return nil, syscall.ENAMETOOLONG
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return nil, c.end()
	}
	if _, _, err := c.conn.WriteMsgUnix(b, rights, nil); err != nil {
		return nil, c.failed(err)
	}
	for {
		var a answer
		files, err := helper.Receive(c.conn, maxMessage, &a)
		if err != nil {
			return nil, c.failed(err)
		}
		if a.N != r.N || a.Errno != 0 || a.Refused != "" || len(files) > 1 {
			closeAll(files)
			files = nil
		}
		switch {
		case a.N != r.N:
			continue // the answer to a request that was given up
		case a.Refused != "":
			return nil, &refusal{a.Refused}
		case a.Errno != 0:
			return nil, a.Errno
		case len(files) == 1:
			return files[0], nil
		case r.Path == nil && r.Listen == "":
			return nil, nil
		}
		return nil, syscall.EIO
	}
}

func (c *Client) failed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSilent
	}
	return c.end()
}

func (c *Client) end() error {
	c.gone = true
	_ = c.conn.Close() // it leads nowhere any more
	return ErrGone
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // it is not used
	}
}

// refusal is a file that the policy does not have handed over.
type refusal struct{ reason string }

func (e *refusal) Error() string { return "permission denied, and not handed over: " + e.reason }

func (e *refusal) Is(target error) bool { return target == fs.ErrPermission }
