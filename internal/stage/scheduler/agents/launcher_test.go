package agents

import (
	"errors"
	"os"
	"os/user"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/helper/helpertest"
)

// Of what must not happen in time, and of what must, which it does at once on a machine that
// is not busy.
const (
	shortPatience  = 100 * time.Millisecond
	enoughPatience = 2 * time.Second
)

func newLauncher(t *testing.T) *Launcher {
	t.Helper()
	return &Launcher{Own: "nobody", Dir: t.TempDir(), Patience: shortPatience, Check: func() error { return nil },
		Launch: func(channel, host string) (Launch, error) { return Launch{Argv: []string{"/bin/true"}}, nil }}
}

func TestLauncherLeavesASilentClient(t *testing.T) {
	t.Parallel()
	_, theirs := helpertest.Pair(t)
	if err := newLauncher(t).Serve(theirs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
}

// A client that does not read holds it no longer than one that does not write.
func TestLauncherLeavesAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	go func() {
		// Requests that are refused, each of which is answered.
		for {
			if _, err := ours.Write([]byte(`{"start":1,"channel":"smtp","host":"h"}`)); err != nil {
				return
			}
		}
	}()
	if err := newLauncher(t).Serve(theirs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
}

// A scheduler that has said hello may ask for nothing for long.
func TestLauncherKeepsAnIdleScheduler(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	served := make(chan error, 1)
	s := newLauncher(t)
	s.Patience = enoughPatience
	go func() { served <- s.Serve(theirs) }()
	c, err := newLauncherClient(ours, testPatience)
	assert.Must(t, err)
	later := time.NewTimer(enoughPatience + enoughPatience/4)
	defer later.Stop()
	select {
	case err := <-served:
		t.Fatalf("it was left: %v", err)
	case <-c.Gone():
		t.Fatal("it was left")
	case <-later.C:
	}
	ours.Close()
	if err := <-served; err != nil {
		t.Errorf("at the end: %v", err)
	}
}

func TestSchedulerLeavesASilentLauncher(t *testing.T) {
	t.Parallel()
	ours, _ := helpertest.Pair(t)
	if _, err := newLauncherClient(ours, shortPatience); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
	ours, theirs := helpertest.Pair(t)
	if _, err := theirs.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	c, err := newLauncherClient(ours, enoughPatience)
	assert.Must(t, err)
	in, out, err := os.Pipe()
	assert.Must(t, err)
	defer in.Close()
	defer out.Close()
	if _, err := c.start("local", "h", in, out); !errors.Is(err, errSilentLauncher) {
		t.Errorf("got %v, want %v", err, errSilentLauncher)
	}
}

// The reason why the launcher cannot work arrives whole, each time: it has hung up by then.
func TestSchedulerGetsTheLaunchersReason(t *testing.T) {
	t.Parallel()
	for range 200 {
		ours, theirs := helpertest.Pair(t)
		go func() {
			s := newLauncher(t)
			s.Check = func() error { return errors.New("cannot be used") }
			_ = s.Serve(theirs)
			theirs.Close()
		}()
		_, err := newLauncherClient(ours, testPatience)
		if refused := (*LauncherRefusal)(nil); !errors.As(err, &refused) || refused.Reason != "cannot be used" {
			t.Fatalf("got %v, want its reason", err)
		}
		ours.Close()
	}
}

// A launcher that is gone or silent has refused nothing: the next one may be there.
func TestSilenceIsNoRefusal(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	theirs.Close()
	refused := (*LauncherRefusal)(nil)
	if _, err := newLauncherClient(ours, testPatience); err == nil || errors.As(err, &refused) {
		t.Errorf("hung up: got %v", err)
	}
	ours, _ = helpertest.Pair(t)
	if _, err := newLauncherClient(ours, shortPatience); err == nil || errors.As(err, &refused) {
		t.Errorf("silent: got %v", err)
	}
}

// An agent whose start could not be reported is waited for all the same, or it would stay a
// zombie.
func TestLauncherWaitsForAnAgentWhoseStartWasNotSent(t *testing.T) {
	t.Parallel()
	s := newLauncher(t)
	me, err := user.Current()
	if err != nil {
		t.Skipf("agents run as users who have a name: %v", err)
	}
	s.Own = me.Username
	s.agents = map[uint64]*os.Process{}
	ours, theirs := helpertest.Pair(t)
	for err == nil { // until it takes no more
		if err = theirs.SetWriteDeadline(time.Now().Add(shortPatience)); err == nil {
			_, err = theirs.Write([]byte("{}"))
		}
	}
	in, out, err := os.Pipe()
	assert.Must(t, err)
	if err := s.do(theirs, launchRequest{Start: 1, Channel: "local", Host: "h"}, []*os.File{in, out}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v, want a connection that takes nothing", err)
	}
	// Its end is sent, or, since that cannot be, the connection closed.
	assert.Must(t, ours.SetReadDeadline(time.Now().Add(testPatience)))
	for b := make([]byte, maxMessage); ; {
		n, err := ours.Read(b)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(b[:n]), `"ended":"exit status 0"`) {
			break
		}
		if err != nil {
			t.Fatal("the agent is not waited for")
		}
	}
	assert.Equal(t, s.Use(), Idle, "use")
}

// Sec9: the end of an agent is its own, also where its pid is that of a later one by now:
// the launcher goes on to signal that one, and the scheduler to wait for it.
func TestSec9EndOfAnAgentIsNotThatOfItsPid(t *testing.T) {
	t.Parallel()
	s := newLauncher(t)
	ours, theirs := helpertest.Pair(t)
	proc, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	assert.Must(t, err)
	later := &os.Process{Pid: proc.Pid}
	s.agents = map[uint64]*os.Process{1: proc, 2: later}
	c := &LauncherClient{conn: ours, waiting: map[uint64]chan launchAnswer{}, running: map[uint64]*launched{}, gone: make(chan struct{})}
	first, second := make(chan launchAnswer, 1), make(chan launchAnswer, 1)
	c.waiting[1], c.waiting[2] = first, second
	for start := range uint64(2) {
		assert.Must(t, s.send(theirs, launchNotice{Start: start + 1, Pid: proc.Pid}))
	}
	s.await(theirs, 1, proc)
	if s.agents[1] != nil || s.agents[2] != later {
		t.Errorf("got %v, want the later one alone", s.agents)
	}
	go c.listen()
	if how, err := (<-first).agent.Wait(); how != "exit status 0" || err != nil {
		t.Errorf("the first: got %q, %v", how, err)
	}
	ours.Close()
	if how, err := (<-second).agent.Wait(); how != "unknown" || err != nil {
		t.Errorf("the second: got %q, %v, want its connection's end", how, err)
	}
}
