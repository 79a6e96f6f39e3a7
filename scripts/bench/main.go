// Bench runs the whole pipeline as real processes between a generator and a sink on
// loopback, and prints what that cost: messages a second, latency from the 250 of a
// message to its arrival, processor time and fsyncs a message. With -postfix it runs
// Postfix in turn with us, with the same generator and sink, and prints the ratios.
//
//	go run ./scripts/bench -messages 5000 -connections 20 -runs 5 -postfix
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"zmailer/test/peer"
)

type options struct {
	messages, connections, size, runs int
	reuse, postfix, keep              bool
	bin                               string
}

func main() {
	var o options
	flag.IntVar(&o.messages, "messages", 5000, "messages in a run")
	flag.IntVar(&o.connections, "connections", 20, "connections of the generator at once")
	flag.IntVar(&o.size, "size", 4096, "bytes of a message")
	flag.IntVar(&o.runs, "runs", 1, "runs of each")
	flag.BoolVar(&o.reuse, "reuse", false, "many messages on a connection of the generator")
	flag.BoolVar(&o.postfix, "postfix", false, "run Postfix in turn, if it is installed")
	flag.BoolVar(&o.keep, "keep", false, "keep the working directory")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if err := adoptOrphans(); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	systems := []system{&ours{bin: o.bin}}
	if o.postfix {
		if _, err := exec.LookPath(peer.PostfixMaster); err != nil {
			fmt.Println("Postfix is not installed: no ratio.")
		} else {
			systems = append(systems, &postfix{})
		}
	}
	results := map[string][]result{}
	for i := range o.runs {
		for _, s := range systems {
			r, err := once(o, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
			fmt.Printf("run %d %-8s %s\n", i+1, s.name(), r)
			results[s.name()] = append(results[s.name()], r)
		}
	}
	fmt.Printf("\nmedians of %d runs, %d messages of %d bytes, %d connections, reuse %v\n",
		o.runs, o.messages, o.size, o.connections, o.reuse)
	mine := median(results[systems[0].name()])
	fmt.Printf("%-10s %s\n", systems[0].name(), mine)
	if len(systems) > 1 {
		theirs := median(results[systems[1].name()])
		fmt.Printf("%-10s %s\n", systems[1].name(), theirs)
		fmt.Printf("ratio      delivered/s %.2f, CPU per message %.2f, p50 %.2f, p99 %.2f\n",
			mine.rate/theirs.rate, mine.cpu.Seconds()/theirs.cpu.Seconds(),
			mine.p50.Seconds()/theirs.p50.Seconds(), mine.p99.Seconds()/theirs.p99.Seconds())
	}
	n, err := fsyncs(o)
	if err != nil {
		fmt.Println("fsyncs per message: not counted:", err)
		return nil
	}
	fmt.Printf("fsyncs per message: %.2f (the agent's start has some of its own)\n", n)
	return nil
}

// result is one run's figures.
type result struct {
	rate     float64       // delivered messages a second, from the first connection on
	accepted float64       // accepted a second
	p50, p99 time.Duration // from the 250 to the sink
	cpu      time.Duration // processor time of all processes of the system, per message
	rss      int64         // largest process, bytes
}

func (r result) String() string {
	return fmt.Sprintf("delivered %.0f/s  accepted %.0f/s  p50 %v  p99 %v  CPU %v/message  largest process %d MB",
		r.rate, r.accepted, r.p50.Round(10*time.Microsecond), r.p99.Round(10*time.Microsecond), r.cpu.Round(time.Microsecond), r.rss>>20)
}

// median takes each figure's median on its own.
func median(list []result) result {
	pick := func(value func(r result) float64) float64 {
		v := make([]float64, len(list))
		for i, r := range list {
			v[i] = value(r)
		}
		sort.Float64s(v)
		return v[len(v)/2]
	}
	return result{
		rate:     pick(func(r result) float64 { return r.rate }),
		accepted: pick(func(r result) float64 { return r.accepted }),
		p50:      time.Duration(pick(func(r result) float64 { return float64(r.p50) })),
		p99:      time.Duration(pick(func(r result) float64 { return float64(r.p99) })),
		cpu:      time.Duration(pick(func(r result) float64 { return float64(r.cpu) })),
		rss:      int64(pick(func(r result) float64 { return float64(r.rss) })),
	}
}

// fsyncs runs a small load with strace on all our processes and counts fsync and
// fdatasync.
func fsyncs(o options) (float64, error) {
	if _, err := exec.LookPath("strace"); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "bench-strace-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	o.messages = 200
	trace := filepath.Join(dir, "trace")
	tracer := exec.Command("strace", "-f", "-o", trace, "-e", "trace=fsync,fdatasync")
	counted := &ours{bin: o.bin}
	counted.begin = func() error { return attach(tracer, counted.cmd.Process.Pid) }
	_, err = once(o, counted)
	if tracer.Process != nil {
		// It ended with what it traced; else it is told to.
		_ = tracer.Process.Signal(os.Interrupt)
		_ = tracer.Wait()
	}
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "sync(") {
			n++
		}
	}
	return float64(n) / float64(o.messages), nil
}

// attach starts a tracer on a process and its descendants and waits until it has
// them: it says so of each thread.
func attach(tracer *exec.Cmd, root int) error {
	pids, threads, err := descendants(root)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		tracer.Args = append(tracer.Args, "-p", strconv.Itoa(pid))
	}
	said, err := tracer.StderrPipe()
	if err != nil {
		return err
	}
	if err := tracer.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(said)
	for n := 0; n < threads && lines.Scan(); {
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

// descendants lists a process with its children and theirs. lines is how many lines
// strace says when it has them: one for each process.
func descendants(root int) (pids []int, lines int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, 0, err
	}
	children := map[int][]int{}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var pid, parent int
		var state string
		_, rest, _ := strings.Cut(string(b), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			continue
		}
		if pid, err = strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	for list := []int{root}; len(list) > 0; list = list[1:] {
		pids = append(pids, list[0])
		list = append(list, children[list[0]]...)
	}
	return pids, len(pids), nil
}

var background = context.Background()
