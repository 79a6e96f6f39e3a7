// Costs counts what a message costs each process of the pipeline: system calls by name,
// context switches, processor time, bytes written, memory, and with -allocs what Go
// allocates. It prints a Markdown table for each process; with -before, two columns.
//
//	go run ./scripts/costs -bin bin -before /tmp/old -messages 2000 -allocs
//
// The pipeline runs as scripts/bench runs it, between a generator and a sink on
// loopback. The kernel writes a record for each call and switch into memory that this
// program reads (perf_event_open, tracepoints raw_syscalls:sys_exit and
// sched:sched_switch, inherited by all that the first process starts, so that agents
// that start later are counted too): the programs run at their natural speed. Where that
// is not allowed (not root, no tracefs) strace counts, and the head of the table says so:
// then calls that depend on time (nanosleep, futex, epoll_pwait) are other ones.
//
// Allocations are counted in a run of their own, by probes on the functions of Go's
// runtime that allocate (tracefs, uprobe_events): the programs need not be built for it.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
)

type options struct {
	messages, connections, size, runs int
	reuse, allocs, strace, keep       bool
	bin, before                       string
	env                               list
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return fmt.Sprint(*l) }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func main() {
	runtime.LockOSThread()
	var o options
	flag.IntVar(&o.messages, "messages", 2000, "messages that are counted, after some that warm up")
	flag.IntVar(&o.connections, "connections", 20, "connections of the generator at once")
	flag.IntVar(&o.size, "size", 4096, "bytes of a message")
	flag.IntVar(&o.runs, "runs", 1, "runs of each; the table has their means")
	flag.BoolVar(&o.reuse, "reuse", false, "many messages on a connection of the generator")
	flag.BoolVar(&o.allocs, "allocs", false, "count allocations too, in runs of their own")
	flag.BoolVar(&o.strace, "strace", false, "count system calls with strace")
	flag.BoolVar(&o.keep, "keep", false, "keep the working directories")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&o.before, "before", "", "directory of other programs, to be compared with")
	flag.Var(&o.env, "env", "`NAME=VALUE` in the environment of the programs in -bin; may be repeated")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "costs:", err)
		os.Exit(1)
	}
}

// run counts each set of programs in turn.
func run(o options) error {
	sets := []set{{name: "after", bin: o.bin, env: o.env}}
	if o.before != "" {
		sets = []set{{name: "before", bin: o.before}, {name: "after", bin: o.bin, env: o.env}}
	} else {
		sets[0].name = "a message"
	}
	how := "counted by the kernel's tracepoints"
	if !o.strace {
		if err := traceable(); err != nil {
			fmt.Fprintln(os.Stderr, "costs: counting with strace, which slows the programs down:", err)
			o.strace = true
		}
	}
	if o.strace {
		how = "counted by strace, which slows the programs down"
	}
	for range o.runs {
		for i := range sets {
			if err := sets[i].measure(o, false); err != nil {
				return fmt.Errorf("%s: %w", sets[i].bin, err)
			}
		}
	}
	if o.allocs {
		for i := range sets {
			if err := sets[i].measure(o, true); err != nil {
				return fmt.Errorf("allocations of %s: %w", sets[i].bin, err)
			}
		}
	}
	fmt.Printf("%d messages of %d bytes, %d connections, reuse %v, %d runs, %d processors; system calls %s.\n",
		o.messages, o.size, o.connections, o.reuse, o.runs, runtime.NumCPU(), how)
	printAll(os.Stdout, sets)
	return nil
}
