package postoffice

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// BenchmarkSubmit is a message of 4 kB from its creation to its name in router/, with
// its fsync.
func BenchmarkSubmit(b *testing.B) {
	p, _ := newPostOffice(b, 0)
	text := strings.Repeat("x", 4096)
	for b.Loop() {
		submit(b, p, text)
	}
}

// TestSubmittingAllocatesLittle: the file, its names and what the system calls want of
// them.
func TestSubmittingAllocatesLittle(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	text := []byte(strings.Repeat("x", 4096))
	got := testing.AllocsPerRun(100, func() {
		d, err := p.Submissions.NewDraft("test")
		if err == nil {
			_, err = d.Write(text)
		}
		if err == nil {
			_, err = d.Commit()
		}
		assert.Must(t, err)
	})
	if got > 10 {
		t.Errorf("%v allocations for a message, at most 10 are to be", got)
	}
}

// BenchmarkSubmitTogether is BenchmarkSubmit by so many at once; run it in a file system
// with a journal (TMPDIR). Each as a session does it, and with a fsync for each.
func BenchmarkSubmitTogether(b *testing.B) {
	for _, writers := range []int{1, 4, 20, 100} {
		for _, how := range []string{"shared", "each"} {
			b.Run(fmt.Sprint(writers, "/", how), func(b *testing.B) {
				p, _ := newPostOffice(b, 0)
				if how == "each" {
					p.group = nil
				} else if p.group == nil {
					b.Skip("no journal here")
				}
				text := strings.Repeat("x", 4096)
				b.SetParallelism(max(1, writers/runtime.GOMAXPROCS(0)))
				if writers == 1 {
					b.SetParallelism(1)
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						a := submit(b, p, text)
						assert.Must(b, p.fs.Remove(a.Name))
					}
				})
			})
		}
	}
}

// BenchmarkClaim is a message's way through router/: claimed, its work file made, both
// handed over, finished. Submissions are not timed.
func BenchmarkClaim(b *testing.B) {
	p, _ := newPostOffice(b, 0)
	o := assert.Get(p.Owners.Take("bench"))(b)
	for b.Loop() {
		b.StopTimer()
		a := submit(b, p, "to bond\n\n")
		b.StartTimer()
		c := assert.Get(p.Router.Claim(o, filepath.Base(a.Name)))(b)
		w := assert.Get(c.CreateWork())(b)
		assert.Must(b, w.Close())
		name := assert.Get(c.HandOver())(b)
		assert.Must(b, p.Queue.Finish(name))
	}
}
