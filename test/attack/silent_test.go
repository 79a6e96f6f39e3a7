package attack

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// silentHosts is how many hosts of the attacker's accept connections and say nothing.
const silentHosts = 500

// silentConf has the limits of the built-in file.
const silentConf = `PARAM global-report-interval=1s
*/*
	interval=1m retries="1 1 2 3" expiry=1h maxta=50 maxring=100 maxthr=20
smtp/*
	command="ta-smtp --slots=20 $channel"
local/*
	command="ta-mailbox --slots=4 $channel"
`

// silence is the attacker's hosts: each has a name and an address of its own.
type silence struct {
	open, peak, came atomic.Int64 // connections
}

// listen has the hosts listen on a port.
func (s *silence) listen(t *testing.T, port int) {
	t.Helper()
	for i := range silentHosts {
		l, err := net.Listen("tcp", fmt.Sprint(silentAddr(i), ":", port))
		assert.Must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				s.came.Add(1)
				if n := s.open.Add(1); n > s.peak.Load() {
					s.peak.Store(n)
				}
				go func() {
					defer s.open.Add(-1)
					defer c.Close()
					// It says nothing and hears nothing until the other side ends.
					_, _ = io.Copy(io.Discard, c)
				}()
			}
		}()
	}
}

func silentAddr(i int) string { return fmt.Sprintf("127.66.%d.%d", i/250, i%250+1) }

func silentName(i int) string { return fmt.Sprintf("h%d.silent.example", i) }

// An unauthenticated client's mail makes reports to 500 hosts that accept connections and stay silent.
// Mail of a user of this system still leaves, to hosts that nothing is known of, while all
// silent hosts are being waited for; also when the scheduler is killed and knows nothing.
func TestAtk3ReportsToSilentHostsStopNoMail(t *testing.T) {
	need(t)
	for name, way := range map[string]struct{ check, to, params string }{
		"recipients that do not exist": {"no", "no.such@mta.example", ""},
		"reports on success":           {"yes", aliceName + "@mta.example", "NOTIFY=SUCCESS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silentAttack(t, way.check, way.to, way.params)
		})
	}
}

func silentAttack(t *testing.T, check, to, params string) {
	var zone strings.Builder
	for i := range silentHosts {
		fmt.Fprintf(&zone, "%s. 300 IN A %s\n", silentName(i), silentAddr(i))
	}
	fmt.Fprint(&zone, "*.friend.example. 300 IN A 127.0.0.1\n")
	for i := range 20 {
		fmt.Fprintf(&zone, "h%d.friend.example. 300 IN A 127.0.0.1\n", i)
	}
	dns := mxtest.Start(t, zone.String())
	s := &silence{}
	w := prepare(t, asRoot, func(w *world) {
		_, port, _ := net.SplitHostPort(w.sink.Addr())
		w.s.Settings["RESOLVER"], w.s.Settings["SMTPPORT"], w.s.Settings["RCPTCHECK"] = dns.Addr, port, check
		w.s.Files["scheduler.conf"], w.s.Files["routes"] = silentConf, ". smtp!\n"
		n, err := net.LookupPort("tcp", port)
		w.must(err)
		s.listen(t, n)
	})
	w.start()
	for i := range silentHosts {
		src := peer.Source{Addr: w.s.SMTPAddr, Connections: 1, Messages: 1, From: "x@" + silentName(i), RcptParams: params,
			To: func(int) string { return to }, Body: func(int) []byte { return []byte("Subject: x\r\n\r\nx\r\n") }}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		w.must(src.Run(ctx))
		cancel()
	}
	held := func() bool { return s.open.Load() >= 20 }
	w.await("connections to silent hosts", held)
	t.Logf("%d connections are open", s.open.Load())

	rounds, undisturbed := 0, 0
	own := func() {
		t.Helper()
		// No time-out has ended that gave way to it.
		begun, ended := time.Now(), s.came.Load()-s.open.Load()
		l := w.submit(w.alice, fmt.Sprintf("friend@h%d.friend.example", rounds))
		w.await("own mail "+l.to, func() bool { return w.arrived(l) > 0 })
		if s.came.Load()-s.open.Load() == ended {
			undisturbed++
		}
		rounds++
		t.Logf("own message %d arrived after %v", rounds, time.Since(begun).Round(time.Millisecond))
	}
	for range 5 {
		own()
	}
	if undisturbed == 0 {
		t.Error("each message came through only when a connection to a silent host had ended")
	}
	// The scheduler is killed, and its agents with it: the next one knows of no host.
	w.killScheduler()
	w.await("connections to silent hosts again", held)
	undisturbed = 0
	for range 5 {
		own()
	}
	if undisturbed == 0 {
		t.Error("after a restart each message came through only when a connection to a silent host had ended")
	}
	if n := s.peak.Load(); n > 50 {
		t.Errorf("%d connections to silent hosts were open at once, want at most 50 of 100", n)
	}
	if held, _ := w.zmctl("thread"); !strings.Contains(held, "no-place") {
		t.Errorf("no thread says that it waits for a place:\n%.2000s", held)
	}
}

// killScheduler kills the scheduler and its SMTP agents and waits for the next scheduler.
func (w *world) killScheduler() {
	w.Helper()
	w.s.Forget()
	list, err := w.s.Processes()
	w.must(err)
	killed := false
	for _, p := range list {
		if p.Name == "scheduler" {
			w.must(p.Kill())
			killed = true
		}
	}
	for _, p := range list {
		if p.Name == "ta-smtp" {
			w.must(p.Kill())
		}
	}
	if !killed {
		w.Fatal("no scheduler runs")
	}
	_, err = w.s.Wait(patience, "another scheduler", func(e suite.Event) bool { return e.Is("scanned") })
	w.must(err)
}
