// Package logread finds its way through the log that our programs write (docs/log.md):
// which lines are wanted, in a file, in those that were rotated away from it, and as the
// file grows. It only reads, and nothing of it survives a crash.
//
// Diagnostics: an error of a file has its name; one that is rotated away meanwhile is
// none, nor are lines of others in it: they are passed on as they are.
package logread

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"zmailer/internal/run/logging"
)

// JSON writes a line as the JSON log has it, but for values that are no text there; a
// line of a JSON log stays as it is.
func JSON(raw string, l *logging.Line) ([]byte, error) {
	if at := strings.Index(raw, `{"time":"`); at >= 0 {
		return []byte(raw[at:]), nil
	}
	var b strings.Builder
	all := append([]logging.Field{
		{Key: slog.TimeKey, Value: l.Time.Format(time.RFC3339Nano)}, {Key: slog.LevelKey, Value: l.Level.String()},
		{Key: slog.MessageKey, Value: l.Event}, {Key: "program", Value: l.Program},
	}, l.Fields...)
	for i, f := range all {
		key, err := json.Marshal(f.Key)
		if err != nil {
			return nil, fmt.Errorf("write a line of the log: %w", err)
		}
		value, err := json.Marshal(f.Value)
		if err != nil {
			return nil, fmt.Errorf("write a line of the log: %w", err)
		}
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0] + string(key) + ":" + string(value))
	}
	return []byte(b.String() + "}"), nil
}
