package smtpserver

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/lease/leasetest"
	"zmailer/internal/run/metrics"
)

// C4: the deadline passes before each of the steps of a message. What the client saw, and what is
// in the spool.
func TestC4DeadlineAroundTheReply(t *testing.T) {
	for name, c := range map[string]struct {
		looks    int64 // at the deadline that find a lease
		greeting string
		mail     string
		content  string
		routed   int
	}{
		"before the greeting":                {looks: 0, greeting: "421 4.3.2"},
		"before MAIL":                        {looks: 1, greeting: "220", mail: "421 4.3.2"},
		"before the message is synced":       {looks: 2, greeting: "220", mail: "250", content: "421 4.3.2"},
		"between its sync and its rename":    {looks: 3, greeting: "220", mail: "250", content: "421 4.3.2"},
		"between its rename and the reply":   {looks: 4, greeting: "220", mail: "250", content: "421 4.3.2", routed: 1},
		"after the reply":                    {looks: 5, greeting: "220", mail: "250", content: "250 2.0.0", routed: 1},
		"after the reply, with a long lease": {looks: 1000, greeting: "220", mail: "250", content: "250 2.0.0", routed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newOffice(t)
			page := leasetest.New(t).Expiring(c.looks)
			r.serve(func(conf *Config) { conf.FS, conf.Lease = nil, page }) // FS: the fenced one
			p := r.connect(0)
			p.expect(c.greeting)
			if c.mail != "" {
				p.say("EHLO c", "250")
				p.say("MAIL FROM:<a@example.net>", c.mail)
			}
			if c.content != "" {
				p.say("RCPT TO:<b@example.com>", "250")
				p.content(plain, c.content)
			}
			if c.content == "250 2.0.0" {
				p.say("QUIT", "221")
			}
			p.end() // 421 closes the connection (RFC 5321 section 3.8)
			assert.Equal(t, len(r.names("router")), c.routed, "messages in router/")
			if c.looks < 5 {
				r.log.Await(t, "msg=lease-lost")
			}
		})
	}
}

// The end of the lease is logged once, however many clients come, and its return once.
func TestLostLeaseIsLoggedOnce(t *testing.T) {
	node := leasetest.New(t)
	r := start(t, func(c *Config) { c.Lease = node.Page() })
	r.greeted()
	node.Lose()
	for range 5 {
		r.connect(0).end("421 4.3.2")
	}
	node.Until(time.Minute)
	r.greeted().mail("a@example.net", "b@example.com", plain, "250")
	r.log.Await(t, "msg=lease-held")
	assert.Equal(t, r.log.Count("msg=lease-lost"), 1, "lines about the end")
}

// Health turns bad before clients are refused.
func TestHealthEndsBeforeTheLease(t *testing.T) {
	node := leasetest.New(t)
	var now atomic.Int64
	now.Store(int64(lease.Now()))
	r := start(t, func(c *Config) {
		c.Lease, c.Metrics = node.With(func() time.Duration { return time.Duration(now.Load()) }), metrics.New("smtpserver", "unix")
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.dir, metrics.Socket("smtpserver")))
	}}}
	for _, c := range []struct {
		left     time.Duration
		health   int
		greeting string
	}{
		{lease.Longest / 2, http.StatusOK, "220"},
		{lease.Soon + 1, http.StatusOK, "220"},
		{lease.Soon, http.StatusServiceUnavailable, "220"},
		{lease.Step + 1, http.StatusServiceUnavailable, "220"},
		{lease.Step, http.StatusServiceUnavailable, "421"},
		{0, http.StatusServiceUnavailable, "421"},
	} {
		assert.Must(t, node.Publish(time.Duration(now.Load())+c.left))
		resp := assert.Get(client.Get("http://smtpserver/health"))(t)
		assert.Must(t, resp.Body.Close())
		assert.Equal(t, resp.StatusCode, c.health, "health with ", c.left)
		r.connect(0).expect(c.greeting)
	}
}
