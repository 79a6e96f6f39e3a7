package inject

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxHead  = 512 // bytes of Call.Data
	maxTail  = 5   // bytes that a final dot takes with the line end before it
	maxPath  = 4096
	maxParts = 1024 // struct iovec of one call
)

// describe reads what a call is about from the caller's memory and descriptors. nil:
// it changes nothing that counts.
func (i *Injector) describe(n *notification) (*Call, error) {
	s, ok := i.calls[int(n.number)]
	if !ok {
		return nil, fmt.Errorf("call %d is not in the table", n.number)
	}
	c := &Call{Thread: int(n.thread), Name: s.name}
	var classes, objects []string
	add := func(object string) {
		objects = append(objects, object)
		classes = append(classes, i.Classes.Of(object))
	}
	if s.fd >= 0 {
		object, err := os.Readlink(c.proc("fd", strconv.Itoa(int(int32(n.args[s.fd])))))
		if err != nil {
			return nil, nil // EBADF: the call fails by itself
		}
		add(object)
	}
	for _, name := range s.names {
		object, err := c.name(n, name)
		if err != nil {
			return nil, err
		}
		add(object)
	}
	if err := c.content(n, s); err != nil {
		return nil, err
	}
	if s.bytes != nothing {
		tail, err := c.tail(n, s)
		if err != nil {
			return nil, err
		}
		classes[0] = Stream(classes[0], c.Data, tail)
	}
	c.Path, c.Object = strings.Join(classes, " -> "), strings.Join(objects, " -> ")
	if Ignored(c.Name, c.Path) {
		return nil, nil
	}
	return c, c.process()
}

// Ignored reports whether a call changes no state: the runtime's own wake-ups, devices,
// what only counts in /proc, and locks other than those of owner numbers and of copies
// that a router makes.
func Ignored(name, class string) bool {
	if name == "flock" {
		return class != "owners/P" && !strings.HasSuffix(class, "/"+pickup+"I.T")
	}
	return strings.HasPrefix(class, "anon_inode:") || strings.HasPrefix(class, "/dev/") || strings.HasPrefix(class, "/proc/") ||
		strings.HasPrefix(class, "/sys/")
}

func (c *Call) proc(names ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(c.Thread)}, names...)...)
}

// process finds whose thread it is.
func (c *Call) process() error {
	exe, err := os.Readlink(c.proc("exe"))
	if err != nil {
		return fmt.Errorf("read the executable: %w", err)
	}
	c.Program = strings.TrimSuffix(filepath.Base(exe), " (deleted)")
	status, err := os.ReadFile(c.proc("status"))
	if err != nil {
		return fmt.Errorf("read the thread's status: %w", err)
	}
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	c.Pid, err = strconv.Atoi(string(bytes.TrimSpace(line)))
	return err
}

// name returns a path argument, made absolute.
func (c *Call) name(n *notification, at [2]int) (string, error) {
	b := make([]byte, maxPath)
	size, err := readMemory(c.Thread, n.args[at[1]], b)
	if err != nil {
		return "", err
	}
	end := bytes.IndexByte(b[:size], 0)
	if end < 0 {
		return "", fmt.Errorf("%s: a path without an end", c.Name)
	}
	path := string(b[:end])
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	dir := c.proc("cwd")
	if at[0] >= 0 && int32(n.args[at[0]]) != unix.AT_FDCWD {
		dir = c.proc("fd", strconv.Itoa(int(int32(n.args[at[0]]))))
	}
	dir, err = os.Readlink(dir)
	if err != nil {
		return "", fmt.Errorf("%s: read the directory: %w", c.Name, err)
	}
	return filepath.Join(dir, path), nil
}

// content reads how much is to be written, and its beginning.
func (c *Call) content(n *notification, s shape) error {
	parts, err := c.parts(n, s)
	if err != nil {
		return err
	}
	for _, p := range parts {
		c.Size += int(p.size)
		b := make([]byte, min(maxHead-len(c.Data), int(p.size)))
		if _, err := readMemory(c.Thread, p.address, b); err != nil {
			return err
		}
		c.Data = append(c.Data, b...)
	}
	return nil
}

// tail reads the last bytes of what is to be written.
func (c *Call) tail(n *notification, s shape) ([]byte, error) {
	parts, err := c.parts(n, s)
	if err != nil {
		return nil, err
	}
	var tail []byte
	for k := len(parts) - 1; k >= 0 && len(tail) < maxTail; k-- {
		p := parts[k]
		b := make([]byte, min(uint64(maxTail-len(tail)), p.size))
		if _, err := readMemory(c.Thread, p.address+p.size-uint64(len(b)), b); err != nil {
			return nil, err
		}
		tail = append(b, tail...)
	}
	return tail, nil
}

// part is one stretch of a caller's memory.
type part struct{ address, size uint64 }

func (c *Call) parts(n *notification, s shape) ([]part, error) {
	address, count := n.args[s.at], n.args[s.at+1]
	switch s.bytes {
	case nothing:
		return nil, nil
	case buffer:
		return []part{{address, count}}, nil
	case message:
		// struct msghdr: name, namelen, iov, iovlen, each eight bytes with its padding.
		b := make([]byte, 32)
		if _, err := readMemory(c.Thread, address, b); err != nil {
			return nil, err
		}
		address, count = binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	}
	b := make([]byte, 16*min(count, maxParts))
	if _, err := readMemory(c.Thread, address, b); err != nil {
		return nil, err
	}
	var list []part
	for ; len(b) > 0; b = b[16:] {
		list = append(list, part{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return list, nil
}

// readMemory reads a thread's memory up to len(b) bytes, fewer where its memory ends.
func readMemory(thread int, address uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	f, err := os.Open("/proc/" + strconv.Itoa(thread) + "/mem")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	done := 0
	for done < len(b) {
		m, err := f.ReadAt(b[done:], int64(address)+int64(done))
		done += m
		if err != nil && done > 0 {
			return done, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read memory of thread %d: %w", thread, err)
		}
	}
	return done, nil
}
