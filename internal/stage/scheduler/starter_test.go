package scheduler

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/helper/helpertest"
)

// Of what must not happen in time, and of what must, which it does at once on a machine that
// is not busy.
const (
	shortPatience  = 100 * time.Millisecond
	enoughPatience = 2 * time.Second
)

func newStarter(t *testing.T) *Starter {
	t.Helper()
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	if err := os.WriteFile(file, []byte("POSTOFFICE="+filepath.Join(filepath.Dir(file), "po")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return &Starter{Settings: settings, Own: "nobody", Patience: shortPatience}
}

func TestStarterLeavesWhoSaysNothing(t *testing.T) {
	t.Parallel()
	_, theirs := helpertest.Pair(t)
	if err := newStarter(t).Serve(theirs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
}

// Whoever does not read holds it no longer than who does not write.
func TestStarterLeavesWhoHearsNothing(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	go func() {
		// Orders that cannot be obeyed, each of which is answered.
		for {
			if _, err := ours.Write([]byte(`{"start":1,"channel":"smtp","host":"h"}`)); err != nil {
				return
			}
		}
	}()
	if err := newStarter(t).Serve(theirs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
}

// A scheduler that has said hello may have nothing to say for long.
func TestStarterKeepsASchedulerThatHasNothingToSay(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	served := make(chan error, 1)
	s := newStarter(t)
	s.Patience = enoughPatience
	go func() { served <- s.Serve(theirs) }()
	c, err := newStarterClient(ours, patience)
	if err != nil {
		t.Fatal(err)
	}
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

func TestSchedulerLeavesAStarterThatSaysNothing(t *testing.T) {
	t.Parallel()
	ours, _ := helpertest.Pair(t)
	if _, err := newStarterClient(ours, shortPatience); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of its patience", err)
	}
	ours, theirs := helpertest.Pair(t)
	if _, err := theirs.Write([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	c, err := newStarterClient(ours, enoughPatience)
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	if _, err := c.start("local", "h", in, out); !errors.Is(err, errSilentStarter) {
		t.Errorf("got %v, want %v", err, errSilentStarter)
	}
}

// What keeps the starter from working arrives whole, each time: it has hung up by then.
func TestSchedulerHearsWhyTheStarterRefuses(t *testing.T) {
	t.Parallel()
	s := newStarter(t)
	path := s.Settings.Path("scheduler.conf")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // others may write it
		t.Fatal(err)
	}
	for range 200 {
		ours, theirs := helpertest.Pair(t)
		go func() {
			one := &Starter{Settings: s.Settings, Own: s.Own}
			_ = one.Serve(theirs)
			theirs.Close()
		}()
		_, err := newStarterClient(ours, patience)
		if refused := (*StarterRefusal)(nil); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "chmod go-w") {
			t.Fatalf("got %v, want its reason", err)
		}
		ours.Close()
	}
}

// A starter that is gone or says nothing has refused nothing: the next one may be there.
func TestSilenceIsNoRefusal(t *testing.T) {
	t.Parallel()
	ours, theirs := helpertest.Pair(t)
	theirs.Close()
	refused := (*StarterRefusal)(nil)
	if _, err := newStarterClient(ours, patience); err == nil || errors.As(err, &refused) {
		t.Errorf("hung up: got %v", err)
	}
	ours, _ = helpertest.Pair(t)
	if _, err := newStarterClient(ours, shortPatience); err == nil || errors.As(err, &refused) {
		t.Errorf("silent: got %v", err)
	}
}

// An agent whose start could not be told is waited for all the same, or it would stay a
// zombie.
func TestStarterWaitsForAnAgentNobodyHeardOf(t *testing.T) {
	t.Parallel()
	s := newStarter(t)
	me, err := user.Current()
	if err != nil {
		t.Skipf("agents run as users who have a name: %v", err)
	}
	s.Own = me.Username
	if err := os.WriteFile(s.Settings.Path("scheduler.conf"), []byte("local/*\n\tcommand=\"/bin/true\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.Settings.PostOffice(), "transport"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.agents = map[uint64]*os.Process{}
	ours, theirs := helpertest.Pair(t)
	for err == nil { // until it takes no more
		if err = theirs.SetWriteDeadline(time.Now().Add(shortPatience)); err == nil {
			_, err = theirs.Write([]byte("{}"))
		}
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.obey(theirs, starterOrder{Start: 1, Channel: "local", Host: "h"}, []*os.File{in, out}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v, want that nobody listens", err)
	}
	// Its end is told, or, since nobody listens, the connection closed.
	if err := ours.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, maxOrder); ; {
		n, err := ours.Read(b)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(b[:n]), `"ended":"exit status 0"`) {
			break
		}
		if err != nil {
			t.Fatal("nobody waits for the agent")
		}
	}
	if got := s.Use(); got != Idle {
		t.Errorf("use is %v, want %v", got, Idle)
	}
}

// Sec9: the end of an agent is its own, also where its pid is that of a later one by now:
// the starter goes on to signal that one, and the scheduler to wait for it.
func TestSec9EndOfAnAgentIsNotThatOfItsPid(t *testing.T) {
	t.Parallel()
	s := newStarter(t)
	ours, theirs := helpertest.Pair(t)
	proc, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	later := &os.Process{Pid: proc.Pid}
	s.agents = map[uint64]*os.Process{1: proc, 2: later}
	c := &StarterClient{conn: ours, waiting: map[uint64]chan starterAnswer{}, running: map[uint64]*started{}, gone: make(chan struct{})}
	first, second := make(chan starterAnswer, 1), make(chan starterAnswer, 1)
	c.waiting[1], c.waiting[2] = first, second
	for start := range uint64(2) {
		if err := s.say(theirs, starterNotice{Start: start + 1, Pid: proc.Pid}); err != nil {
			t.Fatal(err)
		}
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
