package smtpserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/session"
)

// follower reports whether settings were used.
type follower struct{ used chan bool }

func (f follower) Accept(...string) []any {
	f.used <- true
	return []any{"changed", "HOSTNAME"}
}

func (f follower) Refuse(error) { f.used <- false }

// Op11: settings that are read again hold for new connections, and those that exist go on as
// they began; ones that cannot be used change nothing.
func TestOp11SettingsAreReadAgainForNewConnections(t *testing.T) {
	hangup, answers, follow := make(chan os.Signal), make(chan Config, 1), follower{make(chan bool, 3)}
	r := start(t, func(c *Config) {
		c.Hangup = hangup
		c.Limits.MaxSize, c.Follow = 1000, follow
		c.Reread = func() (Config, error) {
			n := <-answers
			if n.Hostname == "" {
				return n, errors.New("a bad setting")
			}
			return n, nil
		}
	})
	greeted := func(host string) *client {
		p := r.connect(0)
		p.expect("220 " + host)
		return p
	}
	reload := func(host string, size int64) {
		answers <- Config{Hostname: host, Ports: Ports{Listen: on(session.RoleMX, anyPort)}, Access: policy.Config{RelayNets: loopback}, Limits: LimitsConfig{MaxSize: size, MaxRecipients: 100, MaxConnections: 100}}
		hangup <- syscall.SIGHUP
		assert.Equal(t, <-follow.used, host != "")
	}
	old := greeted("mx.example.org")
	old.say("EHLO c", "250-mx.example.org")
	old.say("MAIL FROM:<a@b.example> SIZE=900", "250")
	reload("new.example.org", 500)
	fresh := greeted("new.example.org")
	fresh.say("EHLO c", "250-new.example.org")
	fresh.say("MAIL FROM:<a@b.example> SIZE=900", "552")
	old.say("RCPT TO:<c@d.example>", "250")
	old.say("DATA", "354")
	old.say("Subject: x\r\n\r\nx\r\n.", "250")
	r.log.Expect(t, 1, "msg=conf-read", "changed=HOSTNAME")

	reload("", 0) // cannot be used
	reload("third.example.org", 700)
	greeted("third.example.org").say("QUIT", "221")
	fresh.say("NOOP", "250")
	old.say("QUIT", "221")
	fresh.say("QUIT", "221")
}

// waiter is a follower that has which settings wait for a restart.
type waiter struct{ answers chan []string }

func (w waiter) Accept(waiting ...string) []any {
	w.answers <- waiting
	return []any{"changed", "SMTPLISTEN"}
}

func (w waiter) Refuse(err error) { w.answers <- []string{"refused", err.Error()} }

// Op11: addresses that a reload names are opened and those that it no longer names closed; one that
// stays is never closed, one that overlaps with the one before takes its place, sessions go on, and
// with an address of another process everything stays as it was. One that needs a right waits.
func TestOp11ReloadOpensAndClosesAddresses(t *testing.T) {
	hangup, next, follow := make(chan os.Signal), make(chan Config, 1), waiter{make(chan []string, 1)}
	var privileged listen.Opener
	r := start(t, func(c *Config) {
		c.Hangup, c.Follow = hangup, follow
		c.Privileged = func(addr string, share bool) (net.Listener, error) { return privileged(addr, share) }
		c.Reread = func() (Config, error) { return <-next, nil }
	})
	_, port, _ := net.SplitHostPort(r.addr)
	reload := func(addrs ...string) []string {
		t.Helper()
		next <- Config{Hostname: "mx.example.org", Ports: Ports{Listen: on(session.RoleMX, addrs...)}, Access: policy.Config{RelayNets: loopback},
			Limits: LimitsConfig{MaxSize: 1000, MaxRecipients: 100, MaxConnections: 100}}
		hangup <- syscall.SIGHUP
		return <-follow.answers
	}
	greets := func(addr string) bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		defer c.Close()
		assert.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		line, _ := bufio.NewReader(c).ReadString('\n')
		return strings.HasPrefix(line, "220")
	}
	old := r.connect(0)
	old.expect("220")
	old.say("EHLO c", "250")
	inode := func() uint64 { return socketOf(t, port) }
	stays := inode()

	taken := assert.Get(net.Listen("tcp", "127.0.0.3:0"))(t)
	defer taken.Close()
	if got := reload(anyPort, "127.0.0.2:"+port, taken.Addr().String()); len(got) != 2 {
		t.Fatalf("an address of another process: %q", got)
	}
	assert.Equal(t, greets("127.0.0.2:"+port), false, "an address beside one that cannot be used")
	assert.Equal(t, len(reload(anyPort, "127.0.0.2:"+port)), 0)
	assert.Equal(t, greets("127.0.0.2:"+port) && greets(r.addr), true, "both addresses")
	assert.Equal(t, inode(), stays, "the socket of the address that stays")

	// No connection is refused while the addresses take each other's place.
	end, refused := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-end:
				refused <- n
				return
			default:
			}
			if !greets("127.0.0.2:" + port) {
				n++
			}
		}
	}()
	for range 3 {
		assert.Equal(t, len(reload("0.0.0.0:"+port)), 0)
		assert.Equal(t, greets("127.0.0.9:"+port), true, "all addresses")
		assert.Equal(t, len(reload("127.0.0.2:"+port)), 0)
		assert.Equal(t, greets(r.addr), false, "an address that is no longer named")
	}
	close(end)
	assert.Equal(t, <-refused, 0, "connections that were refused")

	privileged = func(string, bool) (net.Listener, error) { return nil, os.ErrPermission }
	if os.Geteuid() != 0 {
		assert.Same(t, reload("127.0.0.4:1"), []string{"SMTPLISTEN"})
		assert.Equal(t, greets("127.0.0.2:"+port), true, "the address before")
	}
	old.say("MAIL FROM:<a@b.example>", "250")
	old.say("QUIT", "221")
}

// socketOf returns the inode of the socket that listens on 127.0.0.1 and a port.
func socketOf(t *testing.T, port string) uint64 {
	t.Helper()
	n := assert.Get(strconv.Atoi(port))(t)
	for line := range strings.Lines(string(assert.Get(os.ReadFile("/proc/net/tcp"))(t))) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == fmt.Sprintf("0100007F:%04X", n) && f[3] == "0A" {
			return assert.Get(strconv.ParseUint(f[9], 10, 64))(t)
		}
	}
	t.Fatalf("no socket listens on port %s", port)
	return 0
}
