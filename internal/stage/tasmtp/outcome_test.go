package tasmtp

import (
	"io"
	"os"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/smtpclient"
)

// K14: what a message may have done to its connection is no reason to keep those behind it.
func TestTroubleOfTheHost(t *testing.T) {
	broke := func(p smtpclient.Phase, err error, doubt bool) smtpclient.Result {
		return smtpclient.Result{Code: status.BadConnection, Phase: p, InDoubt: doubt, Err: &smtpclient.ConnError{Phase: p, Err: err}}
	}
	cases := map[string]struct {
		res  smtpclient.Result
		want bool
	}{
		"broken before MAIL was answered": {broke(smtpclient.PhaseMail, io.EOF, false), true},
		"broken at RCPT":                  {broke(smtpclient.PhaseRcpt, io.EOF, false), false},
		"silent at RCPT":                  {broke(smtpclient.PhaseRcpt, os.ErrDeadlineExceeded, false), true},
		"silent after the dot":            {broke(smtpclient.PhaseDot, os.ErrDeadlineExceeded, true), false},
	}
	for name, c := range cases {
		assert.Equal(t, hostTrouble(&c.res), c.want, name)
	}
}
