package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// counts are what one program's processes have done.
type counts struct {
	calls       map[string]float64 // system calls by name
	again       float64            // of these, answered EAGAIN
	voluntary   float64            // context switches: it waited
	involuntary float64            // it was made to wait
	user, sys   float64            // microseconds
	written     float64            // bytes given to write calls
	disk        float64            // bytes made dirty for a disk
	allocs      float64
	allocated   float64 // bytes
	collections float64
	memory      float64 // most bytes that one process had, never divided
}

// all is every program's counts.
type all map[string]*counts

func (a all) of(program string) *counts {
	c := a[program]
	if c == nil {
		c = &counts{calls: map[string]float64{}}
		a[program] = c
	}
	return c
}

// fields returns the sums, for what is done to each of them.
func (c *counts) fields() []*float64 {
	return []*float64{&c.again, &c.voluntary, &c.involuntary, &c.user, &c.sys, &c.written, &c.disk, &c.allocs, &c.allocated, &c.collections}
}

// add adds d times factor.
func (c *counts) add(d *counts, factor float64) {
	for name, n := range d.calls {
		c.calls[name] += n * factor
	}
	from := d.fields()
	for i, f := range c.fields() {
		*f += *from[i] * factor
	}
	c.memory = max(c.memory, d.memory)
}

// total returns the system calls of all names.
func (c *counts) total() (n float64) {
	for _, of := range c.calls {
		n += of
	}
	return n
}

// tick is what /proc counts processor time in.
const tick = 1e6 / 100

// proc reads what /proc has about a process and its descendants, by program. names is
// filled with the program of each process and thread.
func proc(root int, names map[int]string) (all, error) {
	a := all{}
	for _, pid := range descendants(root) {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		words := strings.Fields(rest)
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || len(words) < 15 {
			continue
		}
		names[pid] = string(bytes.TrimSpace(comm))
		threads, _ := os.ReadDir(filepath.Join(dir, "task"))
		for _, thread := range threads {
			names[int(number(thread.Name()))] = names[pid]
		}
		c := a.of(names[pid])
		c.user += tick * number(words[11])
		c.sys += tick * number(words[12])
		c.written += value(dir, "io", "wchar:")
		c.disk += value(dir, "io", "write_bytes:")
		c.memory = max(c.memory, value(dir, "status", "VmHWM:")*1024)
	}
	if len(a) == 0 {
		return nil, fmt.Errorf("process %d has ended", root)
	}
	return a, nil
}

func number(s string) float64 {
	n, _ := strconv.ParseFloat(s, 64)
	return n
}

// value returns the number behind a key in a file of /proc.
func value(dir, file, key string) float64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == key {
			return number(words[1])
		}
	}
	return 0
}

// descendants returns a process, its children and theirs.
func descendants(root int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	children := map[int][]int{}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var parent int
		var state string
		_, rest, _ := strings.Cut(string(b), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}
