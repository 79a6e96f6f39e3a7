package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/trace"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/logging"
)

// traceLines finds the lines of the log that are about messages.
type traceLines struct {
	each  func(ctx context.Context, fn func(line []byte) error) error
	where []string // what is read
	of    map[string][]logging.Line
	drop  []string // files to be removed at the end
	errs  []error
}

// openLines decides what is read: the files of --log, or the log of this postoffice.
func openLines(c *cli.Context, since time.Time) (*traceLines, error) {
	t := &traceLines{of: map[string][]logging.Line{}}
	files := c.StringSlice("log")
	if len(files) == 0 {
		found, err := findLog(c)
		if err != nil {
			if c.Bool("logs-only") {
				return nil, err
			}
			return t, nil // the rest is told without
		}
		if t.where = []string{found.file}; found.file == "" {
			t.where = []string{"the journal"}
		}
		t.each = func(ctx context.Context, fn func([]byte) error) error { return found.each(ctx, since, fn) }
		return t, nil
	}
	for i, name := range files {
		if name != "-" {
			continue
		}
		if t.drop != nil {
			return nil, traceUsage("standard input can be read once")
		}
		kept, err := keepInput(os.Stdin)
		if err != nil {
			return nil, err
		}
		files[i], t.drop = kept, []string{kept}
	}
	t.where = c.StringSlice("log")
	t.each = func(_ context.Context, fn func([]byte) error) error {
		for _, name := range files {
			if err := logread.EachOf(name, fn); err != nil {
				return err
			}
		}
		return nil
	}
	return t, nil
}

// keepInput copies standard input into a file: it is read more than once.
func keepInput(r io.Reader) (string, error) {
	f, err := os.CreateTemp("", "zmctl-trace-")
	if err != nil {
		return "", fmt.Errorf("keep standard input: %w", err)
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("keep standard input: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return f.Name(), nil
}

func (t *traceLines) close() {
	for _, name := range t.drop {
		_ = os.Remove(name) // it is ours, in the directory for such
	}
}

// places are where was looked, for a message to a person.
func (t *traceLines) places() string {
	if len(t.where) == 0 {
		return " (none was found; --log names one)"
	}
	return " (" + strings.Join(t.where, ", ") + ")"
}

// find reads the log for some messages, then again for those that they have caused: the
// lines of a report may stand before the line that names it.
func (t *traceLines) find(ctx context.Context, ids []postoffice.SpoolID) {
	if t.each == nil {
		return
	}
	wanted := make([]string, 0, len(ids))
	for _, id := range ids {
		wanted = append(wanted, id.String())
	}
	for depth := 0; len(wanted) > 0 && depth < deepestTrace; depth++ {
		for _, id := range wanted {
			t.of[id] = nil
		}
		if err := t.read(ctx, wanted); err != nil {
			t.errs = append(t.errs, err)
			return
		}
		wanted = t.caused(wanted)
	}
}

// read keeps the lines that name one of these messages.
func (t *traceLines) read(ctx context.Context, wanted []string) error {
	needles := make([][]byte, len(wanted))
	for i, id := range wanted {
		needles[i] = []byte(id)
	}
	return t.each(ctx, func(line []byte) error {
		for i, n := range needles {
			if !bytes.Contains(line, n) {
				continue
			}
			if l, ok := logging.ParseLine(line); ok {
				t.of[wanted[i]] = append(t.of[wanted[i]], l)
			}
		}
		return ctx.Err()
	})
}

// caused are the messages that some have caused and that were not looked for yet.
func (t *traceLines) caused(of []string) (list []string) {
	for _, id := range of {
		for i := range t.of[id] {
			s, ok := trace.FromLog(&t.of[id][i], id)
			if !ok || s.Other == "" || s.Event == "caused" || len(list) >= mostCaused {
				continue
			}
			if _, known := t.of[s.Other]; !known {
				t.of[s.Other] = nil
				list = append(list, s.Other)
			}
		}
	}
	return list
}

// steps are what the log says of a message.
func (t *traceLines) steps(id postoffice.SpoolID) (list []trace.Step) {
	lines := t.of[id.String()]
	for i := range lines {
		l := &lines[i]
		if l.Time.Year() == 0 { // tint tells the time of day
			l.Time = onDay(l.Time, id.Time().Local())
		}
		if s, ok := trace.FromLog(l, id.String()); ok {
			list = append(list, s)
		}
	}
	return list
}

// onDay is a time of day at the first day on which it is not before the message.
func onDay(clock, accepted time.Time) time.Time {
	y, m, d := accepted.Date()
	at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), accepted.Location())
	if at.Before(accepted.Add(-time.Second)) {
		at = at.AddDate(0, 0, 1)
	}
	return at
}
