package smtpserver

import (
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/wire/milter/miltertest"
)

// BenchmarkAccept takes messages of 4 kB on one connection, client included: as they come,
// with METRICS, and held for checks or a filter.
func BenchmarkAccept(b *testing.B) {
	b.Run("as they come", func(b *testing.B) { accept(b, nil) })
	b.Run("counted", func(b *testing.B) {
		accept(b, func(c *Config) { c.Metrics = metrics.New("smtpserver", "unix") })
	})
	b.Run("held", func(b *testing.B) {
		accept(b, func(c *Config) {
			c.Access.RelayNets, c.Access.LocalNamesFile = nil, ""
			c.Filters.Checks = checks.Config{DKIM: true} // there is no signature: no query is made
		})
	})
	b.Run("shown to a filter", func(b *testing.B) { accept(b, with(filter(b, &miltertest.Filter{}))) })
}

func accept(b *testing.B, change func(*Config)) {
	r := start(b, change)
	p := r.greeted()
	message := []byte("MAIL FROM:<a@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nBDAT 4000 LAST\r\nSubject: x\r\n\r\n" + strings.Repeat("0123456789abcd\r\n", 249) + "\r\n")
	b.ReportAllocs()
	b.SetBytes(4000)
	for b.Loop() {
		assert.Get(p.Write(message))(b)
		p.expect("250", "250", "250 2.0.0")
	}
}

// TestMessageAllocatesLittle counts the client's, too, which has some.
func TestMessageAllocatesLittle(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	message := []byte("MAIL FROM:<a@example.net>\r\nRCPT TO:<b@mx.example.org>\r\nBDAT 12 LAST\r\nSubject: x\r\n")
	got := testing.AllocsPerRun(100, func() {
		assert.Get(p.Write(message))(t)
		p.expect("250", "250", "250 2.0.0")
	})
	// 32; with the race detector, from whose pools things get lost, some more.
	if got > 45 {
		t.Errorf("%v allocations for a message, at most 45 are to be", got)
	}
}

// TestConnectionAllocatesLittle: a connection with one message allocates no more than before
// there were domain classes, DNS lists, rules about content and what else is not configured here.
func TestConnectionAllocatesLittle(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector allocates, too")
	}
	once := sessions(t)
	// 55; 58 before. It is a mean, rounded down: the ledger and the limits allocate now and then.
	if got := testing.AllocsPerRun(200, once); got > 58 {
		t.Errorf("%v allocations for a connection with a message, at most 58 are to be", got)
	}
}

// BenchmarkSession is a connection with one message of 4 kB, each command answered before the
// next (docs/performance.md).
func BenchmarkSession(b *testing.B) {
	once := sessions(b)
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}

// sessions starts a server and returns what makes a connection with one message. That is a bare
// socket that allocates nothing, so that the allocations are those of the server.
func sessions(t testing.TB) func() {
	r := start(t, nil)
	at := r.addrs[0].(*net.TCPAddr)
	to := &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}
	steps := [][]byte{nil, []byte("EHLO client.example.net\r\n"), []byte("MAIL FROM:<a@example.net>\r\n"),
		[]byte("RCPT TO:<b@mx.example.org>\r\n"), []byte("DATA\r\n"),
		[]byte("Subject: x\r\n\r\n" + strings.Repeat("0123456789abcd\r\n", 249) + ".\r\n"), []byte("QUIT\r\n")}
	answer := make([]byte, 4096)
	return func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			if _, err := unix.Write(fd, step); err != nil {
				t.Fatal(err)
			}
			if n, err := unix.Read(fd, answer); err != nil || n == 0 || answer[0] != '2' && answer[0] != '3' {
				t.Fatalf("%q: %q, %v", step, answer[:max(n, 0)], err)
			}
		}
	}
}
