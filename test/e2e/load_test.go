package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/test/peer"
)

// S21, M49: 3,000 messages from 20 connections arrive once each, and no file and no descriptor is
// left.
func TestLoadArrivesExactlyOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	count := 3000
	if testing.Short() {
		count = 500
	}
	arrivals := make([]int, count+1)
	var mu sync.Mutex
	sink := newSink(t, &peer.Sink{Discard: true, OnMessage: func(m *peer.Message) {
		var n int
		if _, err := fmt.Sscanf(m.Recipients[0], "n%d@", &n); err == nil && n <= count {
			mu.Lock()
			arrivals[n]++
			mu.Unlock()
		}
	}})
	s := start(t, sink, nil)
	body := []byte("Subject: load\r\n\r\n" + strings.Repeat(strings.Repeat("x", 76)+"\r\n", 50))
	src := func(messages int) *peer.Source {
		return &peer.Source{Addr: s.SMTPAddr, Connections: 20, Messages: messages, From: "bob@mta.example",
			To: func(n int) string { return fmt.Sprintf("n%d@sink.example", n) }, Body: func(int) []byte { return body }}
	}
	// One message first: agents are started and connections opened by it.
	one := src(1)
	one.To = func(int) string { return fmt.Sprintf("n%d@sink.example", count) }
	must(t, one.Run(context.Background()))
	must(t, sink.Wait(1, patience))
	before := map[int]int{}
	for _, p := range processes(t, s) {
		before[p.Pid] = p.Descriptors()
	}
	must(t, src(count).Run(context.Background()))
	must(t, sink.Wait(count+1, 2*patience))
	awaitEmpty(t, s)
	mu.Lock()
	for n, got := range arrivals {
		if got != 1 {
			t.Errorf("message %d arrived %d times, want once", n, got)
		}
	}
	mu.Unlock()
	// The connections kept for the next message are all that may stay: 20 of the agent.
	await(t, s, "end of idle connections", func() (bool, error) {
		for _, p := range processes(t, s) {
			if p.Descriptors() > before[p.Pid]+1 {
				return false, nil
			}
		}
		return true, nil
	})
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := processes(t, s); len(left) > 0 {
		t.Errorf("still running after the stop: %v", left)
	}
}

// One fsync for each message on the relay path, and none besides.
func TestRelayedMessageCostsOneFsync(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	sink := newSink(t, &peer.Sink{Discard: true})
	s := start(t, sink, nil)
	send := func(n, total int) {
		t.Helper()
		src := source(s, n, "bob@mta.example", "far@sink.example", "Subject: x\n\nx\n")
		src.Connections = 4
		must(t, src.Run(context.Background()))
		must(t, sink.Wait(total, patience))
		awaitEmpty(t, s)
	}
	send(1, 1) // starts the agent, whose owner number is synced
	tr := trace(t, s, "fsync,fdatasync,sync,syncfs,sync_file_range")
	const n = 50
	send(n, 1+n)
	calls := 0
	for line := range strings.Lines(tr.stop(t)) {
		if strings.Contains(line, "sync") && !strings.Contains(line, "resumed") {
			calls++
		}
	}
	if calls != n {
		t.Errorf("%d fsyncs for %d messages, want one each", calls, n)
	}
}

// An idle system sleeps: no process wakes more often than once in two seconds.
func TestIdleDaemonsSleep(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	if testing.Short() {
		t.Skip("it watches for seconds")
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example", "alice@mta.example")
	must(t, sink.Wait(1, patience))
	awaitEmpty(t, s)
	const watched = 20 * time.Second
	timer := time.NewTimer(12 * time.Second) // idle connections end, runtimes collect
	<-timer.C
	// Where others keep the processors busy what is one wait may take several: then the
	// next span tells.
	for spans := 2; ; spans-- {
		tr := trace(t, s, "all")
		timer.Reset(watched)
		<-timer.C
		wakes, restless := tr.wakeups(t), 0
		for _, p := range processes(t, s) {
			t.Logf("%s woke %d times in %v", p.Name, wakes[p.Pid], watched)
			if wakes[p.Pid] > int(watched/(2*time.Second)) {
				restless++
			}
		}
		if restless == 0 {
			return
		}
		if spans == 1 {
			t.Fatalf("%d processes woke more than once in two seconds", restless)
		}
	}
}
