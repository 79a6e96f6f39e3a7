package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/test/peer"
)

// once starts a system, sends the load through it, waits until all has arrived, and
// stops it.
func once(o options, s system) (result, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return result{}, err
	}
	if o.keep {
		fmt.Println("working directory:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	accepted := make([]time.Time, o.messages)
	arrived := make([]time.Time, o.messages)
	var mu sync.Mutex
	twice := 0
	sink := &peer.Sink{Discard: true, OnMessage: func(m *peer.Message) {
		local, _, _ := strings.Cut(m.Recipients[0], "@")
		if n, err := strconv.Atoi(strings.TrimPrefix(local, "n")); err == nil && n < len(arrived) {
			mu.Lock()
			if !arrived[n].IsZero() {
				twice++
			}
			arrived[n] = m.Time
			mu.Unlock()
		}
	}}
	if err := sink.Start(); err != nil {
		return result{}, err
	}
	defer sink.Close()
	addr, err := freeAddr()
	if err != nil {
		return result{}, err
	}
	if err := s.start(dir, addr, sink.RouteHost()); err != nil {
		return result{}, err
	}
	began := time.Now()
	err = errors.Join(awaitListener(addr), s.warm())
	var r result
	if err == nil {
		began = time.Now()
		err = load(o, addr, accepted)
	}
	if err == nil {
		r.accepted = float64(o.messages) / time.Since(began).Seconds()
		err = sink.Wait(o.messages, 2*time.Minute)
	}
	r.rate = float64(o.messages) / time.Since(began).Seconds()
	cpu, rss, serr := s.stop()
	if err = errors.Join(err, serr); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return result{}, fmt.Errorf("%w; the end of its log:\n%s", err, log[max(0, len(log)-2000):])
	}
	if twice > 0 {
		return result{}, fmt.Errorf("%d messages arrived twice", twice)
	}
	r.cpu, r.rss = cpu/time.Duration(o.messages), rss
	took := make([]time.Duration, o.messages)
	for i := range took {
		took[i] = max(0, arrived[i].Sub(accepted[i]))
	}
	slices.Sort(took)
	r.p50, r.p99 = took[len(took)/2], took[len(took)*99/100]
	return r, nil
}

func load(o options, addr string, accepted []time.Time) error {
	head := "From: <sender@bench.example>\r\nTo: <n@sink.example>\r\nSubject: bench\r\nMessage-ID: <%d@bench.example>\r\n\r\n"
	line := []byte(strings.Repeat("x", 76) + "\r\n")
	body := bytes.Repeat(line, max(1, (o.size-len(head))/len(line)))
	src := peer.Source{
		Addr: addr, Connections: o.connections, Messages: o.messages, Reuse: o.reuse, From: "sender@bench.example",
		To:         func(n int) string { return fmt.Sprintf("n%d@sink.example", n) },
		Body:       func(n int) []byte { return append(fmt.Appendf(nil, head, n), body...) },
		OnAccepted: func(n int, _ string, at time.Time) { accepted[n] = at },
	}
	return src.Run(background)
}

// freeAddr finds a port; the system under test binds it a moment later.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// awaitListener tries to connect until somebody greets.
func awaitListener(addr string) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.SetDeadline(deadline)
			_, err = c.Read(make([]byte, 512))
			c.Close()
			if err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nobody listens on %s: %w", addr, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
