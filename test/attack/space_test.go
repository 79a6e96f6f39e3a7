package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// Atk5: eight clients send messages without end to a disk of 300 MB, which is full in three
// seconds, and go on, or go on with a byte a second. Own mail is accepted soon all the
// time, other hosts' too (see ownLimit), and no unfinished file stays.
func TestAtk5EndlessMessages(t *testing.T) {
	need(t)
	const (
		clients, diskSize = 8, 300 << 20
		most              = 120 << 20 // of a message, then the client begins again
		duration          = 8 * time.Second
	)
	for name, slow := range map[string]bool{"fast": false, "slow when the disk is full": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			openUp(t, dir)
			disk := filepath.Join(dir, "disk")
			assert.Must(t, os.Mkdir(disk, 0o755))
			if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", diskSize)); err != nil {
				t.Skip("no tmpfs can be mounted: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
			var submission string
			w := prepareIn(t, disk, asDaemon, func(w *world) { submission = w.crowded() })
			w.start()
			rcpt := w.bob.name + "@mta.example"
			own := func() error { return mail(exemptAddr, w.s.SMTPAddr, "", rcpt) }
			calm := w.calm(own)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var attackers sync.WaitGroup
			var sent, messages atomic.Int64
			block := bytes.Repeat([]byte("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n"), 4<<10)
			for i := range clients {
				attackers.Go(func() {
					for ctx.Err() == nil {
						messages.Add(1)
						endless(ctx, fmt.Sprintf("127.77.0.%d", i+1), w.s.SMTPAddr, rcpt, func(n int64) []byte {
							switch {
							case n > most:
								return nil
							case slow && n > diskSize/clients:
								<-time.After(time.Second)
								return block[:1]
							}
							// The disk is what is scarce here, not the processor.
							<-time.After(20 * time.Millisecond)
							sent.Add(int64(len(block)))
							return block
						})
						<-time.After(rand.N(100 * time.Millisecond))
					}
				})
			}
			least, sampled := int64(diskSize), make(chan struct{})
			go func() {
				defer close(sampled)
				for ctx.Err() == nil {
					var s unix.Statfs_t
					if unix.Statfs(disk, &s) == nil {
						least = min(least, int64(s.Bavail)*s.Bsize)
					}
					<-time.After(20 * time.Millisecond)
				}
			}()
			w.event("storage-trouble")

			login := base64.StdEncoding.EncodeToString([]byte("\x00" + aliceName + "\x00secret"))
			var slowest [3]time.Duration
			var sentOwn [3]int
			tries := 0
			var all sync.WaitGroup
			until := time.Now().Add(duration)
			for i, c := range []struct{ from, to, login string }{
				{exemptAddr, w.s.SMTPAddr, ""}, {userAddr, submission, login}, {strangerAddr, w.s.SMTPAddr, ""},
			} {
				all.Go(func() {
					for time.Now().Before(until) {
						began := time.Now()
						err := mail(c.from, c.to, c.login, rcpt)
						for err != nil && i == 2 && time.Since(began) < patience {
							tries++
							<-time.After(500 * time.Millisecond)
							err = mail(c.from, c.to, c.login, rcpt)
						}
						if err != nil {
							t.Errorf("mail from %s: %v", c.from, err)
						}
						slowest[i] = max(slowest[i], time.Since(began))
						sentOwn[i]++
						<-time.After(100 * time.Millisecond)
					}
				})
			}
			all.Wait()
			cancel()
			attackers.Wait()
			<-sampled
			t.Logf("slowest of %d from LIMITSEXEMPT %v, of %d from a user %v, of %d from a stranger %v after %d refusals; %d messages of %d MB together; least free %.1f MB",
				sentOwn[0], slowest[0], sentOwn[1], slowest[1], sentOwn[2], slowest[2], tries, messages.Load(), sent.Load()>>20, float64(least)/(1<<20))
			calm = max(calm, w.calm(own))
			for i, usual := range []time.Duration{ownLimit, ownLimit, strangersLimit} {
				if most := longest(usual, calm); slowest[i] > most {
					t.Errorf("slowest: %v, want at most %v of the client %d; %v without an attack", slowest, most, i, calm)
				}
			}
			if least > diskSize/10 {
				t.Errorf("%d bytes were free all the time: the disk was not filled", least)
			}
			w.submit(w.alice, rcpt)
			w.delivered()
			w.await("end of the unfinished files", func() bool {
				names, err := os.ReadDir(w.po("public"))
				return err == nil && len(names) == 0
			})
		})
	}
}

// endless sends one message: what next returns for the bytes that were sent, nil being the end
// of the connection.
func endless(ctx context.Context, from, to, rcpt string, next func(sent int64) []byte) {
	s, err := dialFrom(from, to)
	if err != nil {
		return
	}
	defer s.conn.Close()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	if s.expect("220") != nil {
		return
	}
	for _, step := range [][2]string{{"EHLO x.example", "250"}, {"MAIL FROM:<x@x.example>", "250"}, {"RCPT TO:<" + rcpt + ">", "250"}, {"DATA", "354"}} {
		if s.say(step[0], step[1]) != nil {
			return
		}
	}
	_ = s.conn.SetDeadline(time.Time{})
	for sent := int64(0); ctx.Err() == nil; {
		b := next(sent)
		if b == nil {
			return
		}
		n, err := s.conn.Write(b)
		if err != nil {
			return
		}
		sent += int64(n)
	}
}
