package kill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"zmailer/test/inject"
	"zmailer/test/load"
)

// trace has a system work under strace and lists the steps that it saw, with their
// counts: the reference that shares nothing with the injector but the names of classes.
func trace(ctx context.Context, bin, dir string) (map[inject.Pair]int, error) {
	s, l, err := prepared(bin, dir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var files atomic.Int64
	out := filepath.Join(dir, "strace")
	start := func(cmd *exec.Cmd) error {
		traceable(cmd, fmt.Sprintf("%s.%d", out, files.Add(1)))
		return cmd.Start()
	}
	s.Launch = func(cmd *exec.Cmd) error { fast(cmd); return start(cmd) }
	l.StartSubmit, l.StartOperator = start, start
	if err := s.Start(); err != nil {
		return nil, err
	}
	defer s.Kill()
	for n := range 3 {
		if n == 2 {
			l.Extra = []load.Kind{load.Long}
		}
		err = errors.Join(err, runRound(ctx, s, l, n))
	}
	err = errors.Join(err, l.Keep(ctx, firstExtra), drain(ctx, s))
	// strace holds the log open, so it has written everything when this returns.
	if err = errors.Join(err, s.Stop()); err != nil {
		return nil, err
	}
	steps := map[inject.Pair]int{}
	for n := range files.Load() {
		err = errors.Join(err, readTrace(fmt.Sprintf("%s.%d", out, n+1), classes(s), steps))
	}
	return steps, err
}

// traceable puts strace around a command, as its grandchild, so that the command's
// own process is the one that is started. strace is root's; a command of another user
// becomes that by setpriv(1). more are calls beside those of the injector.
func traceable(cmd *exec.Cmd, out string, more ...string) {
	// "?": strace need not know the call.
	calls := "trace=?" + strings.Join(append(inject.Traced(), more...), ",?")
	program := []string{cmd.Path}
	if a := cmd.SysProcAttr; a != nil && a.Credential != nil {
		program = []string{"setpriv", "--clear-groups", fmt.Sprintf("--reuid=%d", a.Credential.Uid), fmt.Sprintf("--regid=%d", a.Credential.Gid), cmd.Path}
		changed := *a
		changed.Credential = nil
		cmd.SysProcAttr = &changed
	}
	args := []string{"strace", "-D", "-f", "-y", "-Y", "-qq", "-s", "8192", "-o", out, "-e", calls, "-e", "signal=none"}
	cmd.Args = slices.Concat(args, program, cmd.Args[1:])
	cmd.Path, cmd.Err = exec.LookPath("strace")
}

// readTrace adds the steps of one file.
func readTrace(name string, c inject.Classes, steps map[inject.Pair]int) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if p, ok := parseCall(line, c); ok && ours(p) {
			steps[p]++
		}
		if err != nil {
			return nil // the end of the file
		}
	}
}
