package kill

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/test/inject"
)

// no one is a user who has no rights.
const nobody = 65534

// names lists the files of some directories of the postoffice.
func (s *spool) names(dirs ...string) (list []string) {
	s.t.Helper()
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(s.PostOffice(), dir))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, dir+"/"+e.Name())
		}
	}
	return list
}

// submitted puts a message into public/: submit of a user, or, with foreign, a program of
// root's that knows nothing of our mark.
func (s *spool) submitted(foreign bool) {
	s.t.Helper()
	if !foreign {
		if code := s.submit(nobody, nil); code != 0 {
			s.t.Fatalf("submit: exit code %d: %s", code, &s.said)
		}
		return
	}
	name := filepath.Join(s.PostOffice(), "public", "4711")
	err := os.WriteFile(name, []byte("to <alice@mta.example>\nenv-end\nSubject: x\n\n"+s.body), 0o600)
	if err := errors.Join(err, os.Chmod(name, 0o700)); err != nil {
		s.t.Fatal(err)
	}
}

// stage is a call of a router's at which it is killed.
type stage struct {
	n    int  // of its calls about pickup, from 0
	torn bool // in the middle of what the call writes
}

// route runs a router that routes what is there, kills it at one of its calls about
// pickup, and returns that call, "" if there were fewer.
func (s *spool) route(at stage) (hit string, writes bool) {
	s.t.Helper()
	calls := 0
	i := &inject.Injector{Classes: inject.Classes{PostOffice: s.PostOffice()}, OnCall: func(c inject.Call) inject.Action {
		if !pickupCall(c.Pair()) {
			return inject.Action{}
		}
		if calls++; calls <= at.n || hit != "" {
			return inject.Action{}
		}
		hit, writes = c.Name+" "+c.Path, c.Size > 1
		a := inject.Action{Kill: true}
		if at.torn {
			a.Part = c.Size / 2
		}
		return a
	}}
	cmd := s.Command("router", "--once")
	var said strings.Builder
	cmd.Stderr = &said
	if err := i.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	err := cmd.Wait()
	if err := i.Close(); err != nil {
		s.t.Fatal(err)
	}
	exit := (*exec.ExitError)(nil)
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
	if killed != (hit != "") || !killed && err != nil {
		s.t.Fatalf("router, to be killed at %+v, met %q: %v\n%s", at, hit, err, &said)
	}
	return hit, writes
}

// Sec8: two routers, one after the other, are killed between any two calls that change
// something about the pickup of a message; the next one brings it to queue/, once and
// whole. That the directories are synced, too, makes no call less.
func TestSec8PickupKilledTwiceKeepsTheMessageOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts some hundred routers")
	}
	s := newSpool(t)
	s.configure("SYNC=strict")
	s.body = s.body[:40<<10] // the copy is written in two parts
	hits := map[string]bool{}
	pairs := 0
	for first := (stage{}); ; {
		var firstHit string
		var firstWrites bool
		for second := (stage{}); ; {
			s.submitted((first.n+second.n)%2 == 1)
			firstHit, firstWrites = s.route(first)
			var secondHit string
			var writes bool
			if firstHit != "" {
				secondHit, writes = s.route(second)
			}
			if secondHit != "" || firstHit == "" {
				hits[firstHit], hits[secondHit] = true, true
				pairs++
			}
			what := fmt.Sprintf("killed at %q, then at %q", firstHit, secondHit)
			s.route(stage{n: 1 << 30})
			s.pickedUp(what)
			if t.Failed() {
				return
			}
			if secondHit == "" {
				break
			}
			second = second.next(writes)
		}
		if firstHit == "" {
			break
		}
		first = first.next(firstWrites)
	}
	t.Logf("%d pairs of kills, at %d calls", pairs, len(hits)-1)
	for _, want := range []string{
		"flock router/.pickup.I.T", "write router/.pickup.I.T", "fchmod router/.pickup.I.T", "fsync router/.pickup.I.T",
		"unlinkat public/T", "fsync public/", "renameat2 router/.pickup.I.T -> router/I",
		"unlinkat router/.pickup.I.T", // by the next router
	} {
		if !hits[want] {
			t.Errorf("no router was killed at %s, but at %v", want, hits)
		}
	}
	if !hits["openat router/.pickup.I.T"] {
		t.Errorf("no router was killed where it makes the copy, but at %v", hits)
	}
}

// next returns the next call, or the middle of this one if it writes.
func (at stage) next(writes bool) stage {
	if writes && !at.torn {
		return stage{n: at.n, torn: true}
	}
	return stage{n: at.n + 1}
}

// configure adds lines to zmailer.conf.
func (s *spool) configure(lines string) {
	s.t.Helper()
	f, err := os.OpenFile(s.Config(), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(lines + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// pickedUp wants one whole message with its specification in the queue and nothing else
// anywhere, and removes it.
func (s *spool) pickedUp(what string) {
	s.t.Helper()
	messages, specs := s.names("queue"), s.names("transport")
	if rest := s.names("public", "router", "quarantine", "postman", "deferred"); len(rest) > 0 || len(messages) != 1 || len(specs) != 1 {
		s.t.Fatalf("%s: queue/ and transport/ have %q and %q, and elsewhere are %q", what, messages, specs, rest)
	}
	if text := s.whole(filepath.Join(s.PostOffice(), messages[0])); !strings.Contains(text, fmt.Sprintf("\nsubmitter %d S", nobody)) {
		s.t.Errorf("%s: the message begins with %q", what, text[:min(len(text), 200)])
	}
	for _, name := range append(messages, specs...) {
		if err := os.Remove(filepath.Join(s.PostOffice(), name)); err != nil {
			s.t.Fatal(err)
		}
	}
}
