package archtest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// licenceOf returns the SPDX identifier of a licence's text, "" if it is not a known one.
func licenceOf(text string) string {
	if m := regexp.MustCompile(`SPDX-License-Identifier: ([^*\n]+)`).FindStringSubmatch(text); m != nil {
		return strings.TrimSpace(m[1])
	}
	text = strings.Join(strings.Fields(text), " ")
	has := func(phrase string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(phrase)) }
	switch {
	case strings.HasPrefix(text, "Mozilla Public License Version 2.0"): // it names the GPL as another choice
		return "MPL-2.0"
	case has("GNU GENERAL PUBLIC") || has("GNU LESSER") || has("GNU AFFERO") || has("Mozilla Public License"):
		return ""
	case has("Apache License Version 2.0") || has("Apache License, Version 2.0"):
		return "Apache-2.0"
	case has("Permission is hereby granted, free of charge"):
		return "MIT"
	case has("Redistribution and use in source and binary forms") && (has("Neither the name") || has("names of its contributors may")):
		return "BSD-3-Clause"
	case has("Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	}
	return ""
}

// compatible are the licences whose code may be linked into a program under the MIT licence.
var compatible = map[string]bool{
	"MIT": true, "BSD-2-Clause": true, "BSD-3-Clause": true, "Apache-2.0": true, "ISC": true,
	"BSD-3-Clause OR GPL-2.0-only": true,
	// It holds for the files of the module alone (section 3.3), which are linked unchanged.
	"MPL-2.0": true,
}

// Every module that a program of ours links has a licence that is compatible with ours, and
// docs/notes/licences.md lists it. `go test ./internal/archtest -run Licences -update` writes
// the list.
func TestLicencesOfDependenciesAreCompatible(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}", "./...")
	list.Dir = "../.."
	out := assert.Get(list.Output())(t)
	rows, seen := []string{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 || fields[0] == Module || seen[fields[0]] {
			continue
		}
		seen[fields[0]] = true
		files := assert.Get(os.ReadDir(fields[2]))(t)
		licence := ""
		for _, f := range files {
			name := strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(f.Name(), ".md"), ".txt"))
			if name != "license" && name != "licence" && name != "copying" {
				continue
			}
			text := assert.Get(os.ReadFile(filepath.Join(fields[2], f.Name())))(t)
			licence = cmp.Or(licence, licenceOf(string(text)))
		}
		if !compatible[licence] {
			t.Errorf("%s: licence %q is not known to be compatible with MIT", fields[0], licence)
		}
		rows = append(rows, "| "+fields[0]+" | "+licence+" |")
	}
	const page = "../../docs/notes/licences.md"
	text := assert.Get(os.ReadFile(page))(t)
	const head = "| module | licence |\n|---|---|\n"
	before, table, ok := strings.Cut(string(text), head)
	if !ok {
		t.Fatalf("%s has no table", page)
	}
	slices.Sort(rows)
	want := strings.Join(rows, "\n") + "\n"
	if *update {
		assert.Must(t, os.WriteFile(page, []byte(before+head+want), 0o644))
		return
	}
	if table != want {
		t.Errorf("%s is not the list of the modules that are linked; -update writes it:\n%s", page, want)
	}
}

func TestUnknownLicencesAreNotCompatible(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "GPL": "GNU GENERAL PUBLIC LICENSE Version 3", "MPL": "Mozilla Public License Version 1.1",
		"own words": "You may look at this code.",
	} {
		if l := licenceOf(text); compatible[l] {
			t.Errorf("%s: read as %s", name, l)
		}
	}
}
