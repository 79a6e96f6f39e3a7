package cutfs

import (
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// File is an open file of a process.
type File struct {
	fs     *FS
	id     int
	name   string // as opened, for errors and the log
	flag   int
	pos    int64
	closed bool
}

// enter locks the disk for an operation on an open file.
func (f *File) enter() error {
	if err := f.fs.enter(); err != nil {
		return err
	}
	if f.closed {
		return fs.ErrClosed
	}
	return nil
}

func (f *File) content() (*content, error) {
	c := f.fs.disk.files[f.id]
	if c == nil {
		return nil, unix.EISDIR
	}
	return c, nil
}

// Read implements durable.File.
func (f *File) Read(b []byte) (int, error) {
	n, err := f.read(b, -1)
	if err != nil && err != io.EOF {
		err = pathError("read", f.name, err)
	}
	return n, err
}

// ReadAt implements durable.File.
func (f *File) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.read(b, off)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	if err != nil && err != io.EOF {
		err = pathError("read", f.name, err)
	}
	return n, err
}

// read reads at off, or at the file's position if off is negative.
func (f *File) read(b []byte, off int64) (int, error) {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return 0, err
	}
	if f.flag&os.O_WRONLY != 0 {
		return 0, unix.EBADF
	}
	c, err := f.content()
	if err != nil || len(b) == 0 {
		return 0, err
	}
	at := off
	if off < 0 {
		at = f.pos
	}
	if at >= int64(len(c.data)) {
		return 0, io.EOF
	}
	n := copy(b, c.data[at:])
	if off < 0 {
		f.pos += int64(n)
	}
	return n, nil
}

// Write implements durable.File.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.write(b, atPos)
	return n, pathError("write", f.name, err)
}

// WriteAt implements durable.File.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	if f.flag&os.O_APPEND != 0 {
		// Linux would append; no caller can mean that.
		return 0, pathError("write", f.name, unix.EINVAL)
	}
	n, err := f.write(b, off)
	return n, pathError("write", f.name, err)
}

// Append implements durable.File.
func (f *File) Append(b []byte) (int, error) {
	n, err := f.write(b, atEnd)
	return n, pathError("write", f.name, err)
}

const (
	atPos = -1
	atEnd = -2
)

// write writes at off, or where Write or Append does.
func (f *File) write(b []byte, off int64) (int, error) {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return 0, err
	}
	if f.flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return 0, unix.EBADF
	}
	c, err := f.content()
	if err != nil || len(b) == 0 {
		return 0, err
	}
	at := off
	switch {
	case off >= 0:
	case off == atEnd || f.flag&os.O_APPEND != 0:
		at = int64(len(c.data))
	default:
		at = f.pos
	}
	shown := b
	if len(shown) > 40 {
		shown = shown[:40]
	}
	tear := f.fs.tear && f.fs.left == 0
	if err := f.fs.step("write %s %d+%d %q", f.name, at, len(b), shown); err != nil {
		if tear && len(b) > 1 {
			c.write(b[:len(b)/2], at, f.fs.disk.tick())
		}
		return 0, err
	}
	c.write(b, at, f.fs.disk.tick())
	if off < 0 {
		f.pos = at + int64(len(b))
	}
	return len(b), nil
}

// Sync implements durable.File.
func (f *File) Sync() error {
	defer f.fs.leave()
	err := f.enter()
	if err == nil {
		err = f.fs.step("fsync %s", f.name)
	}
	if err != nil {
		return pathError("fsync", f.name, err)
	}
	if c := f.fs.disk.files[f.id]; c != nil {
		c.sync()
	}
	f.fs.disk.cover(f.id)
	return nil
}

// SharesSync implements durable.Sharer.
func (f *FS) SharesSync() bool { return true }

// SyncAll implements durable.Sharer, in model Journal as durable.OS does: the data of each
// file, a change of the last one, and the sync of that. The other models have no order
// that would make one sync enough.
func (f *FS) SyncAll(files []durable.File) error {
	if f.Model() != Journal {
		for _, file := range files {
			if err := file.Sync(); err != nil {
				return err
			}
		}
		return nil
	}
	for _, file := range files {
		if err := file.(*File).writeOut(); err != nil {
			return err
		}
	}
	last := files[len(files)-1]
	info, err := last.Stat()
	if err == nil {
		err = last.Chmod(info.Mode)
	}
	if err != nil {
		return err
	}
	return last.Sync()
}

// Model returns what SetModel has set.
func (f *FS) Model() Model {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.model
}

// writeOut makes the data of a file durable, and nothing else of it.
func (f *File) writeOut() error {
	defer f.fs.leave()
	err := f.enter()
	if err == nil {
		err = f.fs.step("sync_file_range %s", f.name)
	}
	if err != nil {
		return pathError("sync_file_range", f.name, err)
	}
	if c := f.fs.disk.files[f.id]; c != nil {
		c.sync()
	}
	return nil
}

// Chmod implements durable.File.
func (f *File) Chmod(perm fs.FileMode) error {
	defer f.fs.leave()
	err := f.enter()
	mode := perm & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid)
	if err == nil {
		err = f.fs.step("chmod %s %v", f.name, mode)
	}
	if err != nil {
		return pathError("chmod", f.name, err)
	}
	f.fs.disk.make(&change{kind: chmod, id: f.id, mode: mode})
	return nil
}

// SetModTime implements durable.File.
func (f *File) SetModTime(t time.Time) error {
	defer f.fs.leave()
	err := f.enter()
	t = t.Truncate(time.Microsecond)
	if err == nil {
		err = f.fs.step("utimes %s %v", f.name, t.UnixMicro())
	}
	if err != nil {
		return pathError("utimes", f.name, err)
	}
	f.fs.disk.make(&change{kind: settime, id: f.id, mtime: t})
	return nil
}

// Stat implements durable.File.
func (f *File) Stat() (durable.Info, error) {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return durable.Info{}, pathError("stat", f.name, err)
	}
	return f.fs.disk.info(f.id), nil
}

// Close implements durable.File. In a dead process it does nothing: the kernel has
// closed the file.
func (f *File) Close() error {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return pathError("close", f.name, err)
	}
	f.closed = true
	f.release()
	delete(f.fs.open, f)
	f.fs.disk.closed(f.id)
	return nil
}
