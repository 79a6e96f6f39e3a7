// Package dotlock says what is in FILE.lock, by which programs keep each other from a
// mailbox, and when such a lock counts for nothing: docs/mailboxes.md. It owns nothing; who
// makes and removes the files does so in his own way.
//
// Diagnostics: none.
package dotlock

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A lock whose writer is dead is stale at once; one of which that cannot be said after
// foreign; any after old, for nothing takes so long and pids are used again.
const (
	foreign = 5 * time.Minute
	old     = time.Hour
)

// Longest is how much of a lock file has to be read. Bytes.
const Longest = 300

// Text returns what this process writes into a lock file: its pid, and the name of this host.
func Text(host string) []byte { return []byte(strconv.Itoa(os.Getpid()) + " " + host + "\n") }

// Stale reports whether a lock file with a text, written at a time, counts for nothing on a
// host.
func Stale(text []byte, written, now time.Time, host string) bool {
	age := now.Sub(written)
	if age > old {
		return true
	}
	if f := strings.Fields(string(text)); len(f) == 2 && f[1] == host {
		if pid, err := strconv.Atoi(f[0]); err == nil && pid > 0 {
			return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
		}
	}
	// A time that is far ahead is from before the clock was set back.
	return age.Abs() > foreign
}
