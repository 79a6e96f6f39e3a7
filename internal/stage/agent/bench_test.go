package agent

import (
	"context"
	"fmt"
	"os"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// One delivery on real files: open, lock, "deliver", mark. The cost beside the
// network's.
func BenchmarkMark(b *testing.B) {
	for _, count := range []int{1, 100} {
		b.Run(fmt.Sprintf("recipients=%d", count), func(b *testing.B) {
			s := newSpool(b)
			disk, err := durable.NewOS(s.Dir)
			assert.Must(b, err)
			defer disk.Close()
			if s.agent.PostOffice, err = postoffice.Open(postoffice.Config{FS: disk}); err != nil {
				b.Fatal(err)
			}
			var rcpts []rcpt
			for i := range count {
				rcpts = append(rcpts, rcpt{"smtp", "h.example", fmt.Sprintf("u%d@h.example", i), "NOTIFY=FAILURE,DELAY ORCPT=rfc822;u@h.example"})
			}
			name := s.queue(rcpts...)
			list := s.Spec(name).Groups[0].Recipients
			blank := workspec.TagBytes(workspec.FormatOurs, workspec.TagToDo)
			f, err := os.OpenFile(s.Path(name), os.O_RDWR, 0)
			assert.Must(b, err)
			defer f.Close()
			to := give(ok)
			b.ReportAllocs()
			for b.Loop() {
				delivered := 0
				s.agent.do(b.Context(), taproto.Job{Name: name, Host: "h.example"}, to, func(l *taproto.Line) {
					if l.Answer.Word == taproto.OK3 {
						delivered++
					}
				})
				if delivered != count {
					b.Fatalf("got %d recipients delivered, want %d", delivered, count)
				}
				for i := range list {
					if _, err := f.WriteAt(blank, workspec.TagOffset(list[i].Offset)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// One message to as many hosts as jobs: what each costs beside the network's.
func BenchmarkHosts(b *testing.B) {
	for _, count := range []int{10, 30, 100, 1000, 10000} {
		b.Run(fmt.Sprintf("hosts=%d", count), func(b *testing.B) {
			s := newSpool(b)
			disk, err := durable.NewOS(s.Dir)
			assert.Must(b, err)
			defer disk.Close()
			if s.agent.PostOffice, err = postoffice.Open(postoffice.Config{FS: disk}); err != nil {
				b.Fatal(err)
			}
			var rcpts []rcpt
			for i := range count {
				rcpts = append(rcpts, rcpt{"smtp", fmt.Sprintf("h%d.example", i), fmt.Sprintf("u@h%d.example", i), "NOTIFY=FAILURE,DELAY ORCPT=rfc822;u@h.example"})
			}
			to := deliverFunc(func(_ context.Context, d *Delivery) {
				assert.NoError(b, d.Sent())
				d.Done(d.Recipients[0], ok)
			})
			b.ReportAllocs()
			b.ResetTimer()
			name := ""
			for i := range b.N {
				if i%count == 0 {
					b.StopTimer()
					name = s.queue(rcpts...)
					b.StartTimer()
				}
				delivered := 0
				s.agent.do(b.Context(), taproto.Job{Name: name, Host: rcpts[i%count].host}, to, func(l *taproto.Line) {
					if l.Answer.Word == taproto.OK3 {
						delivered++
					}
				})
				if delivered != 1 {
					b.Fatalf("got %d recipients delivered, want 1", delivered)
				}
			}
		})
	}
}
