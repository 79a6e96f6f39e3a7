package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait.
const patience = 10 * time.Minute

// once starts the scheduler, measures, and stops it.
func (s *spool) once(n int) (f figures, err error) {
	argv := []string{filepath.Join(s.bin, "scheduler"), "--config", filepath.Join(s.conf, "zmailer.conf")}
	p := exec.Command(argv[0], argv[1:]...)
	p.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	out, err := p.StderrPipe()
	if err != nil {
		return f, err
	}
	began := time.Now()
	if err := p.Start(); err != nil {
		return f, err
	}
	log := watchLog(out)
	defer func() {
		_ = p.Process.Signal(unix.SIGTERM)
		if _, ok := <-log.ended; ok {
			err = errors.Join(err, errors.New("its log does not end"))
		}
		err = errors.Join(err, p.Wait())
		if err != nil {
			err = fmt.Errorf("%w; the end of its log:\n%s", err, log.tail)
		}
	}()
	select {
	case <-log.scanned:
	case <-log.ended:
		return f, errors.New("the scheduler has ended")
	case <-time.After(patience):
		return f, errors.New("the scan does not end")
	}
	f.scanWall = time.Since(began)
	if f.scanCPU, err = processorTime(p.Process.Pid); err != nil {
		return f, err
	}
	select {
	case f.live = <-log.live:
	case <-log.ended:
		return f, errors.New("the scheduler has ended")
	case <-time.After(patience):
		return f, errors.New("no collection after the scan was told")
	}
	if f.rss, err = resident(p.Process.Pid); err != nil {
		return f, err
	}
	if f.peak, err = memory(p.Process.Pid, "VmHWM:"); err != nil {
		return f, err
	}
	if f.steady, err = settled(p.Process.Pid); err != nil {
		return f, err
	}
	if f.status, err = s.askStatus(); err != nil {
		return f, err
	}
	if s.profile != "" && n > 0 {
		perf := exec.Command("perf", "record", "-q", "-g", "-o", s.profile, "-p", strconv.Itoa(p.Process.Pid))
		if err := perf.Start(); err != nil {
			return f, err
		}
		defer func() {
			_ = perf.Process.Signal(unix.SIGINT)
			_ = perf.Wait() // its exit code is the signal
		}()
	}
	cycles, marked := log.cycles.Load(), log.marked.Load()
	if f.each, err = s.comeAndGo(p.Process.Pid); err != nil {
		return f, err
	}
	f.cycles, f.marked = log.cycles.Load()-cycles, time.Duration(log.marked.Load()-marked)
	if !s.listing {
		return f, nil
	}
	if f.quiet, err = s.trickle(); err != nil {
		return f, err
	}
	stop, listings := make(chan struct{}), make(chan int)
	go func() { listings <- s.list(stop) }()
	f.listed, err = s.trickle()
	close(stop)
	f.listings = <-listings
	return f, err
}

// schedulerLog is what is read of the scheduler's standard error.
type schedulerLog struct {
	scanned chan struct{}
	live    chan int64   // bytes, after the scan
	marked  atomic.Int64 // nanoseconds of processor time that collections of garbage took
	cycles  atomic.Int64 // so many
	ended   chan struct{}
	tail    string
}

// watchLog reads the log: the end of the scan, and the garbage collection behind it.
func watchLog(out interface{ Read([]byte) (int, error) }) *schedulerLog {
	l := &schedulerLog{scanned: make(chan struct{}), live: make(chan int64, 1), ended: make(chan struct{})}
	// The runtime writes its lines in pieces: one of the log may stand within them.
	collected := regexp.MustCompile(`\d+->\d+->(\d+) MB.*\(forced\)`)
	cost := regexp.MustCompile(` ms clock, ([0-9.+/]+) ms cpu`)
	go func() {
		defer close(l.ended)
		lines := bufio.NewScanner(out)
		seen := false
		for lines.Scan() {
			line := lines.Text()
			if !seen && strings.Contains(line, "scanned") {
				seen = true
				close(l.scanned)
			}
			if m := cost.FindStringSubmatch(line); m != nil {
				l.cycles.Add(1)
				for part := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return r == '+' || r == '/' }) {
					ms, _ := strconv.ParseFloat(part, 64)
					l.marked.Add(int64(ms * float64(time.Millisecond)))
				}
			}
			if m := collected.FindStringSubmatch(line); m != nil {
				mb, _ := strconv.ParseInt(m[1], 10, 64)
				select {
				case l.live <- mb << 20:
				default:
				}
				continue
			}
			if strings.HasPrefix(line, "gc ") {
				continue
			}
			l.tail += line + "\n"
			l.tail = l.tail[max(0, len(l.tail)-2000):]
		}
	}()
	return l
}

// settled returns what is resident when it no longer changes: what the scan has used is given
// back.
func settled(pid int) (int64, error) {
	last, err := resident(pid)
	for range 100 {
		if err != nil {
			return 0, err
		}
		time.Sleep(time.Second)
		var now int64
		if now, err = resident(pid); err == nil && max(now-last, last-now) < last/100 {
			return now, nil
		}
		last = now
	}
	return last, err
}

// askStatus returns how long zmctl status takes.
func (s *spool) askStatus() (time.Duration, error) {
	began := time.Now()
	out, err := exec.Command(filepath.Join(s.bin, "zmctl"), "--config", filepath.Join(s.conf, "zmailer.conf"), "status").CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: there are alarms
		return 0, fmt.Errorf("zmctl status: %w: %s", err, out)
	}
	return time.Since(began), nil
}

// comeAndGo has new messages delivered, and gives the scheduler's processor time for
// each of them.
func (s *spool) comeAndGo(pid int) (time.Duration, error) {
	const warm = 100 // the agents are started
	if _, err := s.deliver(warm, 0); err != nil {
		return 0, err
	}
	before, err := processorTime(pid)
	if err != nil {
		return 0, err
	}
	if _, err := s.deliver(s.options.fresh, 0); err != nil {
		return 0, err
	}
	after, err := processorTime(pid)
	return (after - before) / time.Duration(s.options.fresh), err
}

// trickle returns the latencies of new messages, one every few milliseconds.
func (s *spool) trickle() ([]time.Duration, error) {
	return s.deliver(s.options.fresh/2, 5*time.Millisecond)
}

// deliver makes new messages and waits until all have arrived.
func (s *spool) deliver(n int, apart time.Duration) ([]time.Duration, error) {
	sent := make([]time.Time, n)
	first := s.fresh
	tick := time.NewTicker(max(apart, time.Microsecond))
	defer tick.Stop()
	for i := range sent {
		if apart > 0 {
			<-tick.C
		}
		sent[i] = time.Now()
		if err := s.message(s.freshAddress(s.fresh), s.sink.RouteHost(), time.Time{}); err != nil {
			return nil, err
		}
		s.fresh++
	}
	took := make([]time.Duration, n)
	deadline := time.Now().Add(patience)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for i := 0; i < n; {
		s.mu.Lock()
		at, ok := s.arrived[s.freshAddress(first+i)]
		delete(s.arrived, s.freshAddress(first+i))
		s.mu.Unlock()
		if ok {
			took[i] = at.Sub(sent[i])
			i++
			continue
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d new messages have arrived", i, n)
		}
		<-poll.C
	}
	return took, nil
}

func (s *spool) freshAddress(n int) string { return fmt.Sprintf("new%d@sink.example", n) }

// list lists the queue again and again, and counts.
func (s *spool) list(stop <-chan struct{}) (n int) {
	for {
		select {
		case <-stop:
			return n
		default:
		}
		if exec.Command(filepath.Join(s.bin, "zmctl"), "--postoffice", s.po, "queue").Run() == nil {
			n++
		}
	}
}

// processorTime is user and system time of all threads so far.
func processorTime(pid int) (time.Duration, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		ns, _, _ := bytes.Cut(b, []byte{' '})
		n, err := strconv.ParseInt(string(ns), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// resident returns the memory that a process has, bytes.
func resident(pid int) (int64, error) { return memory(pid, "VmRSS:") }

// memory returns a line of /proc/PID/status. Bytes.
func memory(pid int, key string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no " + key + " in /proc")
}
