package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// child is zmctl, as it is started to know the postoffice and to give orders.
type child struct {
	path string
	args []string
}

// newChild finds zmctl beside this program or in PATH.
func newChild(conf, dir string, write bool) (*child, error) {
	self, err := os.Executable()
	path := ""
	if err == nil {
		path, err = exec.LookPath(filepath.Join(filepath.Dir(self), "zmctl"))
	}
	if err != nil {
		path, err = exec.LookPath("zmctl")
	}
	if err != nil {
		return nil, fmt.Errorf("find the program zmctl: it is neither beside %s nor in PATH", self)
	}
	// An empty file is the built-in configuration, also where the machine has one.
	c := &child{path: path, args: []string{"--postoffice=" + dir, "--config=" + conf, "web-desk"}}
	if write {
		c.args = append(c.args, "--write")
	}
	return c, nil
}

// pipes are what the child is spoken to by.
type pipes struct {
	out *os.File
	io.WriteCloser
}

func (p pipes) Read(b []byte) (int, error) { return p.out.Read(b) }

// CloseRead implements what desk.Client closes at the end of the answers.
func (p pipes) CloseRead() error { return p.out.Close() }

// start starts it. It ends when its input does, after the orders that it is giving.
func (c *child) start() (io.ReadWriteCloser, error) {
	cmd := exec.Command(c.path, c.args...)
	cmd.Stderr = os.Stderr
	// Ctrl-C is for this process: pages that are being made still need the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, err)
	}
	// Not cmd.StdoutPipe: Wait would close it before the last answer is read.
	out, said, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, errors.Join(err, in.Close()))
	}
	cmd.Stdout = said
	err = cmd.Start()
	_ = said.Close() // the child has its own
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, errors.Join(err, in.Close(), out.Close()))
	}
	go func() {
		_ = cmd.Wait() // its end is seen by that of its answers; it says why itself
		_ = in.Close()
	}()
	return pipes{out, in}, nil
}
