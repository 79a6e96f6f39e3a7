package blockdev

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// imageName is the one file of the server's file system.
const imageName = "image"

// sector is what a disk writes whole or not at all.
const sector = 512

// device is the disk in the server.
type device struct {
	size int64

	mu      sync.Mutex
	content *os.File
	index   *os.File
	data    *os.File
	dataEnd int64
	faults  []Fault
	met     []int // by fault: matching operations
	hits    []int // by fault: those that it changed
}

// serve mounts the server's file system and answers until it is stopped.
func serve(opt Options) error {
	d := &device{size: opt.Size}
	var err error
	for path, file := range map[string]**os.File{opt.content(): &d.content, opt.index(): &d.index, opt.data(): &d.data} {
		if *file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
	}
	if err := errors.Join(d.content.Truncate(opt.Size), os.Mkdir(opt.mountPoint(), 0o700)); err != nil {
		return err
	}
	control, err := net.FileConn(os.NewFile(3, "control"))
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	long := time.Hour // nothing of the file changes but its content, which is not cached
	server, err := fs.Mount(opt.mountPoint(), &directory{device: d}, &fs.Options{
		EntryTimeout: &long, AttrTimeout: &long,
		MountOptions: fuse.MountOptions{
			Name: "zmailer-disk", FsName: "zmailer-disk", DirectMountStrict: true, DisableXAttrs: true, MaxWrite: 1 << 20,
		},
	})
	if err != nil {
		return fmt.Errorf("mount the FUSE file system: %w", err)
	}
	calls := rpc.NewServer()
	if err := calls.RegisterName("Control", &Control{d}); err != nil {
		return err
	}
	calls.ServeConn(control) // until the client closes it, or has died
	// It fails only where the client has died in the middle of its work; the end of this
	// process ends the file system then.
	_ = server.Unmount()
	return nil
}

// Control is what the client calls.
type Control struct{ device *device }

// Arm replaces the faults.
func (c *Control) Arm(faults []Fault, _ *bool) error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults, d.met, d.hits = faults, make([]int, len(faults)), make([]int, len(faults))
	return nil
}

// Hits counts the operations that each fault has changed.
func (c *Control) Hits(_ bool, hits *[]int) error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	*hits = append([]int{}, d.hits...)
	return nil
}

// Stop answers when everything was logged. The client closes the connection then.
func (c *Control) Stop(_ bool, _ *bool) error {
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	return nil
}

// fault returns the fault that an operation meets, nil if it succeeds.
func (d *device) fault(op Op, off, length int64, data []byte) *Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.faults {
		f := &d.faults[i]
		if f.Op != op || !f.touches(off, length) || f.Containing != "" && !bytes.Contains(data, []byte(f.Containing)) {
			continue
		}
		d.met[i]++
		if d.met[i] <= f.Skip || f.Times > 0 && d.met[i] > f.Skip+f.Times {
			continue
		}
		d.hits[i]++
		return f
	}
	return nil
}

func (f *Fault) touches(off, length int64) bool {
	for _, r := range f.Ranges {
		if off < r.End && r.Begin < off+length {
			return true
		}
	}
	return len(f.Ranges) == 0
}

// write writes and logs data, as far as no fault is in the way.
func (d *device) write(data []byte, off int64) syscall.Errno {
	if off < 0 || off+int64(len(data)) > d.size {
		return syscall.EIO
	}
	errno := syscall.Errno(0)
	if f := d.fault(Write, off, int64(len(data)), data); f != nil {
		errno = f.Errno
		time.Sleep(f.Delay)
		if !f.Whole {
			data = data[:min(len(data), f.Sectors*sector)]
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(data) == 0 {
		return errno
	}
	if _, err := d.content.WriteAt(data, off); err != nil {
		return fs.ToErrno(err)
	}
	if _, err := d.data.WriteAt(data, d.dataEnd); err != nil {
		return fs.ToErrno(err)
	}
	if err := d.log(Record{Op: Write, Off: off, Len: int64(len(data)), data: d.dataEnd}); err != nil {
		return fs.ToErrno(err)
	}
	d.dataEnd += int64(len(data))
	return errno
}

// flush logs a flush. Its place in the log is that of its arrival: it covers what was
// answered before.
func (d *device) flush() syscall.Errno {
	if f := d.fault(Flush, 0, 0, nil); f != nil {
		if !f.Whole {
			time.Sleep(f.Delay)
			return f.Errno
		}
		defer time.Sleep(f.Delay)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return fs.ToErrno(d.log(Record{Op: Flush}))
}

// log appends a record; the caller has the lock.
func (d *device) log(r Record) error {
	b := make([]byte, 0, recordSize)
	for _, v := range []int64{int64(r.Op), r.Off, r.Len, time.Now().UnixNano(), r.data} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	_, err := d.index.Write(b)
	return err
}

func (d *device) read(dest []byte, off int64) (int, syscall.Errno) {
	if f := d.fault(Read, off, int64(len(dest)), nil); f != nil {
		time.Sleep(f.Delay)
		if f.Errno != 0 {
			return 0, f.Errno
		}
	}
	n, err := d.content.ReadAt(dest, off)
	if n > 0 {
		err = nil
	}
	return n, fs.ToErrno(err)
}

// directory is the root of the server's file system.
type directory struct {
	fs.Inode
	device *device
}

var _ fs.NodeOnAdder = (*directory)(nil)

// OnAdd makes the one file.
func (r *directory) OnAdd(ctx context.Context) {
	file := r.NewPersistentInode(ctx, &image{device: r.device}, fs.StableAttr{Mode: syscall.S_IFREG, Ino: 2})
	r.AddChild(imageName, file, true)
}

// image is the file.
type image struct {
	fs.Inode
	device *device
}

var (
	_ fs.NodeOpener    = (*image)(nil)
	_ fs.NodeGetattrer = (*image)(nil)
	_ fs.NodeReader    = (*image)(nil)
	_ fs.NodeWriter    = (*image)(nil)
	_ fs.NodeFsyncer   = (*image)(nil)
)

// Open keeps the file out of the page cache: each write of the loop device arrives here
// as it is, in order, before the device is answered.
func (i *image) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (i *image) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = syscall.S_IFREG|0o600, uint64(i.device.size), 4096
	out.Blocks = out.Size / sector
	return 0
}

func (i *image) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, errno := i.device.read(dest, off)
	return fuse.ReadResultData(dest[:n]), errno
}

func (i *image) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := i.device.write(data, off); errno != 0 {
		return 0, errno
	}
	return uint32(len(data)), 0
}

// Fsync returns what the loop device makes of a flush.
func (i *image) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return i.device.flush() }
