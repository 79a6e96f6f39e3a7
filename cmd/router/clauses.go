package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
)

// clauses asks the scheduler's program who serves a channel and host. It is started when
// it is asked first; when it cannot be, that is said once, and the rest is told without.
type clauses struct {
	ctx      context.Context
	settings *config.Config
	stderr   io.Writer

	tried bool
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	known map[[2]string]*router.Service
}

func newClauses(ctx context.Context, settings *config.Config, stderr io.Writer) *clauses {
	return &clauses{ctx: ctx, settings: settings, stderr: stderr, known: map[[2]string]*router.Service{}}
}

// ask tells who serves mail for a channel and host; nil: that cannot be told.
func (c *clauses) ask(channel, host string) *router.Service {
	key := [2]string{channel, host}
	if s, ok := c.known[key]; ok {
		return s
	}
	if !c.tried {
		c.tried = true
		if err := c.start(); err != nil {
			c.fail(err)
		}
	}
	if c.out == nil {
		return nil
	}
	s := &router.Service{}
	_, err := fmt.Fprintf(c.in, "%s %s\n", channel, host)
	var line []byte
	if err == nil {
		line, err = c.out.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		c.fail(err)
		return nil
	}
	c.known[key] = s
	return s
}

func (c *clauses) start() error {
	path, err := beside("scheduler")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(c.ctx, path, "--print-services")
	cmd.Env = append(os.Environ(), "POSTOFFICE="+c.settings.PostOffice(), "ZCONFIG="+c.settings.File)
	cmd.Stderr = c.stderr
	if c.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd, c.out = cmd, bufio.NewReader(out)
	return nil
}

// fail says why it cannot be told; the program itself may have said more.
func (c *clauses) fail(err error) {
	c.out = nil
	fmt.Fprintf(c.stderr, "router: which clause of scheduler.conf serves them cannot be told: %v\n", err)
}

func (c *clauses) close() {
	if c.cmd == nil {
		return
	}
	c.in.Close()
	_ = c.cmd.Wait() // what it had to say it has said
}

// beside finds a program of the pipeline beside this one, else in PATH.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
