package smtpclient

import (
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// A server that offers XFORWARD learns each attribute that it knows; what is not known, or would not
// fit a command, is unavailable. A reply other than 250 does not keep the message back.
func TestXFORWARDNamesTheClient(t *testing.T) {
	offer := func(pipelining bool, words string) string {
		if pipelining {
			words += "\nS: 250-PIPELINING"
		}
		return "\nS: 220 mx.test ESMTP\nC: EHLO client.test\nS: 250-mx.test\nS: 250-XFORWARD " + words + "\nS: 250 8BITMIME\n"
	}
	known := &Forward{Name: "mx.far.test", Addr: "192.0.2.1", Port: "25", Helo: "far+=", Proto: "ESMTP", Ident: "S1A", Source: "REMOTE"}
	one := "C: XFORWARD NAME=mx.far.test ADDR=192.0.2.1 PORT=25 PROTO=ESMTP HELO=far+2B+3D IDENT=S1A SOURCE=REMOTE\n"
	const all = "NAME ADDR PROTO HELO PORT IDENT SOURCE"
	long := strings.Repeat("n", 255)
	for name, test := range map[string]struct {
		script  string
		forward *Forward
		want    string
	}{
		"pipelined":     {offer(true, all) + one + mail + "C: RCPT To:<a@test>\nC: DATA\nS: 250 Ok\nS: 250 Ok\nS: 250 Ok\nS: 354 go\nBODY\nS: 250 queued", known, "delivered"},
		"in turn":       {offer(false, all) + one + "S: 250 Ok\n" + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", known, "delivered"},
		"refused":       {offer(true, all) + one + mail + "C: RCPT To:<a@test>\nC: DATA\nS: 550 5.7.0 no\nS: 250 Ok\nS: 250 Ok\nS: 354 go\nBODY\nS: 250 queued", known, "delivered"},
		"closed":        {offer(false, all) + one + "S: 421 4.3.2 bye\nCLOSE", known, "deferred"},
		"some":          {offer(false, "addr") + "C: XFORWARD ADDR=192.0.2.1\nS: 250 Ok\n" + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", known, "delivered"},
		"not known":     {offer(false, "NAME SOURCE") + "C: XFORWARD NAME=[UNAVAILABLE] SOURCE=LOCAL\nS: 250 Ok\n" + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", &Forward{Source: "LOCAL"}, "delivered"},
		"two commands":  {offer(true, "NAME HELO") + "C: XFORWARD NAME=" + long + "\nC: XFORWARD HELO=" + long + "\n" + mail + "C: RCPT To:<a@test>\nC: DATA\nS: 250 Ok\nS: 250 Ok\nS: 250 Ok\nS: 250 Ok\nS: 354 go\nBODY\nS: 250 queued", &Forward{Name: long, Helo: long}, "delivered"},
		"two, in turn":  {offer(false, "NAME HELO") + "C: XFORWARD NAME=" + long + "\nS: 250 Ok\nC: XFORWARD HELO=" + long + "\nS: 250 Ok\n" + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", &Forward{Name: long, Helo: long}, "delivered"},
		"does not fit":  {offer(false, "HELO") + "C: XFORWARD HELO=[UNAVAILABLE]\nS: 250 Ok\n" + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", &Forward{Helo: strings.Repeat("+", 200)}, "delivered"},
		"not forwarded": {offer(false, all) + mail + "S: 250 Ok\nC: RCPT To:<a@test>\nS: 250 Ok\nC: DATA\nS: 354 go\nBODY\nS: 250 queued", nil, "delivered"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, p := open(t, Config{}, test.script)
			m := message("a@test")
			m.Forward = test.forward
			res, _ := c.Send(m)
			p.end(t)
			assert.Equal(t, strings.Fields(outcomes(res)[0])[0], test.want)
		})
	}
}
