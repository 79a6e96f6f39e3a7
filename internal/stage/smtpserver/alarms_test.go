package smtpserver

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
)

// Op4: a DNS list that does not answer and a policy service in trouble are alarms, which end when
// they work again.
func TestTroubleOfOthersIsAnAlarmUntilItIsOver(t *testing.T) {
	var works atomic.Bool
	service := script(t, func(map[string]string) string {
		if works.Load() {
			return "action=DUNNO\n\n"
		}
		return "what\n\n"
	})
	_, server := checkstest.Serve(t)
	dir := files(t, map[string]string{"access": "check_policy_service inet:" + service.addr + "\n", "localnames": "example.org\n"})
	home := t.TempDir()
	disk := assert.Get(durable.NewOS(home))(t)
	t.Cleanup(func() { disk.Close() })
	store := assert.Get(lastgood.Open(home, "smtpserver", (&logtest.Buffer{}).Logger()))(t)
	r := start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Access.RelayNets = nil
		c.Access.Dir, c.Access.LocalNamesFile, c.Access.Resolver = dir, filepath.Join(dir, "localnames"), server
		c.Access.DNSBL.Sites = []dnslist.Site{assert.Get(dnslist.ParseSite("broken.test"))(t)}
		c.Access.DNSBL.Enforce, c.Access.DNSBL.Threshold, c.Access.DNSBL.Timeout = true, 1, time.Second
		c.Keeper, c.Access.Keeper, c.Access.Source.Keeper = store, store, store
	})
	alarms := func() (names []string) {
		for _, f := range lastgood.Findings(disk, time.Now()) {
			names = append(names, f.Path)
		}
		slices.Sort(names)
		return names
	}
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
		if got := alarms(); !slices.Equal(got, want) {
			return errors.New(strings.Join(got, " "))
		}
		return nil
	})
	works.Store(true)
	tries(t, 100*time.Millisecond, func() error {
		session()
		if got := alarms(); !slices.Equal(got, want[:1]) {
			return errors.New(strings.Join(got, " "))
		}
		return nil
	})
}
