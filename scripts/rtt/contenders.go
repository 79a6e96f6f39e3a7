package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/emersion/go-smtp"

	"zmailer/test/peer"
)

// ours is this pipeline; scheduler stands above the built-in clauses.
func ours(scheduler string) func(options, string, string) (func() error, time.Time, error) {
	return func(o options, dir, sink string) (func() error, time.Time, error) {
		addr, err := peer.FreeAddr()
		if err != nil {
			return nil, time.Time{}, err
		}
		conf, po := filepath.Join(dir, "conf"), filepath.Join(dir, "postoffice")
		zmctl, err := filepath.Abs(filepath.Join(o.bin, "zmctl"))
		if err != nil {
			return nil, time.Time{}, err
		}
		if out, err := exec.Command(zmctl, "--postoffice", po, "init", "--config-dir", conf).CombinedOutput(); err != nil {
			return nil, time.Time{}, fmt.Errorf("zmctl init: %w: %s", err, out)
		}
		host, port, _ := net.SplitHostPort(sink)
		main := "POSTOFFICE=" + po + "\nHOSTNAME=bench.example\nSMTPLISTEN=" + addr + "\nLOG=text\n"
		err = errors.Join(os.WriteFile(filepath.Join(conf, "routes"), []byte(". smtp!["+host+"]:"+port+"\n"), 0o644),
			os.WriteFile(filepath.Join(conf, "zmailer.conf"), []byte(main), 0o644))
		if scheduler != "" {
			own := filepath.Join(conf, "scheduler.conf")
			b, rerr := os.ReadFile(own)
			// Above the clause for smtp: the first with a command is the last.
			text := strings.Replace(string(b), "smtp/*\nsmtpx/*\n", scheduler+"smtpx/*\n", 1)
			err = errors.Join(err, rerr, os.WriteFile(own, []byte(text), 0o644))
		}
		if err != nil {
			return nil, time.Time{}, err
		}
		return relay(o, dir, addr, exec.Command(zmctl, "--config", filepath.Join(conf, "zmailer.conf"), "run"))
	}
}

func postfix(o options, dir, sink string) (func() error, time.Time, error) {
	addr, err := peer.FreeAddr()
	if err != nil {
		return nil, time.Time{}, err
	}
	host, port, _ := net.SplitHostPort(sink)
	p := peer.Postfix{Dir: filepath.Join(dir, "postfix"), Listen: addr, RelayHost: "[" + host + "]:" + port, Log: true}
	cmd, err := p.Command()
	if err != nil {
		return nil, time.Time{}, err
	}
	return relay(o, dir, addr, cmd)
}

// relay starts a mail relay and gives it all messages.
func relay(o options, dir, addr string, cmd *exec.Cmd) (func() error, time.Time, error) {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, time.Time{}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, time.Time{}, err
	}
	stop := func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() > 0 {
			return err
		}
		return nil
	}
	begin := time.Time{}
	if err = peer.AwaitListener(addr, 20*time.Second); err == nil {
		begin = time.Now()
		body := content(o)
		src := peer.Source{Addr: addr, Connections: 20, Messages: o.messages, Reuse: true, From: "sender@bench.example",
			To:   func(n int) string { return fmt.Sprintf("n%d@sink.example", n) },
			Body: func(int) []byte { return body },
		}
		err = src.Run(context.Background())
	}
	if err != nil {
		b, _ := os.ReadFile(filepath.Join(dir, "log"))
		return nil, begin, fmt.Errorf("%w; the end of its log:\n%s", errors.Join(err, stop()), b[max(0, len(b)-2000):])
	}
	return stop, begin, nil
}

func content(o options) []byte {
	head := "From: <sender@bench.example>\r\nTo: <n@sink.example>\r\nSubject: bench\r\nMessage-ID: <1@bench.example>\r\n\r\n"
	line := []byte(strings.Repeat("x", 76) + "\r\n")
	return append([]byte(head), bytes.Repeat(line, max(1, (o.size-len(head))/len(line)))...)
}

// library is go-smtp's client: each message by itself, on as many connections as we have
// slots.
func library(o options, _, sink string) (func() error, time.Time, error) {
	begin := time.Now()
	body := content(o)
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, o.connections)
	for i := range o.connections {
		all.Go(func() {
			errs[i] = func() error {
				c, err := smtp.Dial(sink)
				if err != nil {
					return err
				}
				defer c.Close()
				for n := next.Add(1); n <= int64(o.messages); n = next.Add(1) {
					if err := one(c, n, body); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	all.Wait()
	return func() error { return nil }, begin, errors.Join(errs...)
}

func one(c *smtp.Client, n int64, body []byte) error {
	if err := c.Mail("sender@bench.example", nil); err != nil {
		return err
	}
	if err := c.Rcpt(fmt.Sprintf("n%d@sink.example", n), nil); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, bytes.NewReader(body)); err != nil {
		return err
	}
	return w.Close()
}
