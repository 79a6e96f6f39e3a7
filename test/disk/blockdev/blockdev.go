// Package blockdev is a disk for tests that logs what reaches it and fails on request.
//
// The disk is one file in a FUSE file system, which a process of its own serves; a loop
// device makes a block device of it, and a file system of the kernel is mounted on that.
// The server appends every write and every flush to a log before the kernel gets the
// answer. The log holds what a real disk would have been given, so the state of the disk
// after a loss of power can be rebuilt for any moment: Log and Builder do that. Faults
// are armed while the file system is mounted: see Fault.
//
// The server is a process of its own because a process that serves a file system must
// not wait for it: killed in the middle of an unmount it could not die. A program that
// uses the package calls Main first, because the server is the same program.
//
// After a crash of the server the kernel answers everything with errors. The package
// removes nothing then; package disk runs everything in namespaces that end with it.
package blockdev

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Op is an operation on the disk.
type Op uint32

// Operations. A flush that was answered with an error, or omitted, is no Flush.
const (
	Write Op = iota + 1
	Flush
	Read // is never logged
)

// Range is a part of the disk in bytes; End is behind its last byte.
type Range struct{ Begin, End int64 }

// Fault describes operations that do not succeed as they should. The first fault that
// matches an operation decides.
type Fault struct {
	Op Op
	// Ranges limit the fault to operations that touch one of them; none: everywhere.
	Ranges []Range
	// Containing limits the fault to writes whose data contain the text.
	Containing string
	Skip       int // so many matching operations succeed first
	Times      int // so many operations fail then; 0: all
	// Errno is the answer; 0 is success.
	Errno syscall.Errno
	// Sectors of a write reach the disk before the answer, 512 bytes each. Errno 0 with
	// fewer sectors than the write has is a disk that lies. Whole takes all of them.
	Sectors int
	// Whole: the operation takes place, and only the answer is wrong or late.
	Whole bool
	Delay time.Duration
}

// Options are what a server is started with.
type Options struct {
	// Dir is an empty directory for the image, the log and the mount point of the server.
	Dir  string
	Size int64 // of the disk in bytes
}

// Disk is the client of a server.
type Disk struct {
	opt    Options
	cmd    *exec.Cmd
	client *rpc.Client
}

// marker is the variable that makes a program the server.
const marker = "BLOCKDEV_SERVER"

// Main returns at once in a program that was started as usual. Started by Start, it is
// the server and does not return.
func Main() {
	text := os.Getenv(marker)
	if text == "" {
		return
	}
	var opt Options
	err := json.Unmarshal([]byte(text), &opt)
	if err == nil {
		err = serve(opt)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "blockdev:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts a server and returns when its file can be opened.
func Start(opt Options) (*Disk, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(opt)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control of the server")
	defer ours.Close()
	d := &Disk{opt: opt, cmd: exec.Command(self)}
	d.cmd.Env = append(os.Environ(), marker+"="+string(text))
	d.cmd.ExtraFiles = []*os.File{theirs}
	d.cmd.Stderr = os.Stderr
	if err := errors.Join(d.cmd.Start(), theirs.Close()); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, errors.Join(err, d.kill())
	}
	d.client = rpc.NewClient(conn)
	// The first answer comes when the server has mounted its file system.
	if err := d.Arm(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the disk server: %w", err), d.kill())
	}
	return d, nil
}

func (d *Disk) kill() error {
	_ = d.cmd.Process.Kill() // it may have ended
	_ = d.cmd.Wait()
	return nil
}

func (o Options) mountPoint() string { return filepath.Join(o.Dir, "fuse") }
func (o Options) content() string    { return filepath.Join(o.Dir, "content") }
func (o Options) index() string      { return filepath.Join(o.Dir, "index") }
func (o Options) data() string       { return filepath.Join(o.Dir, "data") }

// Image returns the file that a loop device is to be attached to.
func (d *Disk) Image() string { return filepath.Join(d.opt.mountPoint(), imageName) }

// Size returns the disk's, in bytes.
func (d *Disk) Size() int64 { return d.opt.Size }

// Arm replaces all faults. Without an argument the disk works.
func (d *Disk) Arm(faults ...Fault) error {
	return d.client.Call("Control.Arm", faults, new(bool))
}

// Hits returns how many operations each armed fault has met.
func (d *Disk) Hits() (hits []int, err error) {
	return hits, d.client.Call("Control.Hits", false, &hits)
}

// Log opens the log of what happened so far.
func (d *Disk) Log() (*Log, error) { return openLog(d.opt) }

// Close ends the server. No file system may be mounted on the disk any more.
func (d *Disk) Close() error {
	err := d.client.Call("Control.Stop", false, new(bool))
	err = errors.Join(err, d.client.Close())
	if err != nil {
		return errors.Join(err, d.kill())
	}
	return d.cmd.Wait()
}
