package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"zmailer/internal/run/assert"
)

// root returns the directory of the module.
func root(t *testing.T) fs.FS {
	t.Helper()
	dir := assert.Get(os.Getwd())(t)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.DirFS(dir)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above this directory")
		}
		dir = parent
	}
}

func TestTreeKeepsItsRules(t *testing.T) {
	found := assert.Get(Check(root(t)))(t)
	for _, v := range found {
		t.Error(v)
	}
}

func TestEveryDependencyIsExplained(t *testing.T) {
	tree := root(t)
	mod := assert.Get(fs.ReadFile(tree, "go.mod"))(t)
	notes := assert.Get(fs.ReadFile(tree, "docs/notes/dependencies.md"))(t)
	sources := assert.Get(load(tree))(t)
	imported := map[string]bool{}
	for _, s := range sources {
		for _, spec := range s.tree.Imports {
			imported[strings.Trim(spec.Path.Value, "`\"")] = true
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\s*(?:require )?(\S+\.\S+/\S+) v`).FindAllStringSubmatch(string(mod), -1) {
		used := false
		for name := range imported {
			used = used || within(name, m[1])
		}
		if used && !strings.Contains(string(notes), m[1]) {
			t.Errorf("%s is imported and docs/notes/dependencies.md does not say why", m[1])
		}
	}
}

func TestEveryLogEventIsOneWordAndDescribed(t *testing.T) {
	tree := root(t)
	sources := assert.Get(load(tree))(t)
	described, err := fs.ReadFile(tree, "docs/log.md")
	if err != nil {
		t.Skip("docs/log.md is not there to look events up in")
	}
	for _, s := range sources {
		if s.test || strings.HasSuffix(s.pkg, "test") || !within(s.pkg, "internal") && !within(s.pkg, "cmd") {
			continue // what is for tests calls t.Error
		}
		for word, line := range events(s) {
			switch {
			case !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(word):
				t.Errorf("%s:%d: the event %q is not one constant word", s.name, line, word)
			case !strings.Contains(string(described), "`"+word+"`"):
				t.Errorf("%s:%d: docs/log.md does not describe the event `%s`", s.name, line, word)
			}
		}
	}
}

func TestBreachesAreFound(t *testing.T) {
	long := strings.Repeat("// x\n", 900)
	tests := map[string]struct {
		name, text string
		want       []string
	}{
		"a stage imports a stage": {
			"internal/stage/router/a.go", "// Package router does.\n//\n// Diagnostics: none.\npackage router\n\nimport (\n\t\"os\"\n\t\"zmailer/internal/stage/scheduler\"\n)\n",
			[]string{"internal/stage/router/a.go:8: internal/stage/router must not import internal/stage/scheduler"},
		},
		"a stage imports agent": {
			"internal/stage/router/rules/a.go", "// Package rules does.\n//\n// Diagnostics: none.\npackage rules\n\nimport \"zmailer/internal/stage/agent\"\n",
			[]string{"internal/stage/router/rules/a.go:6: internal/stage/router/rules must not import internal/stage/agent"},
		},
		"an agent's stage imports agent": {
			"internal/stage/mailbox/a.go", "// Package mailbox does.\n//\n// Diagnostics: none.\npackage mailbox\n\nimport \"zmailer/internal/stage/agent\"\n", nil,
		},
		"a format touches the disk": {
			"internal/workspec/a.go", "// Package workspec does.\n//\n// Diagnostics: none.\npackage workspec\n\nimport \"os\"\n",
			[]string{"internal/workspec/a.go:6: internal/workspec must not import os"},
		},
		"the lowest layer imports ours": {
			"internal/run/metrics/a.go", "// Package metrics does.\n//\n// Diagnostics: none.\npackage metrics\n\nimport \"zmailer/internal/mail/address\"\n",
			[]string{"internal/run/metrics/a.go:6: internal/run/metrics must not import internal/mail/address"},
		},
		"a program imports another's stage": {
			"cmd/router/main.go", "// Command router runs.\npackage main\n\nimport \"zmailer/internal/stage/scheduler\"\n",
			[]string{"cmd/router/main.go:4: cmd/router must not import internal/stage/scheduler"},
		},
		"code imports what is for tests": {
			"internal/stage/router/a.go", "// Package router does.\n//\n// Diagnostics: none.\npackage router\n\nimport \"zmailer/internal/disk/cutfs\"\n",
			[]string{"internal/stage/router/a.go:6: internal/stage/router must not import internal/disk/cutfs"},
		},
		"a test imports what is for tests": {
			"internal/stage/router/a_test.go", "package router\n\nimport \"zmailer/internal/disk/cutfs\"\n", nil,
		},
		"a package without a layer": {
			"internal/misc/a.go", "// Package misc does.\n//\n// Diagnostics: none.\npackage misc\n",
			[]string{"internal/misc/a.go:1: internal/misc is in no layer; list in internal/archtest what it may import"},
		},
		"a long file": {
			"internal/mail/status/a_test.go", "package status\n" + long,
			[]string{"internal/mail/status/a_test.go:801: 901 lines, at most 800 are to be"},
		},
		"a long main": {
			"cmd/router/main.go", "// Command router runs.\npackage main\n" + long[:5*99],
			[]string{"cmd/router/main.go:101: 101 lines, at most 100 are to be"},
		},
		"no package comment": {
			"internal/mail/status/a.go", "\npackage status\n", []string{"internal/mail/status/a.go:2: internal/mail/status has no package comment"},
		},
		"a comment without diagnostics": {
			"internal/mail/status/a.go", "// Package status does.\npackage status\n",
			[]string{"internal/mail/status/a.go:1: the package comment has no \"Diagnostics:\""},
		},
		"a comment that does not name the package": {
			"test/peer/a.go", "// Peers for tests.\npackage peer\n",
			[]string{"test/peer/a.go:1: the package comment does not begin with \"Package peer\""},
		},
		"a sleep and a stub": {
			"internal/mail/status/a_test.go", "package status\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n\tpanic(\"stub\")\n}\n",
			[]string{"internal/mail/status/a_test.go:6: time.Sleep; wait for an event with a deadline", "internal/mail/status/a_test.go:7: a stub"},
		},
		"a setting that does not exist": {
			"cmd/router/main.go", "// Command router runs.\npackage main\n\nfunc f(c *C) {\n\tc.String(\"HOSTNAME\", \"\")\n\tc.String(\"HOSTNAM\", \"\")\n}\n",
			[]string{"cmd/router/main.go:6: HOSTNAM is not in config.Variables"},
		},
		"what the go command ignores": {
			"internal/mail/status/testdata/a.go", "package x\n\nimport \"zmailer/internal/stage/agent\"\n", nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found := assert.Get(Check(fstest.MapFS{tt.name: {Data: []byte(tt.text)}}))(t)
			var got []string
			for _, v := range found {
				got = append(got, v.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestUnparsableFileIsNamed(t *testing.T) {
	_, err := Check(fstest.MapFS{"internal/mail/status/a.go": {Data: []byte("package")}})
	if err == nil || !strings.Contains(err.Error(), "internal/mail/status/a.go") {
		t.Errorf("got %v", err)
	}
}
