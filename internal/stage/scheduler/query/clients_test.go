package query

import (
	"testing"

	"zmailer/internal/run/assert"
)

// An unauthenticated client never takes the administrator's place, and takes that of an
// idle one before that of one that is served.
func TestDel9IdleClientsGiveWay(t *testing.T) {
	client := func(trusted bool, idle int64) *session {
		s := &session{trusted: trusted}
		s.idle.Store(idle)
		return s
	}
	admin, adminIdle := client(true, 0), client(true, 1)
	busy, old, young := client(false, 0), client(false, 5), client(false, 6)
	for name, c := range map[string]struct {
		list    []*session
		trusted bool
		want    *session
	}{
		"for another, the idle one":              {[]*session{admin, adminIdle, busy, young, old}, false, old},
		"for another, none that is served":       {[]*session{admin, adminIdle, busy}, false, nil},
		"for the administrator, the idle one":    {[]*session{admin, adminIdle, busy, young, old}, true, old},
		"for the administrator, a busy one":      {[]*session{admin, adminIdle, busy}, true, busy},
		"for the administrator, an idle own":     {[]*session{admin, adminIdle}, true, adminIdle},
		"for the administrator, even a busy own": {[]*session{admin}, true, admin},
	} {
		assert.Equal(t, (&places{list: c.list}).victim(c.trusted), c.want, name)
	}
}

// M14: an ETRN names a host or a domain.
func TestETRNNamesAHostOrADomain(t *testing.T) {
	for _, tt := range []struct {
		host, name string
		want       bool
	}{
		{"a.example", "a.example", true}, {"A.Example", "a.example", true}, {"b.a.example", "a.example", false},
		{"b.a.example", "@a.example", true}, {"a.example", "@A.example", true}, {"ba.example", "@a.example", false},
		{".a.example", "@a.example", false}, {"a.example", "@", false}, {"", "@", true}, {"", "x", false},
	} {
		assert.Equal(t, Kicks(tt.host, tt.name), tt.want, "ETRN %s for %q", tt.name, tt.host)
	}
}
