package main

import (
	"encoding/binary"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// Both ways of counting see the same of real programs, in what does not depend on time.
func TestTracepointsAndStraceCountTheSame(t *testing.T) {
	if err := traceable(); err != nil {
		t.Skip("the kernel's tracepoints: ", err)
	}
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	bin := filepath.Join(t.TempDir(), "bin")
	assert.Must(t, suite.Build(bin))
	t.Parallel()
	o := options{messages: 60, connections: 2, size: 4096, runs: 1, bin: bin}
	var got [2]map[string]float64
	for i, strace := range []bool{false, true} {
		o.strace = strace
		s := set{bin: bin}
		assert.Must(t, s.measure(o, false))
		got[i] = map[string]float64{}
		for _, program := range programs {
			c := s.sum.of(program)
			for _, name := range []string{"flock", "fsync", "renameat2", "pwrite64", "unlinkat"} {
				got[i][program+" "+name] = c.calls[name]
			}
			if c.memory < 1<<20 {
				t.Errorf("%s has %.0f bytes of memory", program, c.memory)
			}
		}
	}
	// Messages come in groups of other sizes in each run: a few calls more or less.
	near := func(a, b float64) bool { return math.Abs(a-b) <= 0.5 }
	for call, n := range got[0] {
		if m := got[1][call]; !near(n, m) {
			t.Errorf("%s: got %.2f for a message by tracepoints, %.2f by strace", call, n, m)
		}
	}
	// docs/notes/agent-calls.md: lock, unlock and the tags of one recipient.
	for _, call := range []string{"ta-smtp flock", "ta-smtp pwrite64", "scheduler unlinkat"} {
		if !near(got[0][call], 2) {
			t.Errorf("%s: got %.2f for a message, want 2", call, got[0][call])
		}
	}
}

// Allocations of real programs are seen, and no probe stays.
func TestAllocationsAreCounted(t *testing.T) {
	if err := traceable(); err != nil {
		t.Skip("the kernel's tracepoints: ", err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	assert.Must(t, suite.Build(bin))
	t.Parallel()
	o := options{messages: 60, connections: 2, size: 4096, runs: 1, bin: bin}
	s := set{bin: bin}
	if err := s.measure(o, true); err != nil {
		if strings.Contains(err.Error(), "uprobe_events") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	for _, program := range programs[1:] {
		if c := s.sum.of(program); c.allocs < 10 || c.allocated < 8*c.allocs || len(c.calls) > 0 {
			t.Errorf("%s: got %.1f allocations of %.0f bytes and calls %v for each message", program, c.allocs, c.allocated, c.calls)
		}
	}
	left, err := os.ReadFile(filepath.Join(filepath.Dir(tracing), "uprobe_events"))
	if err != nil || strings.Contains(string(left), bin) {
		t.Errorf("probes are left: %s, %v", left, err)
	}
}

// A record that goes on at the ring's beginning is whole, and lost ones are counted.
func TestRecordsAreReadAroundTheRing(t *testing.T) {
	mem := assert.Get(unix.Mmap(-1, 0, ringSize+os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	defer unix.Munmap(mem)
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(&mem[0]))
	data := mem[os.Getpagesize():]
	at := uint64(ringSize - 40) // the first one ends at the ring's end, the second goes over it
	page.Data_tail = at
	put := func(kind uint32, body ...uint64) {
		rec := binary.NativeEndian.AppendUint32(nil, kind)
		rec = append(rec, 0, 0, 0, 0)
		for _, word := range body {
			rec = binary.NativeEndian.AppendUint64(rec, word)
		}
		binary.NativeEndian.PutUint16(rec[6:], uint16(len(rec)))
		for _, c := range rec {
			data[at&(ringSize-1)] = c
			at++
		}
	}
	const mine, others = 7, 8
	put(unix.PERF_RECORD_SAMPLE, mine, 4711, 1)
	put(unix.PERF_RECORD_SAMPLE, mine, 4712, 2, 3)
	put(unix.PERF_RECORD_SAMPLE, others, 4713, 4)
	put(unix.PERF_RECORD_LOST, mine, 5)
	page.Data_head = at
	var got []int
	tr := &tracer{kinds: map[uint64]func(int, []byte){mine: func(pid int, body []byte) {
		got = append(got, pid, len(body), int(binary.NativeEndian.Uint64(body)))
	}}}
	tr.empty(&ring{mem: mem})
	assert.Same(t, got, []int{4711, 8, 1, 4712, 16, 2})
	if tr.lost != 5 || page.Data_tail != at {
		t.Errorf("got %d lost and the ring read to %d, want 5 and %d", tr.lost, page.Data_tail, at)
	}
}

// Of strace's file what lies between the beginning and the end of the load counts.
func TestStraceIsReadBetweenTheMarks(t *testing.T) {
	s := &stracer{file: filepath.Join(t.TempDir(), "trace")}
	write := func(text string) {
		t.Helper()
		f := assert.Get(os.OpenFile(s.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
		assert.Get(io.WriteString(f, text))(t)
		assert.Must(t, f.Close())
	}
	mark := func(on bool) {
		t.Helper()
		assert.Must(t, s.count(on))
	}
	write("12    fsync(3) = 0\n")
	mark(true)
	write("12    read(3, 0x1, 8) = -1 EAGAIN (Resource temporarily unavailable)\n" +
		"13    futex(0x1, FUTEX_WAIT <unfinished ...>\n12    read(3, \"\", 8) = 0\n13    <... futex resumed>) = 0\n13    +++ exited with 0 +++\n")
	mark(false)
	write("12    fsync(3) = 0\n")
	b := byProcess{}
	assert.Must(t, s.end(b))
	if got := b.of(12); got.calls["read"] != 2 || got.calls["fsync"] != 0 || got.again != 1 {
		t.Errorf("got %v of thread 12, want two reads, one of them in vain", got)
	}
	if got := b.of(13); got.total() != 1 {
		t.Errorf("got %v of thread 13, want one call", got)
	}
}

// What is counted before the load is taken away, and the rest divided by the messages.
func TestCountsAreOfOneMessage(t *testing.T) {
	s := set{}
	o := options{messages: 10, runs: 1}
	before := all{"router": {user: 100, memory: 5}}
	after := all{"router": {user: 350, memory: 7}, "ta-smtp": {user: 40, memory: 3}}
	counted := byProcess{1: {calls: map[string]float64{"read": 30}}, 2: {calls: map[string]float64{"read": 5}}, 3: {calls: map[string]float64{"read": 1000}}}
	s.take(o, false, counted, map[int]string{1: "router", 2: "router"}, before, after, 2e9)
	r := s.sum.of("router")
	if r.user != 25 || r.memory != 7 || r.calls["read"] != 3.5 || s.sum.of("ta-smtp").user != 4 || s.rate != 5 {
		t.Errorf("got %+v, %+v and %.0f/s", r, s.sum.of("ta-smtp"), s.rate)
	}
	if names := slices.Sorted(maps.Keys(s.sum)); len(names) != 2 {
		t.Errorf("got programs %q, want the two whose names are known", names)
	}
}

// The tables have a column for each set, calls by their number, and nothing that is 0.
func TestTablesCompare(t *testing.T) {
	sets := []set{
		{name: "before", rate: 100, sum: all{"router": {calls: map[string]float64{"read": 3, "openat": 4, "brk": 0.01}, user: 20, memory: 3 << 20}}},
		{name: "after", rate: 200, sum: all{"router": {calls: map[string]float64{"read": 1}, user: 10}}},
	}
	var b strings.Builder
	printProgram(&b, sets, "router")
	want := `
| router | before | after |
|---|---:|---:|
| **system calls** | **7.0** | **1.0** |
| openat | 4.00 | 0.00 |
| read | 3.00 | 1.00 |
| others | 0.01 | 0.00 |
| processor, user, µs | 20 | 10 |
| largest process, MB | 3.0 | 0.0 |
`
	assert.Same(t, b.String(), want)
	b.Reset()
	printAll(&b, sets)
	if got := b.String(); !strings.HasPrefix(got, "Delivered: before 100/s, after 200/s") || !strings.Contains(got, "| all processes | before | after |\n|---|---:|---:|\n| **system calls** | **7.0** | **1.0** |") {
		t.Errorf("got %s", got)
	}
}
