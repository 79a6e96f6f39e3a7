package conf

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/run/assert"
)

// Z8: who serves a channel and host is told for each as the engine would find it, and
// that nobody does.
func TestServiceOfEachChannelAndHostIsTold(t *testing.T) {
	conf, err := Parse("/etc/scheduler.conf", []byte(`*/* maxthr=3
smtp/slow.example
	command="a"
smtp/*
smtpx/*
	command="a"
uucp/*
	queueonly command="a"
`), func(string) (string, bool) { return "", false })
	assert.Must(t, err)
	tests := map[string]Service{
		"smtp slow.example":  {Served: true, Clause: "smtp/slow.example", Where: "/etc/scheduler.conf:2"},
		"smtp Slow.EXAMPLE":  {Served: true, Clause: "smtp/slow.example", Where: "/etc/scheduler.conf:2"},
		"smtp x.example":     {Served: true, Clause: "smtp/*", Where: "/etc/scheduler.conf:4"},
		"smtpx x.example":    {Served: true, Clause: "smtpx/*", Where: "/etc/scheduler.conf:5"},
		"uucp far":           {Served: true, Clause: "uucp/*", Where: "/etc/scheduler.conf:7"},
		"pigeon far":         {},
		"pigeon":             {},
		"error nouser":       {Served: true, Code: "5.1.1"},
		"bitbucket -":        {Served: true},
		"bitbucket expanded": {Served: true},
		"hold age:2h":        {Served: true},
		"hold nonsense":      {},
	}
	for line, want := range tests {
		want.Channel, want.Host, _ = strings.Cut(line, " ")
		got := conf.Service(want.Channel, want.Host)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Service{}, "Text")); diff != "" {
			t.Errorf("%s: want -, got +\n%s", line, diff)
		}
		// What is told is what the scheduler would do.
		if served := conf.Match(want.Channel, want.Host) != nil; want.Channel != "error" && want.Channel != "bitbucket" && want.Channel != "hold" && served != got.Served {
			t.Errorf("%s: told that served is %v", line, got.Served)
		}
	}
}
