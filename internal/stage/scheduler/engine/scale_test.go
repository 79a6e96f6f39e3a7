package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// plant makes many messages as a router hands them over, without its fsyncs.
func (r *rig) plant(n int, address, host func(i int) string) {
	r.T.Helper()
	for i := range n {
		if err := plantOne(r.dir, address(i), host(i)); err != nil {
			r.T.Fatal(err)
		}
	}
}

func plantOne(dir, address, host string) error {
	f, err := os.CreateTemp(filepath.Join(dir, "router"), "..plant")
	if err != nil {
		return err
	}
	defer f.Close()
	const envelope = "channel error\nto x\nenv-end\nFrom: a@b\n\n"
	if _, err := f.WriteString(envelope + "Body.\n"); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	name := strconv.FormatUint(st.Ino, 10)
	if err := os.Rename(f.Name(), filepath.Join(dir, "queue", name)); err != nil {
		return err
	}
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: int64(len(envelope))})
	w.Group(workspec.Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1"},
		[]workspec.Recipient{{Channel: "smtp", Host: host, Address: address, Privilege: "1"}}, []byte(storetest.Header))
	if err := w.Close(); err != nil {
		return err
	}
	work := filepath.Join(dir, "router", "..plant."+name)
	if err := os.WriteFile(work, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(work, filepath.Join(dir, "transport", name))
}

// Z18, M34: 20,000 messages wait for a dead host. What it costs is one attempt for each
// retry of the host, whatever waits for it; and the other hosts' mail goes.
func TestDeadHostIsTriedOnceForEachRetry(t *testing.T) {
	t.Parallel()
	const messages, probes = 20_000, 10
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=20"), 0, quick)
	r.events.Handler = leaveOut(r.events, "queued", "looked")
	// The agent cannot connect: it says so of each message that it is given.
	r.plant(messages, func(i int) string { return fmt.Sprintf("host60000.%d@h", i) }, func(int) string { return "dead" })
	r.start()
	r.wait(1, "msg=scanned", fmt.Sprintf("messages=%d", messages))
	before := len(r.notes("deferall host60000"))
	for i := range probes {
		r.wait(before+i, "msg=deferred", "host60000")
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp alive ok.%d@h", i)})
		r.wait(i+1, "msg=finished")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	// As many as may run at once can have begun before the first of them was answered;
	// then one at a time.
	attempts := len(r.notes("deferall host60000"))
	tries := 0
	for line := range strings.Lines(r.events.String()) {
		if strings.Contains(line, "msg=deferred") && strings.Contains(line, "host60000") {
			tries++
		}
	}
	t.Logf("%d messages, %d connects when everything was read, %d at the end", messages, before, attempts)
	if attempts > 20+2*probes+before || attempts != tries {
		t.Errorf("%d attempts and %d deferrals for %d retries of the host", attempts, tries, probes)
	}
	if before > 20+40 {
		t.Errorf("%d attempts before the host's trouble was known", before)
	}
}

// A start does not wait for what lies there: the listing stands still behind its first
// names until a message has been delivered.
func TestDeliveriesBeginDuringTheScan(t *testing.T) {
	t.Parallel()
	const messages = 3 * namesAtOnce
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=20"), 0, func(s *conf.Settings) { s.Interval = time.Hour })
	r.events.Handler = leaveOut(r.events, "queued", "looked")
	r.plant(messages, func(i int) string { return fmt.Sprintf("ok.%d@h", i) }, func(i int) string { return fmt.Sprintf("h%d", i%100) })
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open) // before the scheduler is stopped
	calls := 0
	r.config.listing = func() {
		if calls++; calls == 2 {
			<-gate
		}
	}
	r.start()
	t.Cleanup(open)
	r.wait(1, "msg=delivered")
	if n, _ := r.events.count("msg=scanned"); n != 0 {
		t.Error("all was read before the first was delivered")
	}
	open()
	r.wait(1, "msg=scanned")
}
