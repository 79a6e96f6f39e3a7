package main

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// byProcess is what was counted, by process; whose program that is is asked later.
type byProcess map[int]*counts

func (b byProcess) of(pid int) *counts {
	c := b[pid]
	if c == nil {
		c = &counts{calls: map[string]float64{}}
		b[pid] = c
	}
	return c
}

// systemCalls returns the events of calls and switches.
func systemCalls(b byProcess) ([]event, error) {
	exit, err := tracepoint("raw_syscalls/sys_exit")
	if err != nil {
		return nil, err
	}
	swap, err := tracepoint("sched/sched_switch")
	if err != nil {
		return nil, err
	}
	at, err := offset("sched/sched_switch", "prev_state")
	if err != nil {
		return nil, err
	}
	return []event{
		// A record's fields stand behind its length.
		{record(exit), func(pid int, body []byte) {
			c := b.of(pid)
			c.calls[callName(int(binary.NativeEndian.Uint64(body[4+8:])))]++
			if int64(binary.NativeEndian.Uint64(body[4+16:])) == -int64(unix.EAGAIN) {
				c.again++
			}
		}},
		{record(swap), func(pid int, body []byte) {
			// 0: it could have gone on. From 0x100 on: it was preempted before it waited.
			if state := binary.NativeEndian.Uint64(body[4+at:]); state == 0 || state >= 0x100 {
				b.of(pid).involuntary++
			} else {
				b.of(pid).voluntary++
			}
		}},
	}, nil
}

// record returns what has the kernel write a record for each time that a tracepoint is met.
func record(id uint64) unix.PerfEventAttr {
	return unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Sample_type: unix.PERF_SAMPLE_RAW}
}

// offset returns where a field stands in a tracepoint's record.
func offset(name, field string) (int, error) {
	b, err := os.ReadFile(filepath.Join(tracing, name, "format"))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`[ \t]` + field + `;\s*offset:(\d+);`).FindSubmatch(b)
	if m == nil {
		return 0, fmt.Errorf("tracepoint %s has no field %s", name, field)
	}
	return strconv.Atoi(string(m[1]))
}

// allocators are the functions of Go's runtime of which each allocation calls one; their
// first argument is the size. What stands before them chooses among them.
var allocators = regexp.MustCompile(`^runtime\.mallocgc(Tiny|Small.*|Large)$`)

const collector = "runtime.gcMarkTermination"

// allocations returns the events of allocations and collections in the programs of a
// directory. The kernel is given a probe for each function; remove takes them away, when
// the events are closed. (A probe that is given with the event itself is not inherited:
// the kernel then looks for its path in the child's memory, and the child's clone fails.)
func allocations(b byProcess, bin string, programs []string) (events []event, remove func(), err error) {
	if runtime.GOARCH != "amd64" {
		return nil, nil, errors.New("allocations are counted on amd64 alone")
	}
	var names []string
	takeAway := func() {
		for _, name := range names {
			if err := command("-:" + name); err != nil {
				fmt.Fprintln(os.Stderr, "costs: remove a probe:", err)
			}
		}
	}
	defer func() {
		if err != nil {
			takeAway()
		}
	}()
	for _, program := range programs {
		path, err := filepath.Abs(filepath.Join(bin, program))
		if err != nil {
			return nil, nil, err
		}
		functions, err := functionsOf(path)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		for function, at := range functions {
			name := fmt.Sprintf("costs%d/p%d", os.Getpid(), len(names))
			// AX has the first argument in Go's ABI.
			if err := command(fmt.Sprintf("p:%s %s:%#x size=%%ax:u64", name, path, at)); err != nil {
				return nil, nil, err
			}
			names = append(names, name)
			id, err := tracepoint(name)
			if err != nil {
				return nil, nil, err
			}
			size, err := offset(name, "size")
			if err != nil {
				return nil, nil, err
			}
			e := event{attr: record(id), record: func(pid int, body []byte) {
				c := b.of(pid)
				c.allocs++
				c.allocated += float64(binary.NativeEndian.Uint64(body[4+size:]))
			}}
			if function == collector {
				e.record = func(pid int, _ []byte) { b.of(pid).collections++ }
			}
			events = append(events, e)
		}
	}
	return events, takeAway, nil
}

// command registers a probe in the kernel.
func command(text string) error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(tracing), "uprobe_events"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// functionsOf returns the offsets in the file of the functions to be probed.
func functionsOf(path string) (map[string]uint64, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	at := map[string]uint64{}
	for _, s := range symbols {
		if s.Name != collector && !allocators.MatchString(s.Name) {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && p.Vaddr <= s.Value && s.Value < p.Vaddr+p.Filesz {
				at[s.Name] = s.Value - p.Vaddr + p.Off
			}
		}
	}
	if len(at) < 2 {
		return nil, errors.New("it has no symbols of Go's runtime")
	}
	return at, nil
}
