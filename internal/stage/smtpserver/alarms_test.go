package smtpserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/disk/lastgood/lastgoodtest"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/test/rig"
)

// Op4: a DNS list that does not answer and a policy service in trouble are alarms, which end when
// they work again.
func TestTroubleOfOthersIsAnAlarmUntilItIsOver(t *testing.T) {
	t.Parallel()
	var works atomic.Bool
	service := script(t, func(map[string]string) string {
		if works.Load() {
			return "action=DUNNO\n\n"
		}
		return "what\n\n"
	})
	_, server := checkstest.Serve(t)
	dir := files(t, map[string]string{"access": "check_policy_service inet:" + service.addr + "\n", "localnames": "example.org\n"})
	store := lastgoodtest.Watch(t)
	r := start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Access.RelayNets = nil
		c.Access.Dir, c.Access.LocalNamesFile, c.Access.Resolver = dir, filepath.Join(dir, "localnames"), server
		c.Access.DNSBL.Sites = []dnslist.Site{assert.Get(dnslist.ParseSite("broken.test"))(t)}
		c.Access.DNSBL.Enforce, c.Access.DNSBL.Threshold, c.Access.DNSBL.Timeout = true, 1, time.Second
		c.Keeper, c.Access.Keeper, c.Access.Source.Keeper = store, store, store
	})
	n := 0
	session := func() {
		n++
		c := r.greeted()
		c.say(fmt.Sprintf("XCLIENT ADDR=198.51.100.%d NAME=[UNAVAILABLE]", n), "220")
		c.say("EHLO a.example", "250")
		c.say("MAIL FROM:<x@example.net>", "250")
		c.send("RCPT TO:<a@example.org>\r\n")
		c.reply()
		c.say("QUIT", "221")
	}
	want := []string{"dnsbl:broken.test", "policy:" + service.addr}
	tries(t, 100*time.Millisecond, func() error {
		session()
		if got := store.Subjects(); !slices.Equal(got, want) {
			return errors.New(strings.Join(got, " "))
		}
		return nil
	})
	works.Store(true)
	tries(t, 100*time.Millisecond, func() error {
		session()
		if got := store.Subjects(); !slices.Equal(got, want[:1]) {
			return errors.New(strings.Join(got, " "))
		}
		return nil
	})
}

// Op4: a filter, a policy service and the router that knows the recipients are alarms while they are
// away, each once for all sessions, and end when they are back; the mail is deferred meanwhile, and
// never refused. The filter and the service are Debian's.
func TestOp4BackendThatIsAwayIsAnAlarmUntilItIsBack(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func(t *testing.T, c *Config) (subject string, start func()){
		"opendkim": func(t *testing.T, c *Config) (string, func()) {
			m, start, _ := dkimFilter(t, checkstest.RSA(t, 2048))
			c.Filters.Milters = []content.Milter{m}
			return "milter:" + m.Name(), start
		},
		"postgrey": func(t *testing.T, c *Config) (string, func()) {
			rig.Needs(t, "/usr/sbin/postgrey")
			addr, dir := rig.FreeAddr(t), t.TempDir()
			owner := assert.Get(user.Lookup("postgrey"))(t)
			assert.Must(t, exec.Command("chown", "-R", owner.Uid, dir).Run(), os.Chmod(filepath.Dir(dir), 0o755))
			writeFile(t, filepath.Join(c.Access.Dir, "access"), []byte("check_policy_service inet:"+addr+"\n"), 0o644)
			writeFile(t, filepath.Join(dir, "clients"), []byte("127.0.0.1\n"), 0o644)
			writeFile(t, filepath.Join(dir, "rcpts"), nil, 0o644)
			start, _ := onAndOff(t, addr, func() *exec.Cmd {
				return exec.Command("/usr/sbin/postgrey", "--inet="+addr, "--dbdir="+dir, "--pidfile="+dir+"/pid", "--hostname=bench.example",
					"--whitelist-clients="+dir+"/clients", "--whitelist-recipients="+dir+"/rcpts")
			})
			return "policy:" + addr, start
		},
		"the router": func(t *testing.T, c *Config) (string, func()) {
			path := filepath.Join(t.TempDir(), "router")
			away := path + ".away"
			writeFile(t, path, []byte("#!/bin/sh\n[ -e "+away+" ] && exit 1\necho zmailer rcpt-check 1\nwhile read id from to; do [ -e "+away+" ] && exit 1; echo $id known -; done\n"), 0o755)
			writeFile(t, away, nil, 0o644)
			c.Access.RcptCheck = &policy.RcptCheck{Defer: true}
			c.Access.RcptCheck.Program = []string{path}
			return rcptcheck.AlarmName, func() { assert.Must(t, os.Remove(away)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alarms := lastgoodtest.Watch(t)
			dir := files(t, map[string]string{"localnames": "example.org\n"})
			var subject string
			var up func()
			r := start(t, func(c *Config) {
				c.Access.RelayNets = nil
				c.Access.Dir, c.Access.LocalNamesFile = dir, filepath.Join(dir, "localnames")
				c.Keeper, c.Access.Keeper, c.Access.Source.Keeper = alarms, alarms, alarms
				subject, up = backend(t, c)
			})
			try := func() string {
				p := r.greeted()
				defer p.say("QUIT", "221")
				return p.tryMail()
			}
			for range 2 {
				if got := try(); !strings.HasPrefix(got, "451 ") {
					t.Errorf("while it is away: %q", got)
				}
			}
			alarms.Expect(t, "it is away", subject)
			up()
			tries(t, 50*time.Millisecond, func() error { // it may be left alone for a moment
				if got := try(); !strings.HasPrefix(got, "250 ") {
					return errors.New(got)
				}
				return nil
			})
			alarms.Expect(t, "it is back")
		})
	}
}
