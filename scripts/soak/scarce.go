package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/suite"
)

// scarce leaves a process few file descriptors for a while (RLIMIT_NOFILE): those that it
// has open, and some more.
func (s *soak) scarce(ctx context.Context, d *dice) error {
	names := append(agents(), daemons()...)
	for d.pause(ctx, time.Second, 6*time.Second) {
		choice, more, length := d.Uint64(), d.IntN(12), d.between(300*time.Millisecond, 4*time.Second)
		list, err := s.mail.Processes()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p suite.Process) bool { return !slices.Contains(names, p.Name) })
		if len(list) == 0 {
			continue
		}
		slices.SortFunc(list, func(a, b suite.Process) int { return strings.Compare(a.Name, b.Name) })
		p := list[choice%uint64(len(list))]
		var before unix.Rlimit
		if err := unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, nil, &before); errors.Is(err, unix.ESRCH) {
			continue
		} else if err != nil {
			return err
		}
		few := before
		few.Cur = uint64(p.Descriptors() + more)
		if err := unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			continue // it has ended
		}
		s.scarcities.Add(1)
		d.say("%s %d has %d descriptors for %v", p.Name, p.Pid, few.Cur, length.Round(time.Millisecond))
		wait(ctx, length)
		// Or it has ended.
		_ = unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &before, nil)
	}
	return nil
}
