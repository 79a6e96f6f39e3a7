// Package sdnotify reports a daemon's state to the service manager: that it serves, that it reads
// its configuration again, that it stops, and, where a watchdog is wanted, that its main
// loop goes round (sd_notify(3)). Without NOTIFY_SOCKET in the environment all of it does
// nothing. It owns nothing; nothing of it survives a crash.
//
// Diagnostics: nothing is returned. A daemon serves mail whether its manager hears of it
// or not; an error of reporting is logged once, as notify-trouble.
package sdnotify

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Service is what the manager knows this process as. nil: there is no manager.
type Service struct {
	log      *slog.Logger
	watchdog time.Duration // silent for so long, it is killed; 0: never
	asked    atomic.Bool   // the main loop is to show that it lives
	failed   atomic.Bool   // that was logged
}

// asks is how often the main loop is asked within the watchdog's time.
const asks = 4

// FromEnvironment returns the service that the manager has started this process as, nil if
// there is none.
func FromEnvironment(log *slog.Logger) *Service {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	s := &Service{log: log}
	var err error
	if s.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		s.trouble(err)
	}
	return s
}

// Ready reports that the daemon serves, or that it has read its configuration again. The
// text is shown by systemctl status.
func (s *Service) Ready(format string, args ...any) {
	if s != nil {
		s.send(daemon.SdNotifyReady + "\nSTATUS=" + fmt.Sprintf(format, args...))
	}
}

// Reloading reports that the configuration is being read again; Ready ends that.
func (s *Service) Reloading() {
	if s == nil {
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.trouble(err)
		return
	}
	s.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// Stopping reports that the daemon ends.
func (s *Service) Stopping() {
	if s != nil {
		s.send(daemon.SdNotifyStopping + "\nSTATUS=stopping")
	}
}

// Watch has the main loop asked from time to time, if there is a watchdog: ask has it
// call Alive soon, from whatever goroutine it is called by. A loop that hangs does not,
// and the manager kills the process and starts another. stop ends it.
func (s *Service) Watch(ask func()) (stop func()) {
	if s == nil || s.watchdog <= 0 {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(s.watchdog/asks, time.Millisecond))
		defer tick.Stop()
		for {
			s.asked.Store(true)
			ask()
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// Alive is called by the main loop each time round. It costs the load of a variable when
// none is requested.
func (s *Service) Alive() {
	if s != nil && s.asked.Load() && s.asked.CompareAndSwap(true, false) {
		s.send(daemon.SdNotifyWatchdog)
	}
}

// send sends to the manager.
func (s *Service) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.trouble(err)
	}
}

func (s *Service) trouble(err error) {
	if !s.failed.Swap(true) {
		s.log.Warn("notify-trouble", "reason", err)
	}
}
