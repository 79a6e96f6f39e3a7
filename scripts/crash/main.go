// Command crash kills the real programs at each state-changing system call that they
// make under load, and prints what was lost, came twice or was left: a table of
// process, system call and object. It exits 1 if anything was, or if less than 95 % of
// the steps that strace sees were killed at. It needs root and strace.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"zmailer/test/inject"
	"zmailer/test/kill"
)

func main() {
	inject.Main()
	quick := flag.Bool("quick", false, "each step once, no recoveries, not the whole system")
	lanes := flag.Int("lanes", 4, "systems that are killed at the same time")
	limit := flag.Duration("limit", 4*time.Minute, "for the kills; what is not reached by then is not covered")
	only := flag.String("only", "", "steps whose `text` holds this: \"router renameat\", \"ta-smtp\"")
	keep := flag.Bool("keep", false, "leave the systems' directories")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, kill.Options{Out: os.Stdout, Quick: *quick, Lanes: *lanes, Limit: *limit, Only: *only}, *keep)
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
	}
	if err != nil || failed {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o kill.Options, keep bool) (failed bool, err error) {
	if o.Dir, err = os.MkdirTemp("", "crash-"); err != nil {
		return false, err
	}
	if keep {
		fmt.Fprintln(o.Out, "directory:", o.Dir)
	} else {
		defer os.RemoveAll(o.Dir)
	}
	t, err := kill.Run(ctx, o)
	if t == nil {
		return false, err
	}
	if perr := t.Print(o.Out); err == nil {
		err = perr
	}
	return t.Failed() && o.Only == "", err
}
