package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"zmailer/test/suite"
)

// depth changes the depth of the hash directories again and again, while mail flows:
// the configuration first, then the scheduler is started anew, then the router; for a
// while they differ.
func (s *soak) depth(ctx context.Context, d *dice) error {
	levels := 0
	for d.pause(ctx, 3*time.Second, 12*time.Second) {
		levels = (levels + 1 + d.IntN(2)) % 3
		between := d.between(0, 2*time.Second)
		if err := s.setDepth(levels); err != nil {
			return err
		}
		d.say("HASHLEVELS=%d; scheduler anew, router %v later", levels, between.Round(time.Millisecond))
		if err := s.terminate("scheduler"); err != nil {
			return err
		}
		wait(ctx, between)
		if err := s.terminate("router"); err != nil {
			return err
		}
		s.depths.Add(1)
	}
	return nil
}

// setDepth writes zmailer.conf.
func (s *soak) setDepth(levels int) error {
	s.settings.Lock()
	defer s.settings.Unlock()
	b, err := os.ReadFile(s.mail.Config())
	if err != nil {
		return err
	}
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "HASHLEVELS=") {
			text.WriteString(line)
		}
	}
	fmt.Fprintf(&text, "HASHLEVELS=%d\n", levels)
	draft := filepath.Join(filepath.Dir(s.mail.Config()), ".zmailer.conf")
	if err := os.WriteFile(draft, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, s.mail.Config())
}

// terminate ends one daemon in order; zmctl run starts it again.
func (s *soak) terminate(name string) error {
	list, err := s.mail.Processes()
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Name == name {
			s.end(p, syscall.SIGTERM)
		}
	}
	return nil
}

// end sends a signal to a process if it is still the one that was chosen. It notes
// how often a daemon was ended: zmctl run waits longer each time.
func (s *soak) end(p suite.Process, sig syscall.Signal) (sent bool) {
	process, err := os.FindProcess(p.Pid)
	if err != nil {
		return false
	}
	defer process.Release()
	// What FindProcess holds is this process, whoever has its number later: so look
	// again whether it is the one that was chosen.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Pid)); err != nil || filepath.Base(exe) != p.Name {
		return false
	}
	if process.Signal(sig) != nil {
		return false // it has just ended
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		s.mu.Lock()
		s.ended[p.Name]++
		s.mu.Unlock()
	}
	return true
}
