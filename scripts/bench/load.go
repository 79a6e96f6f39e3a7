package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"zmailer/test/peer"
)

// world is one system with its generator and sink.
type world struct {
	place
	*tree
	options
	system system
	sink   *peer.Sink
	dead   string // of dead.example: no process listens there
	mu     sync.Mutex
	at     []time.Time // when recipient nI arrived
	left   int
	twice  int
	all    chan struct{} // closed when none is left
}

// open starts a sink and a system that relays to it, and waits until it listens. routes
// are beside dead.example.
func open(o options, s system, routes map[string]string) (*world, error) {
	w := &world{}
	return w, w.open(o, s, routes)
}

func (w *world) open(o options, s system, routes map[string]string) error {
	if o.stopping.Load() {
		return errors.New("told to stop")
	}
	dir, err := os.MkdirTemp(o.top, s.name()+"-")
	if err != nil {
		return err
	}
	w.options, w.system, w.dir = o, s, dir
	w.sink = &peer.Sink{Discard: true, OnMessage: w.take}
	if err := errors.Join(os.Chmod(dir, 0o755), w.sink.Start()); err != nil {
		return err
	}
	w.relay = w.sink.RouteHost()
	var derr error
	w.listen, err = peer.FreeAddr()
	if w.dead, derr = peer.FreeAddr(); errors.Join(err, derr) != nil {
		return errors.Join(err, derr)
	}
	w.routes = map[string]string{"dead.example": routeHost(w.dead)}
	for domain, to := range routes {
		w.routes[domain] = to
	}
	cmd, err := s.command(w.place)
	if err == nil {
		w.tree, err = launch(dir, cmd)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.name(), err)
	}
	if err := peer.AwaitListener(w.listen, 20*time.Second); err != nil {
		_, err = w.close(err)
		return err
	}
	return nil
}

func routeHost(addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return "[" + host + "]:" + port
}

// close ends the system, and says with an error what its log has.
func (w *world) close(err error) (usage, error) {
	u, serr := w.stop()
	w.sink.Close()
	if err = errors.Join(err, serr); err != nil {
		log, _ := os.ReadFile(filepath.Join(w.dir, "log"))
		err = fmt.Errorf("%s: %w; the end of its log:\n%s%s", w.system.name(), err, log[max(0, len(log)-2000):], w.system.said())
	}
	if w.twice > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d came twice", w.system.name(), w.twice))
	}
	if !w.keep {
		_ = os.RemoveAll(w.dir)
	}
	return u, err
}

// expect begins to wait for recipients n0 to nN.
func (w *world) expect(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.left, w.all = make([]time.Time, n), n, make(chan struct{})
}

func (w *world) take(m *peer.Message) {
	now := m.Time
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range m.Recipients {
		local, _, _ := strings.Cut(r, "@")
		n, err := strconv.Atoi(strings.TrimPrefix(local, "n"))
		if err != nil || n >= len(w.at) {
			continue
		}
		if !w.at[n].IsZero() {
			w.twice++
			continue
		}
		w.at[n] = now
		if w.left--; w.left == 0 {
			close(w.all)
		}
	}
}

// await waits for all and gives the moment at which the last arrived.
func (w *world) await(limit time.Duration) (time.Time, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.all:
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.MaxFunc(w.at, time.Time.Compare), nil
	case <-timer.C:
		w.mu.Lock()
		defer w.mu.Unlock()
		return time.Time{}, fmt.Errorf("%d of %d have not arrived after %v", w.left, len(w.at), limit)
	}
}

// content returns a message as it goes over the wire.
func content(size int) []byte {
	head := "From: <sender@bench.example>\r\nTo: <n@sink.example>\r\nSubject: bench\r\nMessage-ID: <1@bench.example>\r\n\r\n"
	line := []byte(strings.Repeat("x", 76) + "\r\n")
	return append([]byte(head), bytes.Repeat(line, max(1, (size-len(head))/len(line)))...)
}

// source returns the generator for n messages to nI@domain.
func (w *world) source(n, connections, size int, domain string) *peer.Source {
	body := content(size)
	return &peer.Source{
		Addr: w.listen, Connections: connections, Messages: n, Reuse: w.reuse, Again: 5, From: w.from,
		To:   func(n int) string { return fmt.Sprintf("n%d@%s", n, domain) },
		Body: func(int) []byte { return body },
	}
}

// traffic is what a burst took.
type traffic struct {
	accepted, delivered float64 // a second, from the first connection on
	took                []time.Duration
	driver              time.Duration // processor time of generator and sink
}

// burst sends n messages and waits until they have arrived.
func (w *world) burst(n, connections, size int) (traffic, error) {
	accepted := make([]time.Time, n)
	src := w.source(n, connections, size, "sink.example")
	src.OnAccepted = func(n int, _ string, at time.Time) { accepted[n] = at }
	w.expect(n)
	before := own()
	begin := time.Now()
	if err := src.Run(context.Background()); err != nil {
		return traffic{}, err
	}
	t := traffic{accepted: float64(n) / time.Since(begin).Seconds()}
	last, err := w.await(3 * time.Minute)
	if err != nil {
		return traffic{}, err
	}
	t.driver = own() - before
	t.delivered = float64(n) / last.Sub(begin).Seconds()
	for i := range n {
		t.took = append(t.took, max(0, w.at[i].Sub(accepted[i])))
	}
	slices.Sort(t.took)
	return t, nil
}

// submit starts a process of the system's sendmail for each of n messages, some at once,
// and waits until they have arrived. A message is accepted when its process has ended.
func (w *world) submit(n, processes, size int) (traffic, error) {
	if w.system.sendmail() == nil {
		return traffic{}, errors.New("its sendmail is not measured")
	}
	body := bytes.ReplaceAll(content(size), []byte("\r\n"), []byte("\n"))
	accepted, failed := make([]time.Time, n), make([]error, processes)
	var next atomic.Int64
	var workers sync.WaitGroup
	w.expect(n)
	begin := time.Now()
	for i := range processes {
		workers.Go(func() {
			for m := int(next.Add(1)) - 1; m < n && failed[i] == nil; m = int(next.Add(1)) - 1 {
				cmd := w.system.sendmail()
				cmd.Args = append(cmd.Args, fmt.Sprintf("n%d@sink.example", m))
				var said bytes.Buffer
				cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(body), &said, &said
				if err := w.tree.run(cmd); err != nil {
					failed[i] = fmt.Errorf("submit: %w: %s", err, &said)
				}
				accepted[m] = time.Now()
			}
		})
	}
	workers.Wait()
	t := traffic{accepted: float64(n) / time.Since(begin).Seconds()}
	if err := errors.Join(failed...); err != nil {
		return t, err
	}
	last, err := w.await(3 * time.Minute)
	if err != nil {
		return t, err
	}
	t.delivered = float64(n) / last.Sub(begin).Seconds()
	for i := range n {
		t.took = append(t.took, max(0, w.at[i].Sub(accepted[i])))
	}
	slices.Sort(t.took)
	return t, nil
}

// own is our processor time.
func own() time.Duration {
	var ru syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &ru) // it has no reason to fail
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// part returns the value below which so many percent of a sorted list are.
func part(list []time.Duration, percent int) time.Duration { return list[len(list)*percent/100] }
