package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
)

// asker asks the scheduler, and talks rubbish to it.
func (s *soak) asker(ctx context.Context, d *dice) error {
	for d.pause(ctx, 20*time.Millisecond, 400*time.Millisecond) {
		var err error
		if d.chance(60) {
			err = s.babble(d)
		} else {
			err = s.ask(d)
		}
		if err != nil {
			return err
		}
		s.questions.Add(1)
	}
	return nil
}

// ask runs a command that asks.
func (s *soak) ask(d *dice) error {
	lists := [][]string{{"thread"}, {"thread", "--json"}, {"queue", "--tree"}, {"queue", "--counts"}, {"queue", "--ages"}, {"queue", "--json"},
		{"queue", "--state", "held,frozen"}, {"orders"}, {"removed"}, {"why"}, {"show"}, {"history"}}
	args := slices.Clone(lists[d.IntN(len(lists))])
	if len(args) == 1 && strings.Contains("why show history", args[0]) {
		f, err := s.hand.pick(d, "queue", "router")
		if errors.Is(err, errNothing) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		args = append(args, spoolID(f.ino, info.ModTime()))
	}
	out, code, err := s.zmctl(args...)
	if err != nil {
		return err
	}
	d.say("zmctl %s: exit code %d, %d bytes", strings.Join(args, " "), code, len(out))
	// 1: no scheduler runs, or the message has gone; below 0: it was killed.
	if code > 1 || strings.Contains(out, "panic:") {
		return fmt.Errorf("zmctl %s: exit code %d: %s", strings.Join(args, " "), code, out)
	}
	for line := range strings.Lines(out) {
		if code == 0 && slices.Contains(args, "--json") && !json.Valid([]byte(line)) {
			return fmt.Errorf("zmctl %s: this is no JSON: %s", strings.Join(args, " "), line)
		}
	}
	return nil
}

// requests are what the query socket takes, without those that give mail up.
var requests = []string{"SHOW QUEUE SHORT", "SHOW QUEUE THREADS", "SHOW QUEUE THREADS2", "SHOW SNMP", "SHOW COUNTERS", "SHOW THREAD smtp *",
	"SHOW THREAD local " + hostname, "JSON THREADS", "JSON STATUS", "JSON EVENTS", "JSON THREAD smtp x", "JSON MESSAGE S1A2", "ETRN s0.example",
	"ETRN @example", "KILL THREAD smtp nowhere.example", "KILL MSG S0", "AUTH root x", "AUTH", "HELP", "QUIT", "SHOW", "SHOW THREAD", "\x00", ".", ""}

// babble talks to the query socket: requests, rubbish, parts of lines, and hangs up at
// any time, whether its answers were read or not.
func (s *soak) babble(d *dice) error {
	var said bytes.Buffer
	for range d.IntN(6) {
		switch n := d.IntN(10); {
		case n < 6:
			said.WriteString(requests[d.IntN(len(requests))])
		case n < 8:
			for range d.IntN(4000) {
				said.WriteByte(byte(d.IntN(256)))
			}
		default:
			said.WriteString(strings.Repeat(requests[d.IntN(len(requests))]+" ", d.IntN(300)))
		}
		said.WriteString([]string{"\n", "\r\n", "", "\n\n\n"}[d.IntN(4)])
	}
	length, reads := d.between(0, 1500*time.Millisecond), d.chance(70)
	c, err := net.DialTimeout("unix", filepath.Join(s.mail.PostOffice(), postoffice.QuerySocket), time.Second)
	if err != nil {
		return nil // it does not run: somebody killed it
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(length)); err != nil {
		return err
	}
	// Errors are what is wanted here; whether the scheduler is well is seen at the end.
	n, _ := c.Write(said.Bytes())
	got := int64(0)
	if reads {
		got, _ = io.Copy(io.Discard, c)
	}
	d.say("%d of %d bytes to the query socket, %d in answer", n, said.Len(), got)
	return nil
}

// panics returns the lines of the programs' log about a crash of their own.
func (s *soak) panics() []string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return []string{err.Error()}
	}
	for _, word := range []string{"panic: ", "fatal error: ", "\ngoroutine "} {
		if at := bytes.Index(text, []byte(word)); at >= 0 {
			return []string{"a program crashed: " + string(text[at:min(at+2000, len(text))])}
		}
	}
	return nil
}
