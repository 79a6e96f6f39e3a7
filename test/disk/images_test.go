package disk

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/disk/blockdev"
)

// eachFS runs a test on each file system that was asked for, beside other tests: they wait
// more than they compute.
func eachFS(t *testing.T, test func(t *testing.T, fs blockdev.FileSystem)) {
	t.Helper()
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	t.Parallel()
	for _, fs := range blockdev.FileSystems() {
		if slices.Contains(strings.Split(*only, ","), fs.Name) {
			t.Run(fs.Name, func(t *testing.T) {
				t.Parallel()
				test(t, fs)
			})
		}
	}
}

// site makes a site that ends with the test.
func site(t *testing.T, fs blockdev.FileSystem) *Site {
	t.Helper()
	s, err := New(filepath.Join(work, strings.ReplaceAll(t.Name(), "/", "-")), bin, fs)
	assert.Must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the site: %v", err)
		}
	})
	return s
}

// record runs a site under load.
func record(t *testing.T, s *Site, rounds int) *Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r := assert.Get(s.Record(ctx, rounds))(t)
	t.Cleanup(func() { r.Log.Close() })
	return r
}

// choose chooses losses of power of a run, each behind one flush and before or at the next
// one: behind every flush of the load, and from the start again if there are fewer.
func choose(r *Run, n int, seed uint64, ways ...blockdev.Way) []blockdev.Cut {
	random := rand.New(rand.NewPCG(seed, 1))
	flushes := append(r.Log.Flushes(r.Begin, r.End), r.End)
	order := random.Perm(len(flushes) - 1)
	cuts := make([]blockdev.Cut, n)
	for i := range cuts {
		k := order[i%len(order)]
		at := flushes[k] + 1 + random.IntN(flushes[k+1]-flushes[k])
		cuts[i] = blockdev.Cut{At: at, Way: ways[i%len(ways)], Seed: random.Uint64()}
	}
	slices.SortFunc(cuts, func(a, b blockdev.Cut) int { return a.At - b.At })
	return cuts
}

// perRun is how many losses of power are tried on the log of one run.
const perRun = 100

// Nothing that was answered is lost with the power, whatever the disk has of the writes
// after the last flush; nothing comes twice that was on the disk; no one gets another's
// bytes. -images says how many losses are tried.
func TestLossOfPowerKeepsAnsweredMail(t *testing.T) {
	eachFS(t, func(t *testing.T, fs blockdev.FileSystem) {
		for run := 0; run*perRun < *images; run++ {
			s := site(t, fs)
			r := record(t, s, 3)
			number := min(perRun, *images-run*perRun)
			cuts := choose(r, number, *seed+uint64(run), blockdev.Subset, blockdev.None, blockdev.Subset, blockdev.All, blockdev.Subset, blockdev.Prefix)
			repeated, begin := 0, time.Now()
			b := blockdev.NewBuilder(r.Log)
			for _, c := range cuts {
				v, err := r.Judge(t.Context(), b, c)
				if err != nil {
					t.Fatalf("%v: %v", v, err)
				}
				repeated += v.Repeated
				if v.Bad() {
					t.Errorf("%v\n%s", v, v.Log)
				}
			}
			t.Logf("run %d: %d messages, %d operations, %d flushes under load; %d losses of power, %d copies repeated, %v for each loss",
				run, len(r.tries), len(r.Log.Records), len(r.Log.Flushes(r.Begin, r.End)), len(cuts), repeated, time.Since(begin)/time.Duration(len(cuts)))
			assert.Must(t, s.Close())
		}
	})
}
