// Scale plants a spool of many messages that wait for many hosts, runs the real
// scheduler on it, and prints what that costs: memory for each message, processor time
// of the scan at the start, of a message that comes and goes, and the latency of new
// mail while somebody lists the queue. docs/performance.md has its figures.
//
//	go run ./scripts/scale -bin bin -messages 1000,10000,100000,1000000 -hosts 10000 -dir /dev/shm
//
// The messages that wait were deferred once and are due in ten hours; new ones go to a
// sink on loopback by ta-smtp. Times of processes are user and system time, because
// other programs may use the machine.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

type options struct {
	sizes         []int
	hosts, levels int
	runs, fresh   int
	bin, dir      string
	listing, keep bool
	profile       string
}

func main() {
	var o options
	sizes := flag.String("messages", "1000,10000", "messages that wait; several `NUMBERS` with commas")
	flag.IntVar(&o.hosts, "hosts", 10000, "hosts that they wait for")
	flag.IntVar(&o.levels, "levels", 2, "levels of hash directories")
	flag.IntVar(&o.runs, "runs", 5, "starts of the scheduler for each size")
	flag.IntVar(&o.fresh, "fresh", 2000, "new messages in each run")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "directory to plant the spools in")
	flag.BoolVar(&o.listing, "listing", false, "measure new mail's latency with and without zmctl queue running")
	flag.BoolVar(&o.keep, "keep", false, "keep the spools")
	flag.StringVar(&o.profile, "perf", "", "record what follows the scan with perf into `FILE`")
	flag.Parse()
	for word := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(64)
		}
		o.sizes = append(o.sizes, n)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// figures are one start's.
type figures struct {
	scanCPU, scanWall time.Duration
	live, rss         int64         // bytes after the scan
	peak, steady      int64         // the most that was resident until then; and a moment later
	status            time.Duration // of zmctl status
	each              time.Duration // processor time of a message that comes and goes
	cycles            int64         // collections of garbage meanwhile
	marked            time.Duration // and their processor time
	quiet, listed     []time.Duration
	listings          int
}

func run(o options) error {
	var base figures
	for i, n := range o.sizes {
		f, err := measure(o, n)
		if err != nil {
			return fmt.Errorf("%d messages: %w", n, err)
		}
		if i == 0 {
			base = f
		}
		fmt.Printf("%8d messages, %d hosts, %d levels, medians of %d: scan %.1f µs CPU each, %.0f/s of wall time; "+
			"live heap %.1f MB, RSS %.1f MB; a new message %.0f µs CPU, ratio %.2f\n",
			n, o.hosts, o.levels, o.runs, f.scanCPU.Seconds()*1e6/float64(n), float64(n)/f.scanWall.Seconds(),
			float64(f.live)/1e6, float64(f.rss)/1e6, f.each.Seconds()*1e6, f.each.Seconds()/base.each.Seconds())
		if o.listing {
			fmt.Printf("%8d messages: latency of new mail p50 %v, p99 %v; with %d listings of all of it p50 %v, p99 %v, ratio of p99 %.2f\n",
				n, quantile(f.quiet, 50), quantile(f.quiet, 99), f.listings, quantile(f.listed, 50), quantile(f.listed, 99),
				quantile(f.listed, 99).Seconds()/quantile(f.quiet, 99).Seconds())
		}
	}
	return nil
}

// measure plants one spool and starts the scheduler on it several times.
func measure(o options, n int) (figures, error) {
	s, err := newSpool(o)
	if err != nil {
		return figures{}, err
	}
	defer s.remove()
	if err := s.hashDirs(); err != nil {
		return figures{}, err
	}
	// The first start begins the ledger; it would enter all that it finds.
	if _, err := s.once(0); err != nil {
		return figures{}, err
	}
	began := time.Now()
	if err := s.plant(n); err != nil {
		return figures{}, err
	}
	fmt.Printf("%8d messages planted in %v\n", n, time.Since(began).Round(time.Millisecond))
	var list []figures
	for range o.runs {
		f, err := s.once(n)
		if err != nil {
			return figures{}, err
		}
		fmt.Printf("         run: scan %v CPU, %v wall; live heap %.1f MB, RSS %.1f MB, at most %.1f MB before, %.1f MB in the end; zmctl status %v; a new message %v CPU, of which %d collections of garbage are %v\n",
			f.scanCPU.Round(time.Millisecond), f.scanWall.Round(time.Millisecond), float64(f.live)/1e6, float64(f.rss)/1e6, float64(f.peak)/1e6, float64(f.steady)/1e6,
			f.status.Round(time.Millisecond), f.each, f.cycles, (f.marked / time.Duration(o.fresh)).Round(time.Microsecond))
		list = append(list, f)
	}
	pick := func(value func(f figures) int64) int64 {
		v := make([]int64, len(list))
		for i, f := range list {
			v[i] = value(f)
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	all := figures{
		scanCPU:  time.Duration(pick(func(f figures) int64 { return int64(f.scanCPU) })),
		scanWall: time.Duration(pick(func(f figures) int64 { return int64(f.scanWall) })),
		each:     time.Duration(pick(func(f figures) int64 { return int64(f.each) })),
		live:     pick(func(f figures) int64 { return f.live }), rss: pick(func(f figures) int64 { return f.rss }),
	}
	for _, f := range list {
		all.quiet, all.listed, all.listings = append(all.quiet, f.quiet...), append(all.listed, f.listed...), all.listings+f.listings
	}
	return all, nil
}

func quantile(list []time.Duration, percent int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[min(len(list)-1, len(list)*percent/100)].Round(10 * time.Microsecond)
}
