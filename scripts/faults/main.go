// Command faults has the system calls of the real programs fail under load, one after
// the other: an error instead of the call, or half a write. It prints what was lost,
// came twice or was left: a table of process, system call and object. It exits 1 if
// anything was. It needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"zmailer/test/faults"
	"zmailer/test/inject"
)

func main() {
	inject.Main()
	quick := flag.Bool("quick", false, "one fault for each step, another kind with each")
	lanes := flag.Int("lanes", 2, "systems that have faults at the same time")
	limit := flag.Duration("limit", 4*time.Minute, "for the faults; what is not reached by then is not tried")
	only := flag.String("only", "", "faults whose `text` holds this: \"EIO from router\", \"ta-smtp\"")
	keep := flag.Bool("keep", false, "leave the systems' directories")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, faults.Options{Out: os.Stdout, Quick: *quick, Limit: *limit, Only: *only, Lanes: *lanes}, *keep)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
	}
	if err != nil || failed {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o faults.Options, keep bool) (failed bool, err error) {
	if o.Dir, err = os.MkdirTemp("", "faults-"); err != nil {
		return false, err
	}
	if keep {
		fmt.Fprintln(o.Out, "directory:", o.Dir)
	} else {
		defer os.RemoveAll(o.Dir)
	}
	t, err := faults.Run(ctx, o)
	if t == nil {
		return false, err
	}
	if perr := t.Print(o.Out); err == nil {
		err = perr
	}
	return t.Failed(), err
}
