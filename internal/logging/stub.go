// Package logging makes the slog.Logger of a program: tint on a terminal, plain
// key=value text or JSON elsewhere.
package logging

import (
	"io"
	"log/slog"
)

// New makes a logger that writes to w. format is "auto" (tint if w is a terminal,
// text else), "text", "json" or "tint"; program becomes the key "program".
func New(w io.Writer, format, level, program string) (*slog.Logger, error) { panic("stub") }
