// Package logging makes the slog.Logger of a program: tint on a terminal, plain
// key=value text or JSON elsewhere. Logs go to standard error of every process;
// transport agents inherit the scheduler's. It owns nothing on disk.
//
// Lines that come close together are written at once, those of level warn and above
// without delay; a program calls Flush before it ends. What survives a crash: a kill takes
// the lines of the moment before it, fractions of a millisecond, below warn. The log is
// not what mail is found by: that are the files, and the ledger.
//
// Diagnostics: New errs on an unknown format or level and names those that are
// known. Errors of writing the log are dropped: they cannot be reported.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"
)

// New makes a logger that writes to w. format is "auto" (tint if w is a terminal,
// text else), "text", "json", "tint" or "postfix"; level is "debug", "info", "warn" or
// "error"; program becomes the key "program". Empty format and level mean "auto"
// and "info". What it writes to a file or pipe is to be flushed at the end. Where that is
// the journal's stream, each line of text or JSON begins with its priority.
func New(w io.Writer, format, level, program string) (*slog.Logger, error) {
	least, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	if format == "" || format == "auto" {
		format = "text"
		if isTerminal(w) {
			format = "tint"
		}
	}
	// What is no file is memory, and a terminal has somebody before it: each line at once.
	var b *batch
	if f, file := w.(*os.File); file && format != "tint" {
		b = newBatch(w)
		b.journal = isJournal(f)
		w = b
	}
	threshold := &slog.LevelVar{}
	threshold.Set(least)
	opts := &slog.HandlerOptions{Level: threshold}
	var out slog.Handler
	switch format {
	case "text":
		out = slog.NewTextHandler(w, opts)
	case "json":
		out = slog.NewJSONHandler(w, opts)
	case "postfix":
		out = newPostfix(w, threshold)
	case "tint":
		out = tint.NewTextHandler(w, &tint.Options{
			Level: threshold, TimeFormat: "15:04:05.000", NoColor: os.Getenv("NO_COLOR") != "",
		})
	default:
		return nil, fmt.Errorf("log format %q: it must be auto, text, json, tint or postfix", format)
	}
	return slog.New(&output{out, b, threshold}).With("program", program), nil
}

// SetLevel changes the lowest level of what a Logger that New has made, and those made of it, log.
func SetLevel(log *slog.Logger, level string) {
	if h, ok := log.Handler().(*output); ok {
		if least, err := parseLevel(level); err == nil {
			h.threshold.Set(least)
		}
	}
}

func parseLevel(level string) (slog.Level, error) {
	switch level {
	case "debug":
		return slog.LevelDebug, nil
	case "info", "":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log level %q: it must be debug, info, warn or error", level)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
