package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/peer"
)

// system is a mail relay under test.
type system interface {
	name() string
	// start runs it below dir, listening on addr and relaying all mail to sinkHost, an
	// SMTP route host of the form "[address]:port".
	start(dir, addr, sinkHost string) error
	// warm is called when it listens, before the load.
	warm() error
	// stop ends it and returns the processor time and the largest process's memory.
	stop() (cpu time.Duration, rss int64, err error)
}

// process is a system that is one tree of processes whose root waits for the others.
type process struct{ cmd *exec.Cmd }

// launch starts the root; its log is dir/log.
func (p *process) launch(dir string, cmd *exec.Cmd) error {
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd = cmd
	p.cmd.Stdout, p.cmd.Stderr = out, out
	return p.cmd.Start()
}

// stop ends the root and waits for every process of the tree: those that the root
// left behind become our children (see adoptOrphans).
func (p *process) stop() (cpu time.Duration, rss int64, err error) {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, err
	}
	err = p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() <= 0 { // ended by our signal
		err = nil
	}
	usages := []syscall.Rusage{*p.cmd.ProcessState.SysUsage().(*syscall.Rusage)}
	for {
		var ru syscall.Rusage
		_, werr := syscall.Wait4(-1, nil, 0, &ru)
		if werr == syscall.EINTR {
			continue
		}
		if werr != nil {
			break // ECHILD: all are gone
		}
		usages = append(usages, ru)
	}
	for _, ru := range usages {
		cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
		rss = max(rss, ru.Maxrss<<10)
	}
	return cpu, rss, err
}

// adoptOrphans makes this process the parent of its descendants' orphans, so that
// their processor time can be counted: Postfix's master does not wait for its own.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// ours is this pipeline.
type ours struct {
	process
	bin   string
	begin func() error // called before the load
}

func (s *ours) name() string { return "zmailer" }

func (s *ours) warm() error {
	if s.begin != nil {
		return s.begin()
	}
	return nil
}

func (s *ours) start(dir, addr, sinkHost string) error {
	conf := filepath.Join(dir, "conf")
	zmctl, err := filepath.Abs(filepath.Join(s.bin, "zmctl"))
	if err != nil {
		return err
	}
	po := filepath.Join(dir, "postoffice")
	if out, err := exec.Command(zmctl, "--postoffice", po, "init", "--config-dir", conf).CombinedOutput(); err != nil {
		return fmt.Errorf("zmctl init: %w: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(conf, "routes"), []byte(". smtp!"+sinkHost+"\n"), 0o644); err != nil {
		return err
	}
	main := "POSTOFFICE=" + po + "\nHOSTNAME=bench.example\nSMTPLISTEN=" + addr + "\nLOG=text\n"
	if err := os.WriteFile(filepath.Join(conf, "zmailer.conf"), []byte(main), 0o644); err != nil {
		return err
	}
	return s.launch(dir, exec.Command(zmctl, "--config", filepath.Join(conf, "zmailer.conf"), "run"))
}

// postfix is Postfix with its defaults, as a loopback relay.
type postfix struct{ process }

func (s *postfix) name() string { return "postfix" }
func (s *postfix) warm() error  { return nil }

func (s *postfix) start(dir, addr, sinkHost string) error {
	p := peer.Postfix{Dir: dir, Listen: addr, RelayHost: sinkHost}
	cmd, err := p.Command()
	if err != nil {
		return err
	}
	return s.launch(dir, cmd)
}
