package router

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// gcLine is what the runtime says of a collection: live before, at and after it, in MB.
var gcLine = regexp.MustCompile(`gc \d+ @.* (\d+)->(\d+)->(\d+) MB,`)

// needs routes one message to a list in a process of its own and gives its largest
// resident size and the largest heap that a collection has seen, in MB, and the size of
// the specification.
func needs(t *testing.T, path string, members int) (resident, heap int, spec int64) {
	t.Helper()
	o := lists(t, map[string]string{"large": people(members, "l")})
	p := &process{t: t, log: &logtest.Buffer{}}
	p.cmd = exec.Command(path, "--config", o.conf+"/zmailer.conf")
	p.cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	o.begin(t, p, io.Discard)
	a := o.submit(plain("large@example.org"))
	p.log.Await(t, "msg=routed", "id="+a.ID.String(), fmt.Sprintf("rcpts=%d ", members))
	status := assert.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))(t)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kb := assert.Get(strconv.Atoi(strings.Fields(rest)[0]))(t)
	assert.Equal(t, p.stop(syscall.SIGTERM), 0, "exit code")
	for _, m := range gcLine.FindAllStringSubmatch(p.log.String(), -1) {
		if mb, err := strconv.Atoi(m[2]); err == nil {
			heap = max(heap, mb)
		}
	}
	info := assert.Get(os.Stat(o.dir + "/transport/" + o.names("transport")[0]))(t)
	if got := o.names("queue"); len(got) != 1 {
		t.Errorf("queue/ has %q, want one body", got)
	}
	return kb >> 10, heap, info.Size()
}

// A hundred times the members cost the router what it keeps of each to know it again, and
// nothing of what it writes: the specification is larger than what it may grow by.
func TestRouterTakesALargeListInFlatMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	path := program(t)
	small, smallHeap, smallSpec := needs(t, path, 1000)
	large, largeHeap, largeSpec := needs(t, path, 100_000)
	t.Logf("1,000 members: %d MB resident, heap %d MB, specification %d kB; 100,000: %d MB, %d MB, %d kB",
		small, smallHeap, smallSpec>>10, large, largeHeap, largeSpec>>10)
	// Its 100,000 recipients as values, or as bytes and read again, are 20 MB and more.
	if large > small+24 {
		t.Errorf("%d MB resident for 100,000 members, %d MB for 1,000", large, small)
	}
}
