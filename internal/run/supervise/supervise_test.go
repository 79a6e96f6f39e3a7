package supervise

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func await[T any](t *testing.T, what string, done <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s in time", what)
	}
	return got
}

// The pause before a daemon is started again doubles from the first, a second here, to
// sixty times that; a life of that length sets it back.
func TestPauseDoublesAndIsSetBackByLife(t *testing.T) {
	const lives = 10
	longLife := 8 // the one that lasts a minute
	var mu sync.Mutex
	var pauses []time.Duration
	enough := make(chan struct{})
	clock := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	calls := 0
	s := &Supervisor{
		Log: slog.New(slog.DiscardHandler), Out: io.Discard, Err: io.Discard, StopTimeout: time.Hour, Pause: time.Second,
		// Two looks at the clock for each life.
		now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			calls++
			clock = clock.Add(time.Millisecond)
			if calls == 2*longLife {
				clock = clock.Add(time.Minute)
			}
			return clock
		},
		after: func(d time.Duration) <-chan time.Time {
			mu.Lock()
			defer mu.Unlock()
			c := make(chan time.Time, 1)
			if d == time.Hour {
				return c
			}
			pauses = append(pauses, d)
			if len(pauses) == lives {
				close(enough)
			} else {
				c <- clock
			}
			return c
		},
	}
	path, err := exec.LookPath("false")
	if err != nil {
		t.Skip("SKIPPED: no program false here:", err)
	}
	p := newProgram("router", path, nil, nil)
	s.programs = []*program{p}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	await(t, "tenth pause", enough)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want no error", err)
	}
	var want []time.Duration
	for _, n := range []int{1, 2, 4, 8, 16, 32, 60, 1, 2, 4} {
		want = append(want, time.Duration(n)*time.Second)
	}
	assert.Same(t, pauses, want, "pauses")
}

// A program that cannot be started is tried again like one that dies.
func TestProgramThatCannotBeStartedIsTriedAgain(t *testing.T) {
	tried := make(chan struct{})
	once := sync.OnceFunc(func() { close(tried) })
	s := &Supervisor{
		Log: slog.New(slog.DiscardHandler), Out: io.Discard, Err: io.Discard, now: time.Now,
		after: func(time.Duration) <-chan time.Time { once(); return nil },
	}
	s.Add("router", filepath.Join(t.TempDir(), "none"), nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	await(t, "pause", tried)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want no error", err)
	}
	if err := s.Signal("router", syscall.SIGTERM); err != nil {
		t.Errorf("signal without a process: %v", err)
	}
}

// Sec9: while one program takes its time to end, States answers, and others can be found.
func TestSec9StatesAreReturnedWhileAProgramEnds(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("SKIPPED: no program sh here:", err)
	}
	waits := make(chan struct{}, 10)
	kill := make(chan time.Time)
	s := &Supervisor{
		Log: slog.New(slog.DiscardHandler), Out: t.Output(), Err: t.Output(), Pause: time.Millisecond, now: time.Now,
		after: func(time.Duration) <-chan time.Time {
			waits <- struct{}{}
			return kill
		},
	}
	s.Add("router", shell, []string{"-c", "trap '' TERM; exec sleep 1000"}, nil)
	p := s.programs[0]
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	assert.Must(t, p.awaitReady(ctx, 0))
	first, _, _ := p.now()
	stopped := make(chan struct{})
	go func() {
		s.Stop([]string{"router"})
		close(stopped)
	}()
	await(t, "wait for the end", waits)
	if st := s.States(); len(st) != 1 || !st[0].Runs || s.Stopping() {
		t.Errorf("got %+v while it ends", st)
	}
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx, []string{"router"}) }()
	await(t, "second wait for the end", waits)
	close(kill)
	await(t, "end", stopped)
	assert.NoError(t, await(t, "start", started))
	if st, _, _ := p.now(); !st.Runs || st.Pid == first.Pid || st.Starts != 1 {
		t.Errorf("got %+v, want another process", st)
	}
	cancel()
	assert.NoError(t, await(t, "end of all", ended))
}

// A program is ready when it reports so itself; reports of other processes do not count.
func TestProgramReportsThatItIsReady(t *testing.T) {
	s := New()
	s.Add("scheduler", "none", nil, nil)
	s.Add("router", "none", nil, nil)
	other, own := s.programs[0], s.programs[1]
	own.state = State{Daemon: "router", Runs: true, Pid: os.Getpid()}
	other.state = State{Daemon: "scheduler", Runs: true, Pid: os.Getppid()}
	defer s.ListenReady()()
	name, ok := strings.CutPrefix(s.Env[0], "NOTIFY_SOCKET=@")
	if !ok {
		t.Fatalf("got %q", s.Env)
	}
	conn := assert.Get(net.DialUnix("unixgram", nil, &net.UnixAddr{Name: "@" + name, Net: "unixgram"}))(t)
	defer conn.Close()
	for _, text := range []string{"WATCHDOG=1", "NOTREADY=1", "STATUS=all is well\nREADY=1"} {
		assert.Get(conn.Write([]byte(text)))(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	assert.NoError(t, own.awaitReady(ctx, 0))
	if st, _, _ := other.now(); st.Ready {
		t.Error("another program is ready, too")
	}
}
