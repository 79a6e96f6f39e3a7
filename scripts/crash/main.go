// Command crash kills the real programs at each state-changing system call that they
// make under load, and prints what was lost, came twice or was left: a table of
// process, system call and object. With -errors those calls fail instead, one after the
// other, or write half. It exits 1 if anything was lost, came twice or was left, or if less
// than 95 % of the steps that strace sees were killed at. It needs root, and strace for kills.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"zmailer/test/faults"
	"zmailer/test/inject"
	"zmailer/test/kill"
)

func main() {
	inject.Main()
	var o kill.Options
	fail := flag.Bool("errors", false, "system calls fail; no program is killed")
	flag.BoolVar(&o.Quick, "quick", false, "each step once, no recoveries, not the whole system")
	flag.IntVar(&o.Lanes, "lanes", 0, "systems at the same time; 0: 6 for kills, 3 for errors")
	flag.DurationVar(&o.Limit, "limit", 4*time.Minute, "what is not reached by then is not covered")
	flag.StringVar(&o.Only, "only", "", "steps whose `text` holds this: \"router renameat\", \"EIO from router\", \"ta-smtp\"")
	keep := flag.Bool("keep", false, "leave the systems' directories")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.Out = os.Stdout
	failed, err := run(ctx, o, *fail, *keep)
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
	}
	if err != nil || failed {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o kill.Options, fail, keep bool) (failed bool, err error) {
	if o.Dir, err = os.MkdirTemp("", "crash-"); err != nil {
		return false, err
	}
	if keep {
		fmt.Fprintln(o.Out, "directory:", o.Dir)
	} else {
		defer os.RemoveAll(o.Dir)
	}
	var table interface {
		Print(w io.Writer) error
		Failed() bool
	}
	if fail {
		if o.Lanes == 0 {
			o.Lanes = 3
		}
		t, ferr := faults.Run(ctx, faults.Options{Dir: o.Dir, Out: o.Out, Quick: o.Quick, Limit: o.Limit, Only: o.Only, Lanes: o.Lanes})
		if t == nil {
			return false, ferr
		}
		table, err = t, ferr
	} else {
		if o.Lanes == 0 {
			o.Lanes = 6 // they wait more than they work
		}
		t, kerr := kill.Run(ctx, o)
		if t == nil {
			return false, kerr
		}
		table, err = t, kerr
	}
	if perr := table.Print(o.Out); err == nil {
		err = perr
	}
	// Of some kills alone the coverage says nothing.
	return table.Failed() && (fail || o.Only == ""), err
}
