package submit

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op5 (drain): submit refuses mail for now and leaves nothing, in all its modes.
func TestOp5DrainedHostRefusesSubmissions(t *testing.T) {
	dir, disk := newPostOffice(t)
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
	s := assert.Get(suspension.New(suspension.Suspension{Order: postoffice.NewOperationID(time.Now(), "drain", 1), Since: time.Now(), Accepting: true, Who: "tester"}))(t)
	assert.Must(t, suspension.Change(po, time.Now(), func(l *suspension.List) error {
		l.Add(s)
		return nil
	}))
	for name, c := range map[string]Config{"one message": {}, "one for each": {PerRecipient: "+=", HasFrom: true, From: "a@b"}} {
		c.PostOffice, c.Recipients, c.In = dir, []string{"x@y"}, strings.NewReader("Subject: x\n\nx\n")
		assert.Equal(t, exitCode(Run(t.Context(), c)), config.ExitTempFail, name)
	}
	got := talk(t, Config{PostOffice: dir}, "EHLO c", "MAIL FROM:<>", "RCPT TO:<a@b>", "DATA", "x", ".", "QUIT")
	assert.Equal(t, codes(got), "220 250 250 2.1.0 250 2.1.5 354 451 4.3.2 221 2.0.0 ", "codes")
	nothing(t, dir)
	assert.Must(t, suspension.Change(po, time.Now(), func(l *suspension.List) error {
		l.All = nil
		return nil
	}))
	assert.Must(t, Run(t.Context(), Config{PostOffice: dir, Recipients: []string{"x@y"}, In: strings.NewReader("Subject: x\n\nx\n")}))
	only(t, dir)
}
