// Package closed lets a router that may not read everything read files in directories that
// are closed to it: .forward files and what they include. A second process, started before
// the router gives up the right to do so, looks them up and opens them for it, and hands
// over descriptors. It opens the files that a Policy allows: nothing of root's is read
// through it, and nothing written. A lookup returns attributes; only an opened file comes
// with a descriptor.
//
// It is a helper process (package helper). It owns nothing on disk.
//
// Diagnostics: an error with fs.ErrPermission or fs.ErrNotExist is what the system said of
// the file, or that the Policy does not have it opened. ErrGone: the other process has
// ended; the router has to be started again. ErrSilent: it does not answer, because a disk
// does not.
package closed

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"zmailer/internal/run/helper"
)

var (
	// ErrGone means that the process that opens files has ended.
	ErrGone = errors.New("the process that opens files in closed directories has ended")
	// ErrSilent means that it has not answered in time.
	ErrSilent = errors.New("the process that opens files in closed directories does not answer")
)

// order asks for a file: a look at a name, or its content. Paths are bytes: JSON would change
// those that are not UTF-8.
type order struct {
	N    uint64 `json:"n"`
	Look []byte `json:"look,omitempty"`
	Open []byte `json:"open,omitempty"`
}

// answer comes with a descriptor or with what was seen, or says why there is neither.
type answer struct {
	N     uint64        `json:"n"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Seen  *seen         `json:"seen,omitempty"`
	file  *os.File
}

// maxMessage is how long a message may be: it has a path, or two. Bytes.
const maxMessage = 32 << 10

// patience is how long a disk may take.
const patience = time.Minute

// mostAsked is how many orders may be without an answer: fewer than Serve works on, so that
// it always hears us.
const mostAsked = atOnce * 3 / 4

// Client is the router's end.
type Client struct {
	conn     *net.UnixConn
	patience time.Duration
	places   chan struct{} // one is held until the answer comes, however late
	late     atomic.Int32  // how many are held for answers that no caller waits for any more
	writing  sync.Mutex

	mu      sync.Mutex
	n       uint64
	waiting map[uint64]chan answer // nil: no caller waits any more
	gone    chan struct{}
}

// NewClient takes a connection to Serve.
func NewClient(conn *net.UnixConn) *Client { return newClient(conn, patience) }

func newClient(conn *net.UnixConn, patience time.Duration) *Client {
	c := &Client{
		conn: conn, patience: patience, places: make(chan struct{}, mostAsked),
		waiting: map[uint64]chan answer{}, gone: make(chan struct{}),
	}
	go c.listen()
	return c
}

// Gone is closed when the other process has ended.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Look is os.Lstat, with what a symbolic link leads to.
func (c *Client) Look(path string) (info fs.FileInfo, link string, err error) {
	a, err := c.ask(order{Look: []byte(path)})
	if err == nil && a.Seen == nil {
		err = syscall.EIO
	}
	if err != nil {
		return nil, "", &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return a.Seen.info(path), string(a.Seen.Link), nil
}

// Open opens a regular file for reading, if the Policy allows it.
func (c *Client) Open(path string) (*os.File, error) {
	a, err := c.ask(order{Open: []byte(path)})
	if err == nil && a.file == nil {
		err = syscall.EIO
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return a.file, nil
}

// ask waits for the answer to an order. Where all places are held by orders that the other
// process hangs in, no caller waits for one.
func (c *Client) ask(o order) (answer, error) {
	late := time.NewTimer(c.patience)
	defer late.Stop()
	if c.late.Load() >= mostAsked {
		return answer{}, ErrSilent
	}
	select {
	case c.places <- struct{}{}:
	case <-c.gone:
		return answer{}, ErrGone
	case <-late.C:
		return answer{}, ErrSilent
	}
	reply, err := c.send(&o)
	if err != nil {
		<-c.places
		return answer{}, err
	}
	select {
	case a := <-reply:
		return a.orError()
	case <-c.gone:
		return c.giveUp(o.N, reply, ErrGone)
	case <-late.C:
		return c.giveUp(o.N, reply, ErrSilent)
	}
}

func (a answer) orError() (answer, error) {
	if a.Errno != 0 {
		return answer{}, a.Errno
	}
	return a, nil
}

// send gives an order its number and sends it. Whoever waits to write keeps no answer from
// those who wait for one.
func (c *Client) send(o *order) (reply chan answer, err error) {
	reply = make(chan answer, 1)
	c.mu.Lock()
	c.n++
	o.N = c.n
	c.waiting[o.N] = reply
	c.mu.Unlock()
	b, err := json.Marshal(o)
	if err == nil && len(b) > maxMessage {
		err = syscall.ENAMETOOLONG
	}
	if err == nil {
		err = c.write(b)
	}
	if err != nil {
		c.mu.Lock()
		delete(c.waiting, o.N)
		c.mu.Unlock()
		return nil, err
	}
	return reply, nil
}

func (c *Client) write(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrSilent
	}
	return err
}

// giveUp leaves an order's place to its answer, unless that has come just now.
func (c *Client) giveUp(n uint64, reply chan answer, why error) (answer, error) {
	c.mu.Lock()
	_, open := c.waiting[n]
	if open {
		c.waiting[n] = nil
		c.late.Add(1)
	}
	c.mu.Unlock()
	if !open {
		return (<-reply).orError()
	}
	return answer{}, why
}

// listen hands answers to those who wait for them.
func (c *Client) listen() {
	defer close(c.gone)
	for {
		var a answer
		files, err := helper.Receive(c.conn, maxMessage, &a)
		if err != nil {
			return
		}
		if len(files) == 1 {
			a.file = files[0]
		}
		c.mu.Lock()
		to, asked := c.waiting[a.N]
		delete(c.waiting, a.N)
		if to != nil {
			to <- a
		} else if asked {
			c.late.Add(-1)
		}
		c.mu.Unlock()
		if asked {
			<-c.places
		}
		if to == nil && a.file != nil {
			_ = a.file.Close()
		}
	}
}
