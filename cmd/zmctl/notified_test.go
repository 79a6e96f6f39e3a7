package main

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// A daemon is ready when it says so itself; what another process says of it counts nothing.
func TestDaemonSaysThatItIsReady(t *testing.T) {
	own, other := newDaemon("router", "none"), newDaemon("scheduler", "none")
	own.state = daemonState{Daemon: "router", Runs: true, Pid: os.Getpid()}
	other.state = daemonState{Daemon: "scheduler", Runs: true, Pid: os.Getppid()}
	s := &supervisor{daemons: []*daemon{other, own}}
	env, stop := s.listenReady()
	defer stop()
	name, ok := strings.CutPrefix(env, "NOTIFY_SOCKET=@")
	if !ok {
		t.Fatalf("got %q", env)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, text := range []string{"WATCHDOG=1", "NOTREADY=1", "STATUS=all is well\nREADY=1"} {
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := own.awaitUp(ctx, 0); err != nil {
		t.Error(err)
	}
	if st, _ := other.now(); st.Ready {
		t.Error("another daemon is ready, too")
	}
}
