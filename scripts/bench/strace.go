package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// fsyncs runs a small load with strace on all processes of a system and counts fsync and
// fdatasync.
func fsyncs(o options, s system) (float64, error) {
	if _, err := exec.LookPath("strace"); err != nil {
		return 0, err
	}
	o.messages = 200
	w, err := open(o, s, nil)
	if err != nil {
		return 0, err
	}
	trace := filepath.Join(w.dir, "trace")
	tracer := exec.Command("strace", "-f", "-o", trace, "-e", "trace=fsync,fdatasync,sync_file_range,sync")
	err = w.attach(tracer)
	if err == nil {
		_, err = w.burst(o.messages, o.connections, o.size)
	}
	if tracer.Process != nil {
		_ = tracer.Process.Signal(os.Interrupt)
		_ = tracer.Wait() // it ends by our signal
	}
	b, rerr := os.ReadFile(trace)
	if _, err = w.close(errors.Join(err, rerr)); err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "sync(") || strings.Contains(line, "sync_file_range(") {
			n++
		}
	}
	return float64(n) / float64(o.messages), nil
}

// addFsyncs adds them to a run's values.
func addFsyncs(o options, c contender, v values) error {
	n, err := fsyncs(o, c.make())
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Println("  strace is not here: fsyncs are not counted")
		return nil
	}
	v["fsyncs"] = []float64{n}
	return err
}

// attach starts a tracer on all processes and waits until it has them: it says so of
// each thread.
func (w *world) attach(tracer *exec.Cmd) error {
	list := w.processes()
	for _, p := range list {
		tracer.Args = append(tracer.Args, "-p", strconv.Itoa(p.pid))
	}
	said, err := tracer.StderrPipe()
	if err != nil {
		return err
	}
	if err := w.begin(tracer); err != nil {
		return err
	}
	lines := bufio.NewScanner(said)
	for n := 0; n < len(list) && lines.Scan(); {
		if strings.Contains(lines.Text(), " attached") {
			n++
		}
	}
	go func() {
		for lines.Scan() { // so that it never waits for us
		}
	}()
	return lines.Err()
}
