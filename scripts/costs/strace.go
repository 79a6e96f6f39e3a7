package main

import (
	"bufio"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// stracer counts with strace: slow, but it needs no right.
type stracer struct {
	file     string
	from, to int64 // what of the file counts
}

// command returns the command that runs a command. The traced one stays our child.
func (s *stracer) command(args []string) []string {
	return append([]string{"strace", "-D", "-f", "-qq", "-o", s.file, "--"}, args...)
}

// count remembers where the load begins and ends in the file.
func (s *stracer) count(on bool) error {
	info, err := os.Stat(s.file)
	if err != nil {
		return err
	}
	if on {
		s.from = info.Size()
	} else {
		s.to = info.Size()
	}
	return nil
}

// traced is a line of a call that begins: thread, name.
var traced = regexp.MustCompile(`^(\d+) +([a-z_0-9]+)\(`)

// end reads the file. It has threads; whose they are is known from /proc.
func (s *stracer) end(b byProcess) error {
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var at int64
	for lines.Scan() {
		line := lines.Text()
		at += int64(len(line)) + 1
		m := traced.FindStringSubmatch(line)
		if m == nil || at <= s.from || at > s.to {
			continue
		}
		thread, _ := strconv.Atoi(m[1])
		c := b.of(thread)
		c.calls[m[2]]++
		if strings.Contains(line, "= -1 EAGAIN") {
			c.again++
		}
	}
	return lines.Err()
}
