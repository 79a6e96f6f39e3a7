package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"zmailer/test/peer"
)

// set is a directory of programs and what was counted of them.
type set struct {
	name, bin string
	env       []string
	sum       all // per message, over all runs
	rate      float64
}

// warmUp is how many messages go before those that are counted: agents are started and
// buffers made by them.
const warmUp = 200

// programs are those that a message meets, and their parent.
var programs = []string{"zmctl", "smtpserver", "router", "scheduler", "ta-smtp"}

// measure runs the pipeline once, counting system calls or allocations.
func (s *set) measure(o options, allocs bool) error {
	dir, err := os.MkdirTemp("", "costs-")
	if err != nil {
		return err
	}
	if o.keep {
		fmt.Fprintln(os.Stderr, "working directory:", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	sink := &peer.Sink{Discard: true}
	if err := sink.Start(); err != nil {
		return err
	}
	defer sink.Close()
	p := &pipeline{dir: dir, bin: s.bin, env: s.env, sink: sink}
	if err := p.prepare(); err != nil {
		return err
	}
	counted := byProcess{}
	count := func(bool) error { return nil }
	end := func() error { return nil }
	if o.strace && !allocs {
		st := &stracer{file: filepath.Join(dir, "trace")}
		p.wrap = st.command
		count, end = st.count, func() error { return st.end(counted) }
	}
	if err := p.start(); err != nil {
		return err
	}
	defer p.kill()
	if allocs || !o.strace {
		events, err := systemCalls(counted)
		if allocs {
			var remove func()
			if events, remove, err = allocations(counted, s.bin, programs); err == nil {
				defer remove()
			}
		}
		if err != nil {
			return err
		}
		t, err := trace(p.cmd.Process.Pid, events)
		if err != nil {
			return err
		}
		defer t.close()
		count, end = t.count, t.end
	}
	if err := p.run(o); err != nil {
		return err
	}
	if err := p.load(o, 0, warmUp); err != nil {
		return err
	}
	names := map[int]string{}
	before, err := proc(p.cmd.Process.Pid, names)
	if err != nil {
		return err
	}
	if err := count(true); err != nil {
		return err
	}
	began := time.Now()
	if err := p.load(o, warmUp, o.messages); err != nil {
		return err
	}
	took := time.Since(began)
	if err := count(false); err != nil {
		return err
	}
	after, err := proc(p.cmd.Process.Pid, names)
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	s.take(o, allocs, counted, names, before, after, took)
	return nil
}

// take adds a run's counts for each message.
func (s *set) take(o options, allocs bool, counted byProcess, names map[int]string, before, after all, took time.Duration) {
	if s.sum == nil {
		s.sum = all{}
	}
	n := 1 / float64(o.messages)
	if !allocs {
		n /= float64(o.runs)
		s.rate += float64(o.messages) / took.Seconds() / float64(o.runs)
		for program, c := range after {
			if b := before[program]; b != nil {
				c.add(b, -1)
			}
			s.sum.of(program).add(c, n)
		}
	}
	for pid, c := range counted {
		if program := names[pid]; program != "" {
			s.sum.of(program).add(c, n)
		}
	}
}

// pipeline is the system under load.
type pipeline struct {
	dir, bin, addr string
	env            []string
	sink           *peer.Sink
	wrap           func(args []string) []string // the command that runs a command
	cmd            *exec.Cmd
	gate           *os.File // the first process waits for it
	arrived        int
}

// prepare makes its directories.
func (p *pipeline) prepare() error {
	var err error
	if p.bin, err = filepath.Abs(p.bin); err != nil {
		return err
	}
	if p.addr, err = peer.FreeAddr(); err != nil {
		return err
	}
	conf, po := filepath.Join(p.dir, "conf"), filepath.Join(p.dir, "postoffice")
	if out, err := exec.Command(filepath.Join(p.bin, "zmctl"), "--postoffice", po, "init", "--config-dir", conf).CombinedOutput(); err != nil {
		return fmt.Errorf("zmctl init: %w: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(conf, "routes"), []byte(". smtp!"+p.sink.RouteHost()+"\n"), 0o644); err != nil {
		return err
	}
	main := "POSTOFFICE=" + po + "\nHOSTNAME=costs.example\nSMTPLISTEN=" + p.addr + "\nLOG=text\n"
	return os.WriteFile(filepath.Join(conf, "zmailer.conf"), []byte(main), 0o644)
}

// start starts a shell that waits to be told to become zmctl run, so that what is to be
// counted of it can be said first.
func (p *pipeline) start() error {
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	wait, gate, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wait.Close()
	p.gate = gate
	args := []string{filepath.Join(p.bin, "zmctl"), "--config", filepath.Join(p.dir, "conf", "zmailer.conf"), "run"}
	if p.wrap != nil {
		args = p.wrap(args)
	}
	p.cmd = exec.Command("sh", append([]string{"-c", `read x <&3; exec "$@" 3<&-`, "sh"}, args...)...)
	p.cmd.ExtraFiles = []*os.File{wait}
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// It ends when we are killed; main keeps our first thread, which starts it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return p.cmd.Start()
}

// run lets it run and waits until it listens.
func (p *pipeline) run(o options) error {
	if _, err := p.gate.WriteString("\n"); err != nil {
		return err
	}
	p.gate.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err == nil {
			c.SetDeadline(deadline)
			_, err = c.Read(make([]byte, 512))
			c.Close()
			if err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return p.said(fmt.Errorf("no process listens on %s: %w", p.addr, err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// said adds the end of the log to an error.
func (p *pipeline) said(err error) error {
	log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	return fmt.Errorf("%w; the end of its log:\n%s", err, log[max(0, len(log)-2000):])
}

// load sends messages and waits until they have arrived and nothing is left of them.
func (p *pipeline) load(o options, first, messages int) error {
	head := "From: <sender@costs.example>\r\nTo: <n@sink.example>\r\nSubject: costs\r\nMessage-ID: <%d@costs.example>\r\n\r\n"
	line := []byte(strings.Repeat("x", 76) + "\r\n")
	body := bytes.Repeat(line, max(1, (o.size-len(head))/len(line)))
	src := peer.Source{
		Addr: p.addr, Connections: o.connections, Messages: messages, Reuse: o.reuse, From: "sender@costs.example",
		To:   func(n int) string { return fmt.Sprintf("n%d@sink.example", n) },
		Body: func(n int) []byte { return append(fmt.Appendf(nil, head, first+n), body...) },
	}
	if err := src.Run(context.Background()); err != nil {
		return p.said(err)
	}
	p.arrived += messages
	if err := p.sink.Wait(p.arrived, 2*time.Minute); err != nil {
		return p.said(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		left, err := os.ReadDir(filepath.Join(p.dir, "postoffice", "transport"))
		if err != nil {
			return err
		}
		files := 0
		for _, e := range left {
			if e.Type().IsRegular() {
				files++
			}
		}
		if files == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return p.said(fmt.Errorf("%d specifications are left", files))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stop ends it in order.
func (p *pipeline) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := p.cmd.Wait()
	p.cmd = nil
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() <= 0 { // ended by our signal
		return nil
	}
	return err
}

// kill ends it if that was not done.
func (p *pipeline) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
	}
}
