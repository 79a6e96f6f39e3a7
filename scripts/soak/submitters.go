package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"time"
)

// Bounds of what is under way.
const (
	mostWaiting = 1500      // messages in the postoffice
	mostBytes   = 400 << 20 // of large messages
)

// ready waits until there is room for another message; false: the load is over.
func (s *soak) ready(ctx context.Context) bool {
	for s.waiting.Load() > mostWaiting || s.books.underWay() > mostBytes {
		// The disk is looked at by s.watch, twice a second.
		if !wait(ctx, 500*time.Millisecond) {
			return false
		}
	}
	return ctx.Err() == nil
}

// overSMTP is a submitter by SMTP: it sends some messages over a connection, then
// opens another.
func (s *soak) overSMTP(ctx context.Context, d *dice, x *mix) error {
	for s.ready(ctx) {
		c, err := dial(ctx, s.mail.SMTPAddr)
		if err != nil {
			// It does not run: somebody killed it.
			if !d.pause(ctx, 50*time.Millisecond, 300*time.Millisecond) {
				break
			}
			continue
		}
		for range 1 + d.IntN(8) {
			if err := s.oneBySMTP(c, d, x); err != nil {
				if !errors.Is(err, errConnection) {
					return err
				}
				c.close()
				c = nil
				break
			}
			if !d.pause(ctx, 0, s.gap) || !s.ready(ctx) {
				break
			}
		}
		if c != nil {
			c.quit()
		}
	}
	return nil
}

// errConnection: another connection is needed.
var errConnection = errors.New("connection")

func (s *soak) oneBySMTP(c *client, d *dice, x *mix) error {
	m, err := x.next()
	if err != nil {
		return err
	}
	// Drawn always, so that what comes later does not depend on what was used.
	how := manner{pipelined: d.chance(50), bodyType: d.chance(50)}
	at := 1 + d.Int64N(m.size+200)
	switch n := d.IntN(100); {
	case n < 3:
		how.cutAt = at
	case n < 5:
		how.cutAtDot = true
	}
	s.books.begin(m)
	st, id, err := c.send(m, how)
	s.books.answered(m, st, id)
	if err != nil || how.cutAt > 0 {
		d.say("message %d, %d bytes, %s: %v: %v", m.seq, m.size, how, st, err)
		return errors.Join(errConnection, err)
	}
	return nil
}

// asStranger is another host: it sends to our users and relay domains, and tries a message
// that was refused for now again, as greylisting and the verification of addresses have it.
func (s *soak) asStranger(ctx context.Context, d *dice, x *mix) error {
	for s.ready(ctx) {
		from := net.IPv4(127, 0, 1, byte(1+d.IntN(200)))
		m, err := x.next()
		if err != nil {
			return err
		}
		tries := 1 + d.IntN(6)
		s.books.begin(m)
		st, id := refused, ""
		for range tries {
			c, derr := dialFrom(ctx, from, s.mail.SMTPAddr)
			if err = derr; err == nil {
				st, id, err = c.send(m, manner{})
				c.quit()
			}
			if st != refused || !wait(ctx, 1100*time.Millisecond) {
				break
			}
		}
		s.books.answered(m, st, id)
		d.say("message %d from %v, %d bytes: %v %v", m.seq, from, m.size, st, err)
		if !d.pause(ctx, 0, s.gap) {
			break
		}
	}
	return nil
}

// bySubmit is a submitter that starts a submit process for each message, and kills
// some.
func (s *soak) bySubmit(ctx context.Context, d *dice, x *mix) error {
	for s.ready(ctx) {
		m, err := x.next()
		if err != nil {
			return err
		}
		killAfter := time.Duration(0)
		if after := d.between(0, 8*time.Millisecond); d.chance(7) {
			killAfter = after
		}
		s.books.begin(m)
		st, id, err := s.submit(m, killAfter)
		s.books.answered(m, st, id)
		if st != accepted {
			d.say("message %d, %d bytes, by submit: %v: %v", m.seq, m.size, st, err)
		}
		if !d.pause(ctx, 0, 2*s.gap) {
			break
		}
	}
	return nil
}

// submit runs one submit process.
func (s *soak) submit(m *message, killAfter time.Duration) (state, string, error) {
	from := m.from
	if from == "" {
		from = "<>"
	}
	args := []string{"-i", "--id", "-f", from}
	if m.notify != "" {
		args = append(args, "-N", strings.ToLower(m.notify))
	}
	cmd := s.mail.Command("submit", append(args, m.rcpts...)...)
	var said, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = m.content.reader(), &said, &complaint
	if err := cmd.Start(); err != nil {
		return refused, "", err
	}
	if killAfter > 0 {
		timer := time.AfterFunc(killAfter, func() { _ = cmd.Process.Kill() }) // or it has ended
		defer timer.Stop()
	}
	err := cmd.Wait()
	exit := (*exec.ExitError)(nil)
	switch {
	case cmd.ProcessState.Success():
		return accepted, strings.TrimSpace(said.String()), nil
	case errors.As(err, &exit) && exit.Exited():
		return refused, "", errors.New(err.Error() + ": " + strings.TrimSpace(complaint.String()))
	}
	return unsure, "", err
}
