package attack

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/suite"
)

var recipients = flag.Int("recipients", 2000, "recipients that each of 400 connections names (make soak: 10000)")

// Atk1: 400 connections, all at once, name many recipients each, with the longest ORCPT, while
// all their transactions stay open. smtpserver's memory stays small, and a client of this machine is
// answered beside them. When the connections end nothing of the recipients is left.
func TestAtk1RecipientsOfManySessions(t *testing.T) {
	need(t)
	const (
		addresses, perAddress = 8, 50
		batch                 = 100 // pipelined
		mostMemory            = 200 << 20
	)
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max < 2000 {
		t.Skipf("400 connections need more open files than %d", files.Max)
	}
	w := begin(t, asDaemon, func(w *world) {
		w.s.Settings["RELAYNETS"] = "127.0.0.0/8"
		w.s.Settings["LIMITSEXEMPT"] = "127.0.0.1/32"
		w.s.Settings["SMTPCONNECTIONS"] = "1000" // places are not what is scarce here
	})
	server := w.smtpserver()
	greet := func() error { w.greet(); return nil }
	calm := w.calm(greet)
	rounds := *recipients / batch
	name := "RCPT TO:<r@far.example> ORCPT=rfc822;" + strings.Repeat("x", 500-len("rfc822;")) + "\r\n"
	names := []byte(strings.Repeat(name, batch))

	var taken atomic.Int64
	var attacking sync.WaitGroup
	var conns []net.Conn
	for i := range addresses * perAddress {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i/perAddress))}}
		c, err := d.Dial("tcp", w.s.SMTPAddr)
		w.must(err)
		defer c.Close()
		conns = append(conns, c)
		attacking.Go(func() {
			in := bufio.NewReader(c)
			send, want := []byte("EHLO far.example\r\nMAIL FROM:<x@far.example>\r\n"), "250 2.1.0 "
			for round := range rounds + 1 {
				_, err := c.Write(send)
				for n := 0; err == nil && n < batch; {
					var line []byte
					if line, err = in.ReadSlice('\n'); err != nil {
						break
					}
					if bytes.HasPrefix(line, []byte(want)) {
						n++
						if round == 0 {
							break
						}
						taken.Add(1)
					} else if line[0] != '2' {
						err = fmt.Errorf("reply %q", line)
					}
				}
				if err != nil {
					t.Errorf("connection %d, batch %d: %v", i, round, err)
					return
				}
				send, want = names, "250 2.1.5 "
			}
		})
	}
	done := make(chan struct{})
	go func() { attacking.Wait(); close(done) }()
	var waits []time.Duration
	for attacked := false; !attacked; {
		select {
		case <-done:
			attacked = true
		default:
		}
		began := time.Now()
		w.greet()
		waits = append(waits, time.Since(began))
	}
	w.smtp(w.alice.name + "@mta.example")
	w.delivered()
	slices.Sort(waits)
	most, slowest := waits[len(waits)*95/100], waits[len(waits)-1]
	t.Logf("%d recipients of %d sessions: peak %d MB; own client: %d sessions, 95th percentile %v, slowest %v",
		taken.Load(), len(conns), server.Peak()>>20, len(waits), most, slowest)
	if taken.Load() != int64(addresses*perAddress*rounds*batch) {
		t.Errorf("%d recipients were taken", taken.Load())
	}
	if peak := server.Peak(); peak == 0 || peak > mostMemory {
		t.Errorf("smtpserver took %d MB, want at most %d", peak>>20, mostMemory>>20)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	calm = max(calm, w.calm(greet))
	if most > longest(ownLimit, calm) {
		t.Errorf("a client of this machine waited %v; %v without an attack", most, calm)
	}
	w.empty(w.s)
	w.unharmed()
}

// smtpserver is the process of the SMTP server.
func (w *world) smtpserver() suite.Process {
	w.Helper()
	list, err := w.s.Processes()
	w.must(err)
	for _, p := range list {
		if p.Name == "smtpserver" {
			return p
		}
	}
	w.Fatal("no smtpserver is running")
	return suite.Process{}
}

// greet is a session of a client on this machine that names one recipient.
func (w *world) greet() {
	w.Helper()
	c, err := net.Dial("tcp", w.s.SMTPAddr)
	w.must(err)
	defer c.Close()
	w.must(c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, "EHLO own.example\r\nMAIL FROM:<x@far.example>\r\nRCPT TO:<"+w.alice.name+"@mta.example>\r\nQUIT\r\n")
	w.must(err)
	b, err := io.ReadAll(c)
	w.must(err)
	if !bytes.Contains(b, []byte("\r\n250 2.1.5 ")) {
		w.Errorf("a client of this machine is answered %q", b)
	}
}
