package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	tracing = "/sys/kernel/tracing/events"
	// ringSize is a power of two. A ring is read when it is half full: at that rate about
	// a thousand messages later.
	ringSize = 32 << 20
)

// traceable returns why the kernel's tracepoints cannot be used.
func traceable() error {
	if _, err := tracepoint("raw_syscalls/sys_exit"); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	return nil
}

// tracepoint returns the number of one.
func tracepoint(name string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(tracing, name, "id"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// event is what a process and all that come from it are to write a record of.
type event struct {
	attr unix.PerfEventAttr
	// record takes a record: the process it is of, and what follows that.
	record func(pid int, body []byte)
}

// tracer has the kernel write records of events into rings, one for each processor.
type tracer struct {
	fds   []int // of all events
	rings []*ring
	kinds map[uint64]func(pid int, body []byte) // by the kernel's number of the event
	lost  uint64
	stop  int // an eventfd that ends reading

	reading bool
	ended   chan struct{}
}

type ring struct {
	fd   int
	mem  []byte
	copy []byte
}

// trace begins with a process; nothing is written until count is called.
func trace(pid int, events []event) (t *tracer, err error) {
	t = &tracer{kinds: map[uint64]func(int, []byte){}, ended: make(chan struct{})}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return t, err
	}
	for cpu := range runtime.NumCPU() {
		for i := range events {
			e := &events[i]
			e.attr.Size = uint32(unsafe.Sizeof(e.attr))
			e.attr.Sample = 1
			e.attr.Sample_type |= unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_TID
			e.attr.Bits = unix.PerfBitDisabled | unix.PerfBitInherit | unix.PerfBitWatermark
			e.attr.Wakeup = ringSize / 2
			fd, err := unix.PerfEventOpen(&e.attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				return t, fmt.Errorf("perf_event_open: %w", err)
			}
			t.fds = append(t.fds, fd)
			if i == 0 {
				mem, err := unix.Mmap(fd, 0, ringSize+os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				if err != nil {
					return t, fmt.Errorf("map records: %w", err)
				}
				t.rings = append(t.rings, &ring{fd: fd, mem: mem})
			} else if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, t.rings[cpu].fd); err != nil {
				return t, fmt.Errorf("join records: %w", err)
			}
			var id uint64
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PERF_EVENT_IOC_ID, uintptr(unsafe.Pointer(&id))); errno != 0 {
				return t, fmt.Errorf("number of the event: %w", errno)
			}
			t.kinds[id] = e.record
		}
	}
	t.reading = true
	go t.read()
	return t, nil
}

// count has records written from now on, or no more.
func (t *tracer) count(on bool) error {
	request := uint(unix.PERF_EVENT_IOC_DISABLE)
	if on {
		request = unix.PERF_EVENT_IOC_ENABLE
	}
	for _, fd := range t.fds {
		if err := unix.IoctlSetInt(fd, request, 0); err != nil {
			return fmt.Errorf("count events: %w", err)
		}
	}
	return nil
}

// end stops, reads what is left and reports whether the kernel had to leave records out.
func (t *tracer) end() error {
	if err := t.count(false); err != nil {
		return err
	}
	t.wait()
	if t.lost > 0 {
		return fmt.Errorf("%d records were lost", t.lost)
	}
	return nil
}

// wait has the rings read for the last time. It may be called again.
func (t *tracer) wait() {
	if t.reading {
		_, _ = unix.Write(t.stop, binary.NativeEndian.AppendUint64(nil, 1)) // an eventfd takes it
		<-t.ended
	}
}

func (t *tracer) close() {
	t.wait()
	for _, r := range t.rings {
		_ = unix.Munmap(r.mem)
	}
	for _, fd := range append(t.fds, t.stop) {
		_ = unix.Close(fd)
	}
}

// read empties the rings when one is half full, and at the end.
func (t *tracer) read() {
	defer close(t.ended)
	polled := []unix.PollFd{{Fd: int32(t.stop), Events: unix.POLLIN}}
	for _, r := range t.rings {
		polled = append(polled, unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN})
	}
	for polled[0].Revents == 0 {
		if _, err := unix.Poll(polled, -1); err != nil && err != unix.EINTR {
			return
		}
		for _, r := range t.rings {
			t.empty(r)
		}
	}
}

// empty takes what is in a ring.
func (t *tracer) empty(r *ring) {
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.mem[0]))
	data := r.mem[os.Getpagesize():]
	head, tail := atomic.LoadUint64(&page.Data_head), page.Data_tail
	for tail < head {
		at := tail & (ringSize - 1)
		size := uint64(binary.NativeEndian.Uint16(data[at+6:])) // records begin at multiples of 8
		rec := data[at:min(at+size, ringSize)]
		if uint64(len(rec)) < size { // it goes on at the ring's beginning
			r.copy = append(append(r.copy[:0], rec...), data[:size-uint64(len(rec))]...)
			rec = r.copy
		}
		switch binary.NativeEndian.Uint32(rec) {
		case unix.PERF_RECORD_LOST:
			t.lost += binary.NativeEndian.Uint64(rec[16:])
		case unix.PERF_RECORD_SAMPLE:
			id, pid := binary.NativeEndian.Uint64(rec[8:]), binary.NativeEndian.Uint32(rec[16:])
			if record := t.kinds[id]; record != nil {
				record(int(pid), rec[24:])
			}
		}
		tail += size
	}
	atomic.StoreUint64(&page.Data_tail, tail)
}
