package postoffice

import (
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/durable"
)

func benchPostOffice(b *testing.B) (*PostOffice, *Owner) {
	b.Helper()
	f, err := durable.NewOS(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	if err := Init(f); err != nil {
		b.Fatal(err)
	}
	p, err := Open(Config{FS: f})
	if err != nil {
		b.Fatal(err)
	}
	o, err := p.NewOwner("bench")
	if err != nil {
		b.Fatal(err)
	}
	return p, o
}

func benchSubmit(b *testing.B, p *PostOffice, text string) Accepted {
	b.Helper()
	d, err := p.NewDraft("bench")
	if err == nil {
		_, err = d.Write([]byte(text))
	}
	if err != nil {
		b.Fatal(err)
	}
	a, err := d.Commit()
	if err != nil {
		b.Fatal(err)
	}
	return a
}

// BenchmarkSubmit is a message of 4 kB from its creation to its name in router/, with
// its fsync.
func BenchmarkSubmit(b *testing.B) {
	p, _ := benchPostOffice(b)
	text := strings.Repeat("x", 4096)
	for b.Loop() {
		benchSubmit(b, p, text)
	}
}

// BenchmarkClaim is a message's way through router/: claimed, its work file made, both
// handed over, finished. Submissions are not timed.
func BenchmarkClaim(b *testing.B) {
	p, o := benchPostOffice(b)
	for b.Loop() {
		b.StopTimer()
		a := benchSubmit(b, p, "to bond\n\n")
		b.StartTimer()
		c, err := p.Claim(o, filepath.Base(a.Name))
		if err != nil {
			b.Fatal(err)
		}
		w, err := c.CreateWork()
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		name, err := c.HandOver()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Finish(name); err != nil {
			b.Fatal(err)
		}
	}
}
