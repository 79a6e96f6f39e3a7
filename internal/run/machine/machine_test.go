package machine

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

func TestHalfOfTheProcessorsIsTaken(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 32: 16} {
		assert.Equal(t, share(processors), want, "share of %d", processors)
	}
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", strconv.Itoa(before))
	Share()
	assert.Equal(t, runtime.GOMAXPROCS(0), before, "environment")
}

// A child of the child has it too: the scheduler's agents.
func TestWhatWasStartedMayWakeLate(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("reading another process's slack needs root")
	}
	in, out, err := os.Pipe()
	assert.Must(t, err)
	defer in.Close()
	// It prints the slack of a process that it starts.
	cmd := exec.Command("sh", "-c", "cat /proc/self/timerslack_ns; true")
	cmd.Stdout = out
	assert.Must(t, Start(cmd))
	out.Close()
	text := make([]byte, 64)
	n, err := in.Read(text)
	if werr := cmd.Wait(); err != nil || werr != nil {
		t.Fatal(err, werr)
	}
	assert.Equal(t, strings.TrimSpace(string(text[:n])), strconv.FormatInt(int64(time.Millisecond), 10), "ns")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ours, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || ours == int(late) {
		t.Errorf("the slack of the thread that started it: got %d, %v", ours, err)
	}
}
