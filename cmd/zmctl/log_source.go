package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

// logOf finds the log of a postoffice.
func logOf(ctx context.Context, settings *config.Config) (*logSource, error) {
	path, err := service.LogFile(ctx, settings)
	switch {
	case errors.Is(err, service.ErrNoLog):
		return nil, fmt.Errorf("%w: LOGFILE is not set, and %s does not exist; the log went to the standard error of zmctl run, or name it by --file", err, path)
	case err != nil:
		return nil, err
	case path == "":
		return &logSource{journal: []string{"--no-pager", "--quiet", "--output=cat", "--unit=zmailer-*"}}, nil
	}
	return &logSource{file: path}, nil
}

// each gives the lines that there are, with those of rotated files that were written to
// since.
func (l *logSource) each(ctx context.Context, since time.Time, fn func(line []byte) error) error {
	switch {
	case l.in != nil:
		return logread.Each(l.in, fn)
	case l.file == "":
		return l.journalctl(ctx, since, nil, fn)
	}
	old, err := logread.Rotated(l.file, since)
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := logread.EachOf(name, fn); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return logread.EachOf(l.file, fn)
}

// follow gives the lines of now and of later until ctx is done; atEnd is called when
// there are no more for the moment.
func (l *logSource) follow(ctx context.Context, since time.Time, fn func(line []byte) error, atEnd func() error) error {
	switch {
	case l.in != nil:
		return errors.Join(l.lineByLine(l.in, fn, atEnd), atEnd())
	case l.file != "":
		return logread.Follow(ctx, l.file, fn, atEnd)
	}
	return l.journalctl(ctx, since, atEnd, fn)
}

// lineByLine calls atEnd when the next line has not come yet.
func (l *logSource) lineByLine(r io.Reader, fn func(line []byte) error, atEnd func() error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	return logread.Each(in, func(line []byte) error {
		if err := fn(line); err != nil || in.Buffered() > 0 {
			return err
		}
		return atEnd()
	})
}

// journalctl has the journal's program print our lines as we have written them.
func (l *logSource) journalctl(ctx context.Context, since time.Time, atEnd func() error, fn func(line []byte) error) error {
	args := l.journal
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
		err = logread.Each(out, fn)
	}
	if err != nil {
		_ = cmd.Process.Kill() // nobody reads any more
	}
	werr := cmd.Wait()
	if err == nil && werr != nil && ctx.Err() == nil {
		err = fmt.Errorf("read the journal: journalctl: %w", werr)
	}
	return err
}

// reader is standard input.
func reader(c *cli.Context) io.Reader {
	if c.App.Reader != nil {
		return c.App.Reader
	}
	return os.Stdin
}

// quoteJSON is a text as JSON has it.
func quoteJSON(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`) // no text fails
	}
	return b
}
