package main

import (
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// The measurement itself works: everything that waits is read, new mail goes by it, and
// each figure is there.
func TestSmallSpoolIsMeasured(t *testing.T) {
	bin := t.TempDir()
	assert.Must(t, suite.Build(bin))
	f := assert.Get(measure(options{sizes: []int{300}, hosts: 20, levels: 1, runs: 1, fresh: 40, bin: bin, dir: t.TempDir(), listing: true}, 300))(t)
	if f.scanCPU <= 0 || f.live <= 0 || f.rss < f.live || f.each <= 0 || len(f.quiet) != 20 || len(f.listed) != 20 || f.listings == 0 {
		t.Errorf("got %+v", f)
	}
}
