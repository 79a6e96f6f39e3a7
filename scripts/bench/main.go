// Bench runs the whole pipeline as real processes between a generator and a sink on
// loopback, and prints what that cost: messages a second, latency from the 250 of a
// message to its arrival, processor time and fsyncs a message. With -postfix it runs
// Postfix in turn with us, with the same generator and sink, and prints the ratios.
//
//	go run ./scripts/bench -messages 5000 -connections 20 -runs 5 -postfix
//
// With -submission the messages come by the system's sendmail, a process for each.
//
// With -crowd 5000 so many idle and dribbling clients are connected beside the load in every
// second burst, and the ratio of the rates is printed.
//
// With -policy the systems are MX for the sink's domain, without and with 20 rules, three DNS
// lists and a policy service, and the ratio of what these cost is printed.
//
// With -peers it does so for all scenarios (rate, latency, fan-out, large messages, a
// backlog, growth) and all systems that are here: Postfix, Exim and OpenSMTPD, installed
// or unpacked below -root. docs/performance.md has the results.
//
//	go run ./scripts/bench -peers -root /tmp/peers/root -out docs/performance
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

type options struct {
	messages, connections, size, runs  int
	crowd                              int
	reuse, postfix, keep, peers        bool
	submission, policy                 bool
	from                               string // the sender
	scale, share                       float64
	bin, only, systems, out, root, top string
	stopping                           *atomic.Bool // nothing is to be started any more
}

func main() {
	o := options{from: "sender@bench.example"}
	flag.IntVar(&o.messages, "messages", 5000, "messages in a run")
	flag.IntVar(&o.connections, "connections", 20, "connections of the generator at once")
	flag.IntVar(&o.size, "size", 4096, "bytes of a message")
	flag.IntVar(&o.runs, "runs", 0, "runs of each (default 1, with -peers 5)")
	flag.BoolVar(&o.reuse, "reuse", false, "many messages on a connection of the generator")
	flag.BoolVar(&o.postfix, "postfix", false, "run Postfix in turn, if it is installed")
	flag.BoolVar(&o.submission, "submission", false, "messages come by the system's sendmail, a process each; -connections of them at once")
	flag.BoolVar(&o.keep, "keep", false, "keep the working directories")
	flag.IntVar(&o.crowd, "crowd", 0, "compare the rate with that beside so many idle and dribbling clients; -runs pairs")
	flag.BoolVar(&o.policy, "policy", false, "compare what 20 rules, three DNS lists and a policy service cost with what they cost Postfix; -runs of each, as root")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.BoolVar(&o.peers, "peers", false, "all scenarios, in turn with every other system that is here")
	flag.StringVar(&o.root, "root", os.Getenv("PEERS"), "directory where packages of Exim and OpenSMTPD are unpacked (default $PEERS)")
	flag.StringVar(&o.only, "only", "", "scenarios: rate,latency,fanout,hosts,large,backlog,growth")
	flag.StringVar(&o.systems, "systems", "", "systems: zmailer,postfix,exim,opensmtpd")
	flag.Float64Var(&o.scale, "scale", 1, "part of the messages, recipients and bytes of each scenario; for a quick look")
	flag.StringVar(&o.out, "out", "", "directory for results.json, the plots and the tables")
	flag.Parse()
	if o.runs == 0 {
		o.runs = 1
		if o.peers {
			o.runs = 5
		}
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) (err error) {
	if err := adoptOrphans(); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	if o.top, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	if err := os.Chmod(o.top, 0o755); err != nil {
		return err
	}
	if o.keep {
		fmt.Println("working directory:", o.top)
	} else {
		defer os.RemoveAll(o.top)
	}
	o.stopping = &atomic.Bool{}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() { // nothing of the systems stays behind
		<-stop
		o.stopping.Store(true)
		t := &tree{}
		for list := t.processes(); len(list) > 0; list = t.processes() {
			for _, p := range list {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		if !o.keep {
			_ = os.RemoveAll(o.top)
		}
		os.Exit(1)
	}()
	if o.share = 1; o.peers {
		o.messages = o.scaled(o.messages)
		return compare(o)
	}
	if o.policy {
		return policy(o)
	}
	if o.crowd > 0 {
		return beside(o)
	}
	return one(o)
}

// one is the rate alone, of us and perhaps Postfix.
func one(o options) error {
	list, missing := contenders(o)
	if !o.postfix {
		list = list[:1]
	} else if len(missing) > 0 {
		fmt.Println(strings.Join(missing, "; ") + ": no ratio.")
	}
	results := map[string][]values{}
	for i := range o.runs {
		for _, c := range list {
			measure := rate
			if o.submission {
				measure = submission
			}
			v, err := measure(o, c.make())
			if err != nil {
				return err
			}
			fmt.Printf("run %d %-8s %s\n", i+1, c.name, line(v))
			results[c.name] = append(results[c.name], v)
		}
	}
	fmt.Printf("\nmedians of %d runs, %d messages of %d bytes, %d connections, reuse %v\n",
		o.runs, o.messages, o.size, o.connections, o.reuse)
	for _, c := range list {
		fmt.Printf("%-10s %s\n", c.name, line(medians(results[c.name])))
	}
	if len(list) > 1 {
		mine, theirs := medians(results[list[0].name]), medians(results[list[1].name])
		fmt.Printf("ratio      delivered/s %.2f, CPU per message %.2f, p50 %.2f, p99 %.2f\n",
			mine["delivered"][0]/theirs["delivered"][0], mine["cpu"][0]/theirs["cpu"][0], mine["p50"][0]/theirs["p50"][0], mine["p99"][0]/theirs["p99"][0])
	}
	if o.submission {
		return nil
	}
	n, err := fsyncs(o, list[0].make())
	if err != nil {
		fmt.Println("fsyncs per message: not counted:", err)
		return nil
	}
	fmt.Printf("fsyncs per message: %.2f (the agent's start has some of its own)\n", n)
	return nil
}

// line returns a run of the rate in words.
func line(v values) string {
	return fmt.Sprintf("delivered %.0f/s  accepted %.0f/s  p50 %.2f ms  p99 %.2f ms  CPU %.0f µs/message  largest process %.0f MB  generator and sink %.0f µs/message",
		v["delivered"][0], v["accepted"][0], v["p50"][0], v["p99"][0], v["cpu"][0]*1000, v["peak"][0], v["driver"][0]*1000)
}

// compare runs the scenarios, the systems in turn.
func compare(o options) error {
	list, missing := contenders(o)
	for _, m := range missing {
		fmt.Println(m + ": left out.")
	}
	list = slices.DeleteFunc(list, func(c contender) bool { return !chosen(o.systems, c.name) })
	r := newReport(o, list)
	for _, s := range scenarios() {
		if !chosen(o.only, s.name) {
			continue
		}
		begin := time.Now()
		fmt.Printf("\n%s: %s\n", s.title, s.text(o))
		runs := o.runs
		if s.once {
			runs = 1
		}
		for i := range runs {
			for _, c := range list {
				o.share = c.share
				v, err := s.run(o, c.make())
				if err == nil && s.name == "rate" && i == 0 {
					err = addFsyncs(o, c, v)
				}
				if err != nil {
					// What another system cannot do is said, and does not end the rest.
					if c.name == "zmailer" {
						return err
					}
					fmt.Printf("  run %d %-10s failed: %v\n", i+1, c.name, err)
					continue
				}
				fmt.Printf("  run %d %-10s %s\n", i+1, c.name, s.line(v))
				r.add(s, o, c.name, v)
			}
			if err := r.write(o); err != nil {
				return err
			}
		}
		fmt.Print(r.ratios(s), fmt.Sprintf("  (%.0f s)\n", time.Since(begin).Seconds()))
	}
	return nil
}

func chosen(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}
