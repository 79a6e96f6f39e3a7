package smtpserver

import (
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// stopAccepting has new mail refused; until zero: until startAccepting.
func (r *running) stopAccepting(until time.Time) {
	r.t.Helper()
	s := assert.Get(suspension.New(suspension.Suspension{Order: postoffice.NewOperationID(time.Now(), "drain", 1), Since: time.Now(), Until: until, Accepting: true, Who: "tester"}))(r.t)
	r.changeSuspensions(func(l *suspension.List) { l.Add(s) })
}

func (r *running) startAccepting() {
	r.t.Helper()
	r.changeSuspensions(func(l *suspension.List) { l.All = nil })
}

func (r *running) changeSuspensions(change func(*suspension.List)) {
	r.t.Helper()
	po := assert.Get(postoffice.Open(postoffice.Config{FS: r.disk}))(r.t)
	assert.Must(r.t, suspension.Change(po, time.Now(), func(l *suspension.List) error {
		change(l)
		return nil
	}))
}

// Op5 (drain): while accepting is stopped other hosts get 421 in place of a greeting, and in
// reply to MAIL if they were connected; a message that was begun is accepted. When it is
// started again, all is as before.
func TestOp5DrainedHostRefusesOtherHosts(t *testing.T) {
	r := start(t, nil)
	idle, begun := r.greeted(), r.greeted()
	begun.from("a@example.net")
	r.stopAccepting(time.Time{})
	r.log.Await(t, "msg=accepting-stopped", "by=tester")
	r.connect(0).end("421 4.3.2")
	idle.say("MAIL FROM:<a@example.net>", "421 4.3.2")
	idle.end()
	begun.to("b@example.com").content(plain, "250")
	r.only()
	r.startAccepting()
	r.log.Await(t, "msg=accepting-resumed")
	r.greeted().from("a@example.net")
}

// Op5 (drain): users are greeted and told by 450 to MAIL; a restart does not accept mail
// again, and the end does.
func TestOp5DrainedHostRefusesUsersOverARestart(t *testing.T) {
	users := accounts(t)
	r := newOffice(t)
	r.stopAccepting(time.Now().Add(2 * time.Second))
	r.serve(func(c *Config) {
		c.Listen = on(session.RoleSubmission, anyPort)
		c.Users = UsersConfig{Source: "file:" + users, Delay: time.Millisecond}
	})
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	p.say("MAIL FROM:<jane@example.net>", "450 4.3.2")
	r.log.Await(t, "msg=accepting-resumed")
	p.say("MAIL FROM:<jane@example.net>", "250")
}
