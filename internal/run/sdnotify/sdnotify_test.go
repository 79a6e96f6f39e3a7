package sdnotify

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// deadline is when a test gives up.
const deadline = 10 * time.Second

// systemd returns the end of systemd, with a watchdog in microseconds; "": none.
func systemd(t *testing.T, watchdog string) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c := assert.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path}))(t)
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", "")
	return c
}

// told returns the next thing that the manager hears.
func told(t *testing.T, c *net.UnixConn, within time.Duration) (string, bool) {
	t.Helper()
	assert.Must(t, c.SetReadDeadline(time.Now().Add(within)))
	b := make([]byte, 4096)
	n, err := c.Read(b)
	return string(b[:n]), err == nil
}

func TestSystemdIsToldWhatTheDaemonDoes(t *testing.T) {
	c := systemd(t, "")
	s := FromEnvironment(slog.New(slog.DiscardHandler))
	s.Ready("listening on %d addresses", 2)
	s.Reloading()
	s.Ready("again")
	s.Stopping()
	for i, want := range []string{"READY=1\nSTATUS=listening on 2 addresses", "RELOADING=1\nMONOTONIC_USEC=", "READY=1\nSTATUS=again", "STOPPING=1\nSTATUS=stopping"} {
		if got, _ := told(t, c, deadline); !strings.HasPrefix(got, want) {
			t.Errorf("%d: got %q, want %q", i, got, want)
		}
	}
	defer s.Watch(func() { t.Error("asked without a watchdog") })()
	s.Alive()
}

func TestWithoutSystemdNothingIsDone(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := FromEnvironment(slog.New(slog.DiscardHandler))
	if s != nil {
		t.Fatal("a service without a manager")
	}
	s.Ready("")
	s.Reloading()
	s.Stopping()
	s.Alive()
	s.Watch(func() { t.Error("asked") })()
}

// The loop that answers keeps the process alive, once for each time that it is asked; one that
// hangs is silent from then on.
func TestWatchdogIsFedByALoopThatGoesRound(t *testing.T) {
	c := systemd(t, "100000")
	s := FromEnvironment(slog.New(slog.DiscardHandler))
	var times atomic.Int64
	asked := make(chan struct{}, 1)
	stop := s.Watch(func() {
		times.Add(1)
		select {
		case asked <- struct{}{}:
		default:
		}
	})
	defer stop()
	said := int64(0)
	for range 5 {
		<-asked
		for range 100 {
			s.Alive()
		}
		if got, ok := told(t, c, deadline); !ok || got != "WATCHDOG=1" {
			t.Fatalf("got %q", got)
		}
		said++
	}
	// On a busy machine it may have been asked again between two of the hundred.
	for _, more := told(t, c, 100*time.Millisecond); more; _, more = told(t, c, 100*time.Millisecond) {
		said++
	}
	if most := times.Load() + 1; said > most { // it counts after it was asked
		t.Errorf("it was asked %d times, and has answered %d", most, said)
	}
	// It hangs: asked five times more, it does not answer.
	for range 5 {
		<-asked
	}
	if got, ok := told(t, c, time.Millisecond); ok {
		t.Errorf("no one has answered, got %q", got)
	}
}

func TestSystemdThatIsGoneIsToldOfOnce(t *testing.T) {
	systemd(t, "").Close()
	var said bytes.Buffer
	s := FromEnvironment(slog.New(slog.NewTextHandler(&said, nil)))
	s.Ready("")
	s.Stopping()
	assert.Equal(t, strings.Count(said.String(), "msg=notify-trouble"), 1, "lines in: %s", said.String())
}

func BenchmarkAliveUnasked(b *testing.B) {
	s := &Service{}
	for b.Loop() {
		s.Alive()
	}
}
