package smtpserver

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/policy"
)

// follower reports whether settings were used.
type follower struct{ used chan bool }

func (f follower) Accept() []any {
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
		answers <- Config{Hostname: host, Access: policy.Config{RelayNets: loopback}, Limits: LimitsConfig{MaxSize: size, MaxRecipients: 100, MaxConnections: 100}}
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
