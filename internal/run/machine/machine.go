// Package machine sets what a program takes of the processors it runs on, where Go's
// defaults suit one large server rather than several small daemons beside each other:
// docs/notes/runtime.md has the reasons and the numbers. It owns nothing on disk.
//
// Diagnostics: Start gives the error of the command's Start; that the kernel does not
// take a wider timer is not told, since only speed depends on it.
package machine

import (
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Share takes half of the processors, at least one: the programs of a postoffice hand
// each message on, and a program that has one awake does not need to wake another.
// GOMAXPROCS in the environment overrides it.
func Share() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(share(runtime.GOMAXPROCS(0)))
	}
}

func share(processors int) int { return max(1, processors/2) }

// late is what every daemon can do with: whoever waits for a time waits for some ten
// milliseconds at least.
const late = time.Millisecond

// Start starts a command whose threads, and what it starts itself, may wake from a sleep
// a little late. Go's runtime has a thread that sleeps for 20 µs at a time while there
// is work; with the kernel's 50 µs of slack it wakes some ten thousand times a second.
func Start(cmd *exec.Cmd) error {
	// The child takes it over from the thread that forks, and keeps it across exec.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(late), 0, 0, 0); err == nil {
		// 0: what this thread had when it began.
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	}
	return cmd.Start()
}
