// Package export follows a postoffice and sends the trace of each message that has ended
// to a collector of OpenTelemetry. What ends it hears from zmctl events, what became of it
// from zmctl trace: it reads no file of the postoffice itself.
//
// What survives a crash: nothing. What waits to be sent is in memory; a message that ended
// while nobody followed is not sent, and zmctl trace --otlp tells it still.
//
// Diagnostics: Run fails if zmctl cannot be started, or says that it never can (Unusable).
// A collector that does not answer is logged, once until it does, and asked again.
package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"os/exec"
	"syscall"
	"time"
)

// Bounds of what is held and how often things are done.
const (
	gather    = time.Second // messages that end within it are asked about together; the log has caught up after it
	batchMost = 100         // messages in a request
	heldMost  = 200         // requests that wait for a collector; then the oldest is dropped
	firstWait = time.Second // until a collector that has failed is asked again; doubled each time
	lastWait  = time.Minute
	longest   = 64 << 10    // line of zmctl events; that of a message's end is short
	mostWait  = time.Hour   // that a collector may ask for
	again     = time.Second // until zmctl events is started again
)

// Exporter sends traces. Zmctl is the program with its global arguments.
type Exporter struct {
	Zmctl     []string
	Endpoint  string
	Header    http.Header
	Client    *http.Client
	Percent   int  // of the messages, by their spool ID
	Addresses bool // senders, recipients and answers, too
	Log       *slog.Logger

	held    [][]byte
	dropped int
	failing bool
	wait    time.Duration
}

// Unusable is the exit code of zmctl with which nothing can go on.
type Unusable int

func (u Unusable) Error() string { return fmt.Sprintf("zmctl events ended with exit code %d", int(u)) }

// Run follows until ctx is done; what has ended until then is sent.
func (e *Exporter) Run(ctx context.Context) error {
	ended := make(chan string, 10*batchMost)
	failed := make(chan error, 1)
	go func() { failed <- e.follow(ctx, ended) }()
	batch := newTimer()
	retry := newTimer()
	defer batch.Stop()
	defer retry.Stop()
	var ids []string
	for {
		select {
		case id := <-ended:
			if ids = append(ids, id); len(ids) == 1 {
				batch.Reset(gather)
			}
			if len(ids) < batchMost {
				continue
			}
			// That they ended just now and their lines are not in the log yet: wait all the same.
			select {
			case <-batch.C:
			case <-ctx.Done():
			}
		case <-batch.C:
		case <-retry.C:
			e.sendHeld(ctx, retry)
			continue
		case err := <-failed:
			if ctx.Err() == nil {
				return err
			}
			for len(ended) > 0 {
				ids = append(ids, <-ended)
			}
			e.last(ctx, ids)
			return nil
		}
		if e.tell(ctx, ids) {
			ids = nil
		}
		if e.wait == 0 { // else retry will
			e.sendHeld(ctx, retry)
		}
	}
}

// newTimer is a timer that does not run.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// last sends what has ended at the end, once.
func (e *Exporter) last(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	told := e.tell(ctx, ids)
	e.sendHeld(ctx, nil)
	n := len(e.held)
	if !told {
		n++
	}
	if n > 0 {
		e.Log.Warn("export-dropped", "requests", n, "reason", "the end of the program")
	}
}

// follow gives the spool IDs of messages that end.
func (e *Exporter) follow(ctx context.Context, ended chan<- string) error {
	for {
		err := e.events(ctx, ended)
		if ctx.Err() != nil {
			return nil
		}
		var exit *exec.ExitError
		switch {
		case err != nil && !errors.As(err, &exit):
			return err
		case exit != nil && (exit.ExitCode() == 64 || exit.ExitCode() == 71 || exit.ExitCode() == 78):
			return Unusable(exit.ExitCode())
		}
		e.Log.Warn("export-trouble", "reason", fmt.Sprintf("zmctl events ended (%v) and is started again", err))
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil
		}
	}
}

// events runs zmctl events once.
func (e *Exporter) events(ctx context.Context, ended chan<- string) error {
	cmd := e.command(ctx, "events", "--follow", "--json")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", e.Zmctl[0], err)
	}
	in := bufio.NewReaderSize(out, longest)
	for whole := true; ; {
		// What is longer tells of something else; it is read to its end.
		line, err := in.ReadSlice('\n')
		if whole && err == nil {
			e.heard(line, ended)
		}
		if whole = err == nil; err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return cmd.Wait()
		}
	}
}

// heard takes a line of zmctl events.
func (e *Exporter) heard(line []byte, ended chan<- string) {
	var h struct{ Event, By, ID string }
	if json.Unmarshal(line, &h) == nil && h.Event == "finished" && h.By == "ledger" && e.chosen(h.ID) {
		ended <- h.ID // Run takes it until follow has ended
	}
}

// command is zmctl; it is asked to end when ctx is done.
func (e *Exporter) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.Zmctl[0], append(append([]string{}, e.Zmctl[1:]...), args...)...)
	// Ctrl-C is for us: what is being told still needs it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// chosen takes a part of the messages; a message and those that were looked at before are
// always taken or always left.
func (e *Exporter) chosen(id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // it never fails
	return int(h.Sum32()%100) < e.Percent
}

// tell has a request made for messages, and keeps it. It tells whether it could; if not,
// ctx is done.
func (e *Exporter) tell(ctx context.Context, ids []string) bool {
	if len(ids) == 0 {
		return true
	}
	args := []string{"trace", "--otlp"}
	if !e.Addresses {
		args = append(args, "--no-addresses")
	}
	var out, said bytes.Buffer
	cmd := e.command(ctx, append(args, ids...)...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return false
		}
		e.Log.Warn("export-trouble", "reason", fmt.Sprintf("zmctl trace: %v: %s", err, bytes.TrimSpace(said.Bytes())))
	}
	if out.Len() == 0 {
		return true
	}
	if e.held = append(e.held, out.Bytes()); len(e.held) > heldMost {
		e.held = e.held[1:]
		e.dropped++
	}
	return true
}
