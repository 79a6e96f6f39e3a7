package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

func TestClusterNeedsMembersAndAName(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		line  int // of the error; 0: none
		nodes int
	}{
		"nothing":             {text: ""},
		"NODE alone":          {text: "NODE=a\n"},
		"three members":       {text: "CLUSTER=etcd://a:2379,b:2379,[::1]:2379\nNODE=a\n", nodes: 3},
		"no name":             {text: "# here\nCLUSTER=etcd://a:2379\n", line: 2},
		"another scheme":      {text: "CLUSTER=http://a:2379\nNODE=a\n", line: 1},
		"no port":             {text: "CLUSTER=etcd://a\nNODE=a\n", line: 1},
		"no member":           {text: "CLUSTER=etcd://\nNODE=a\n", line: 1},
		"an empty member":     {text: "CLUSTER=etcd://a:2379,,b:2379\nNODE=a\n", line: 1},
		"a password":          {text: "CLUSTER=etcd://root:secret@a:2379\nNODE=a\n", line: 1},
		"a path":              {text: "CLUSTER=etcd://a/x:2379\nNODE=a\n", line: 1},
		"a name with slash":   {text: "CLUSTER=etcd://a:2379\nNODE=../a\n", line: 2},
		"a hidden name":       {text: "CLUSTER=etcd://a:2379\nNODE=.a\n", line: 2},
		"a relative LEASEDIR": {text: "CLUSTER=etcd://a:2379\nNODE=a\nLEASEDIR=run\n", line: 3},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "zmailer.conf")
			assert.Must(t, os.WriteFile(file, []byte(c.text), 0o600))
			conf, err := Load(file)
			var got Cluster
			if err == nil {
				got, err = conf.Cluster()
			}
			if c.line == 0 {
				assert.Must(t, err)
				assert.Equal(t, len(got.Members), c.nodes, "members")
				assert.Equal(t, got.On(), c.nodes > 0, "on")
				return
			}
			bad := (*Error)(nil)
			if !errors.As(err, &bad) || bad.Line != c.line {
				t.Errorf("got %v, want an error in line %d", err, c.line)
			}
		})
	}
}
