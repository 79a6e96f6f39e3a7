// Package logging makes the slog.Logger of a program: tint on a terminal, plain
// key=value text or JSON elsewhere. Logs go to standard error of every process;
// transport agents inherit the scheduler's. It owns nothing on disk.
//
// Diagnostics: New errs on an unknown format or level and names those that are
// known. Errors of writing the log are dropped: there is nowhere to tell them.
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
// text else), "text", "json" or "tint"; level is "debug", "info", "warn" or
// "error"; program becomes the key "program". Empty format and level mean "auto"
// and "info".
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
	opts := &slog.HandlerOptions{Level: least}
	var out slog.Handler
	switch format {
	case "text":
		out = slog.NewTextHandler(w, opts)
	case "json":
		out = slog.NewJSONHandler(w, opts)
	case "tint":
		out = tint.NewTextHandler(w, &tint.Options{
			Level: least, TimeFormat: "15:04:05.000", NoColor: os.Getenv("NO_COLOR") != "",
		})
	default:
		return nil, fmt.Errorf("log format %q: it must be auto, text, json or tint", format)
	}
	return slog.New(out).With("program", program), nil
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
