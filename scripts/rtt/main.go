// Rtt measures how fast small messages leave for a server that is far away: a proxy on
// loopback holds every byte back for a while in each direction. It runs this pipeline in
// several ways, Postfix if it is installed, and go-smtp's client, in turn, and prints
// medians and ratios.
//
//	go build -o bin ./cmd/... && go run ./scripts/rtt -bin bin
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"zmailer/test/peer"
)

type options struct {
	messages, size, runs, connections int
	way                               time.Duration
	bin, only                         string
	curve                             bool
}

func main() {
	var o options
	flag.IntVar(&o.messages, "messages", 200, "messages in a run")
	flag.IntVar(&o.size, "size", 4096, "bytes of a message")
	flag.IntVar(&o.runs, "runs", 5, "runs of each")
	flag.IntVar(&o.connections, "connections", 20, "connections of go-smtp's client")
	flag.DurationVar(&o.way, "way", 50*time.Millisecond, "how long bytes take in one direction")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&o.only, "only", "", "those whose name has this in it")
	flag.BoolVar(&o.curve, "curve", false, "print how many arrived in each round trip")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "rtt:", err)
		os.Exit(1)
	}
}

// contender is a way to send messages.
type contender struct {
	name     string
	chunking bool // the sink offers it
	send     func(o options, dir string, sink string) (stop func() error, begin time.Time, err error)
}

func contenders() []contender {
	wide := "smtp/*\n\tmaxthr=100 maxring=200 command=\"ta-smtp --slots=100 $channel\"\n"
	list := []contender{
		{"zmailer", true, ours("")},
		{"zmailer, 100 slots", true, ours(wide)},
		{"go-smtp's client", true, library},
	}
	if _, err := exec.LookPath(peer.PostfixMaster); err != nil {
		fmt.Println("Postfix is not installed: no ratio.")
	} else {
		list = append(list, contender{"postfix", true, postfix})
	}
	return list
}

// result is one run's figures.
type result struct {
	took        time.Duration
	connections int
}

func run(o options) error {
	list := slices.DeleteFunc(contenders(), func(c contender) bool { return !strings.Contains(c.name, o.only) })
	results := map[string][]result{}
	for i := range o.runs {
		for _, c := range list {
			r, err := once(o, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Printf("run %d  %-32s %6.2f s  %d connections\n", i+1, c.name, r.took.Seconds(), r.connections)
			results[c.name] = append(results[c.name], r)
		}
	}
	fmt.Printf("\nmedians of %d runs, %d messages of %d bytes, %v in each direction\n", o.runs, o.messages, o.size, o.way)
	last := median(results[list[len(list)-1].name])
	for _, c := range list {
		m := median(results[c.name])
		fmt.Printf("%-32s %6.2f s  %6.1f round trips  %3d connections  %5.2f of %s's time\n", c.name, m.took.Seconds(),
			m.took.Seconds()/(2*o.way).Seconds(), m.connections, m.took.Seconds()/last.took.Seconds(), list[len(list)-1].name)
	}
	return nil
}

func median(list []result) result {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b result) int { return int(a.took - b.took) })
	return list[len(list)/2]
}

// once has a contender send everything and waits until it has arrived.
func once(o options, c contender) (result, error) {
	dir, err := os.MkdirTemp("", "rtt-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return result{}, err
	}
	sink := &peer.Sink{Discard: true, Chunking: c.chunking}
	if err := sink.Start(); err != nil {
		return result{}, err
	}
	defer sink.Close()
	far := &peer.Far{To: sink.Addr(), Way: o.way}
	if err := far.Start(); err != nil {
		return result{}, err
	}
	defer far.Close()
	stop, begin, err := c.send(o, dir, far.Addr())
	if err != nil {
		return result{}, err
	}
	err = sink.Wait(o.messages, 5*time.Minute)
	r := result{took: time.Since(begin)}
	if serr := stop(); err == nil {
		err = serr
	}
	_, r.connections = sink.Count()
	if o.curve {
		arrivals := make([]int, r.took/(2*o.way)+1)
		for _, m := range sink.Messages() {
			arrivals[min(max(int(m.Time.Sub(begin)/(2*o.way)), 0), len(arrivals)-1)]++
		}
		fmt.Println(arrivals)
	}
	return r, err
}
