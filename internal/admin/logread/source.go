package logread

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

// Source is where the log of a postoffice is; the zero value is the journal of systemd.
type Source struct {
	File string
	In   io.Reader // read instead, once
}

// Locate finds the log of a postoffice: that of the running daemons, LOGFILE, or the file in
// the postoffice.
func Locate(ctx context.Context, settings *config.Config) (*Source, error) {
	path, err := service.LogFile(ctx, settings)
	if errors.Is(err, service.ErrNoLog) {
		return nil, fmt.Errorf("%w: LOGFILE is not set, and %s does not exist; the log went to the standard error of zmctl run, or name it by --file", err, path)
	}
	if err != nil {
		return nil, err
	}
	return &Source{File: path}, nil
}

// Each gives the lines that there are, with those of rotated files that were written to
// since.
func (l *Source) Each(ctx context.Context, since time.Time, fn func(line []byte) error) error {
	switch {
	case l.In != nil:
		return Each(l.In, fn)
	case l.File == "":
		return l.journalctl(ctx, since, nil, fn)
	}
	old, err := Rotated(l.File, since)
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := EachOf(name, fn); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return EachOf(l.File, fn)
}

// Follow gives the lines of now and of later until ctx is done; atEnd is called when
// there are no more for the moment.
func (l *Source) Follow(ctx context.Context, since time.Time, fn func(line []byte) error, atEnd func() error) error {
	switch {
	case l.In != nil:
		return errors.Join(l.lineByLine(l.In, fn, atEnd), atEnd())
	case l.File != "":
		return Follow(ctx, l.File, fn, atEnd)
	}
	return l.journalctl(ctx, since, atEnd, fn)
}

// lineByLine calls atEnd when the next line has not come yet.
func (l *Source) lineByLine(r io.Reader, fn func(line []byte) error, atEnd func() error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	return Each(in, func(line []byte) error {
		if err := fn(line); err != nil || in.Buffered() > 0 {
			return err
		}
		return atEnd()
	})
}

// journalctl has the journal's program print our lines as we have written them.
func (l *Source) journalctl(ctx context.Context, since time.Time, atEnd func() error, fn func(line []byte) error) error {
	args := []string{"--no-pager", "--quiet", "--output=cat", "--unit=zmailer-*"}
	switch {
	case !since.IsZero() && time.Since(since) > time.Minute || !since.IsZero() && atEnd != nil:
		args = append(args, fmt.Sprintf("--since=@%d", since.Unix()))
	case atEnd != nil:
		args = append(args, "--lines=200")
	}
	if atEnd != nil {
		args = append(args, "--follow")
	}
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	if atEnd != nil {
		err = l.lineByLine(out, fn, atEnd)
	} else {
		err = Each(out, fn)
	}
	if err != nil {
		_ = cmd.Process.Kill() // its output is not read any more
	}
	werr := cmd.Wait()
	if err == nil && werr != nil && ctx.Err() == nil {
		err = fmt.Errorf("read the journal: journalctl: %w", werr)
	}
	return err
}
