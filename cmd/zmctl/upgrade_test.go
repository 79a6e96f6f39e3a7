package main

import (
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/assert"
	"zmailer/test/office"
)

// Op14: what an upgrade calls without systemd starts no daemon where none runs.
func TestOp14RestartIfRunningStartsNothing(t *testing.T) {
	o := office.New(t)
	mustDo(t, "--postoffice", o.Dir, "restart", "--direct", "--if-running")
	s := view.New(o.PostOffice, time.Now())
	for _, role := range []string{"zmctl", "scheduler", "router"} {
		assert.Equal(t, s.Runs(role), false, role)
	}
}
