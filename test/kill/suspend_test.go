package kill

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"zmailer/test/inject"
)

// zmctl runs zmctl under an injector and returns its exit code, -1 for a kill.
func (s *spool) zmctl(onCall func(inject.Call) inject.Action, args ...string) int {
	s.t.Helper()
	i := &inject.Injector{Classes: inject.Classes{PostOffice: s.PostOffice()}, OnCall: onCall}
	cmd := s.Command("zmctl", args...)
	cmd.Stderr = &s.said
	s.said.Reset()
	if err := i.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked
	if err := i.Close(); err != nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// suspended returns the hosts that are suspended.
func (s *spool) suspended() string {
	s.t.Helper()
	out, err := s.Command("zmctl", "suspend", "--json").Output()
	var list []struct{ Host string }
	if err := errors.Join(err, json.Unmarshal(out, &list)); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	var hosts []string
	for _, x := range list {
		hosts = append(hosts, x.Host)
	}
	return strings.Join(hosts, " ")
}

// Op5: zmctl suspend and zmctl resume are killed before each state-changing system call in the
// postoffice, and inside each write: what was in force before is, or what was asked for, and
// the command succeeds when it is given again.
func TestOp5SuspendKilledAtEachCall(t *testing.T) {
	s := newSpool(t)
	if code := s.zmctl(nil, "suspend", "a.example"); code != 0 {
		t.Fatalf("exit code %d: %s", code, &s.said)
	}
	for _, tt := range []struct {
		do, undo      []string
		before, after string
	}{
		{[]string{"suspend", "b.example"}, []string{"resume", "b.example"}, "a.example", "a.example b.example"},
		{[]string{"resume", "a.example"}, []string{"suspend", "a.example"}, "a.example", ""},
	} {
		steps := 0
		for n, torn, done := 0, false, false; !done; {
			calls, hit, part := 0, "", false
			code := s.zmctl(func(c inject.Call) inject.Action {
				if strings.HasPrefix(c.Path, "/") || strings.HasPrefix(c.Path, "socket") || strings.HasPrefix(c.Path, "pipe") {
					return inject.Action{} // none of the postoffice
				}
				if calls++; calls <= n || hit != "" {
					return inject.Action{}
				}
				hit, part = c.Pair().String(), c.Size > 1
				if torn {
					return inject.Action{Kill: true, Part: c.Size / 2}
				}
				return inject.Action{Kill: true}
			}, tt.do...)
			if done = hit == ""; done && code != 0 {
				t.Fatalf("%v: exit code %d: %s", tt.do, code, &s.said)
			}
			got := s.suspended()
			if got != tt.after && (done || got != tt.before) {
				t.Errorf("%v killed before %s (torn %v): %q is suspended", tt.do, hit, torn, got)
			}
			if got == tt.before && !done {
				if code := s.zmctl(nil, tt.do...); code != 0 {
					t.Errorf("%v after a kill before %s: exit code %d: %s", tt.do, hit, code, &s.said)
				}
			}
			if code := s.zmctl(nil, tt.undo...); code != 0 {
				t.Fatalf("%v: exit code %d: %s", tt.undo, code, &s.said)
			}
			if torn = part && !torn; !torn {
				n++
				steps++
			}
		}
		if steps < 6 {
			t.Errorf("%v makes %d calls that change the postoffice", tt.do, steps)
		}
	}
}
