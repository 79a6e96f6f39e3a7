package taproto

import (
	"bytes"
	"fmt"
)

const (
	idle   = "#idle"
	hungry = "#hungry"
	resync = "#resync "
	slots  = "#slots "
)

// AppendCommand appends c's line, newline included. A line end in a name or host,
// which no spool file and no parsed specification has, becomes a blank.
func AppendCommand(b []byte, c Command) []byte {
	switch c.Kind {
	case CommandJob:
		b = appendMapped(b, c.Job.Name, "\t\n", ' ')
		if c.Job.Host != "" {
			b = append(b, '\t')
			b = appendMapped(b, c.Job.Host, "\n", ' ')
		}
	case CommandIdle:
		b = append(b, idle...)
	}
	return append(b, '\n')
}

// ParseCommand reads a line without its newline.
func ParseCommand(line []byte) (Command, error) {
	if len(line) == 0 {
		return Command{Kind: CommandEnd}, nil
	}
	if string(line) == idle {
		return Command{Kind: CommandIdle}, nil
	}
	name, host, _ := bytes.Cut(line, []byte{'\t'})
	if len(name) == 0 || name[0] == '#' || bytes.IndexByte(line, 0) >= 0 {
		return Command{}, fmt.Errorf("%w: %.60q", ErrCommand, line)
	}
	return Command{Kind: CommandJob, Job: Job{Name: string(name), Host: string(host)}}, nil
}

// appendMapped appends s with to for each byte of a small set.
func appendMapped(b []byte, s, set string, to byte) []byte {
	start := len(b)
	b = append(b, s...)
	for i := start; i < len(b); i++ {
		for j := 0; j < len(set); j++ {
			if b[i] == set[j] {
				b[i] = to
				break
			}
		}
	}
	return b
}
