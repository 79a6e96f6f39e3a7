package logging

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// JournalVariable is the environment variable in which systemd names the stream that it
// has a service's standard error on, as DEVICE:INODE (systemd.exec(5)).
const JournalVariable = "JOURNAL_STREAM"

// isJournal reports whether a file is that stream. A process whose standard error was
// directed elsewhere has the variable all the same.
func isJournal(f *os.File) bool {
	named := os.Getenv(JournalVariable)
	if named == "" {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && named == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// priority returns what the journal wants before a line that slog has written, sd-daemon(3).
// An info line has none: the service's SyslogLevel= holds, which is info.
func priority(line []byte) string {
	// Time and level come first; neither has a blank or a quote in it.
	level := []byte(nil)
	if _, rest, json := bytes.Cut(line, []byte(`"level":"`)); json && line[0] == '{' {
		level = rest
	} else if _, rest, text := bytes.Cut(line, []byte("level=")); text {
		level = rest
	}
	switch {
	case bytes.HasPrefix(level, []byte("ERROR")):
		return "<3>"
	case bytes.HasPrefix(level, []byte("WARN")):
		return "<4>"
	case bytes.HasPrefix(level, []byte("DEBUG")):
		return "<7>"
	}
	return ""
}
