// Package closed lets a router that may not read everything read files in directories that
// are closed to it: .forward files and what they include. A second process, started before
// the router gives up the right to do so, looks them up and opens them for it, and hands
// over descriptors. It opens regular files of ordinary users alone: nothing of root's is
// read through it, and nothing written.
//
// The two talk over a socket of type SOCK_SEQPACKET, a message of JSON at a time. It owns
// nothing on disk, and ends with the router.
//
// Diagnostics: an error with fs.ErrPermission or fs.ErrNotExist is what the system said of
// the file, or that it is root's. ErrGone: the other process has ended; the router has to be
// started again. ErrSilent: it does not answer, because a disk does not.
package closed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrGone means that the process that opens files has ended.
	ErrGone = errors.New("the process that opens files in closed directories has ended")
	// ErrSilent means that it has not answered in time.
	ErrSilent = errors.New("the process that opens files in closed directories does not answer")
)

// order asks for a file: a look at a name, or its content.
type order struct {
	N    uint64 `json:"n"`
	Look string `json:"look,omitempty"`
	Open string `json:"open,omitempty"`
}

// answer comes with a descriptor, or says why there is none.
type answer struct {
	N     uint64        `json:"n"`
	Errno syscall.Errno `json:"errno,omitempty"`
	file  *os.File
}

// maxMessage is how long a message may be: it has a path. Bytes.
const maxMessage = 32 << 10

// patience is how long a disk may take.
const patience = time.Minute

// Client is the router's end.
type Client struct {
	conn *net.UnixConn

	mu      sync.Mutex
	n       uint64
	waiting map[uint64]chan answer
	gone    chan struct{}
}

// NewClient takes a connection to Serve.
func NewClient(conn *net.UnixConn) *Client {
	c := &Client{conn: conn, waiting: map[uint64]chan answer{}, gone: make(chan struct{})}
	go c.listen()
	return c
}

// Gone is closed when the other process has ended.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Look is os.Lstat, with what a symbolic link leads to.
func (c *Client) Look(path string) (info fs.FileInfo, link string, err error) {
	f, err := c.ask(order{Look: path})
	if err != nil {
		return nil, "", &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return info, "", err
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", b)
	if err != nil {
		return nil, "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	return info, string(b[:n]), nil
}

// Open opens a regular file of an ordinary user for reading.
func (c *Client) Open(path string) (*os.File, error) {
	f, err := c.ask(order{Open: path})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

func (c *Client) ask(o order) (*os.File, error) {
	reply := make(chan answer, 1)
	c.mu.Lock()
	c.n++
	o.N = c.n
	b, err := json.Marshal(o)
	if err == nil && len(b) > maxMessage {
		err = syscall.ENAMETOOLONG
	}
	if err == nil {
		c.waiting[o.N] = reply
		if err = c.conn.SetWriteDeadline(time.Now().Add(patience)); err == nil {
			_, err = c.conn.Write(b)
		}
	}
	c.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	if err == nil {
		select {
		case a := <-reply:
			if a.Errno != 0 {
				return nil, a.Errno
			}
			return a.file, nil
		case <-c.gone:
			err = ErrGone
		case <-late.C:
			err = ErrSilent
		}
	}
	c.mu.Lock()
	delete(c.waiting, o.N)
	c.mu.Unlock()
	select {
	case a := <-reply: // just now
		if a.file != nil {
			_ = a.file.Close()
		}
	default:
	}
	return nil, err
}

// listen hands answers to those who wait for them.
func (c *Client) listen() {
	defer close(c.gone)
	for {
		var a answer
		files, err := receive(c.conn, &a)
		if err != nil {
			return
		}
		if len(files) == 1 {
			a.file = files[0]
		} else if a.Errno == 0 {
			a.Errno = syscall.EIO
		}
		c.mu.Lock()
		to := c.waiting[a.N]
		delete(c.waiting, a.N)
		if to != nil {
			to <- a
		}
		c.mu.Unlock()
		if to == nil && a.file != nil {
			_ = a.file.Close()
		}
	}
}

// receive reads a message and what came with it.
func receive(conn *net.UnixConn, into any) (files []*os.File, err error) {
	b, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*4))
	n, rn, _, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, ErrGone
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return nil, err
	}
	for i := range messages {
		list, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // something else that came with it
		}
		for _, fd := range list {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "closed"))
		}
	}
	if err := json.Unmarshal(b[:n], into); err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return files, nil
}
