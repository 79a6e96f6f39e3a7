package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	scriptLine = regexp.MustCompile(`go run (?:-race )?\./(scripts/[a-z]+)([^\n` + "`" + `#|&]*)`)
	makeLine   = regexp.MustCompile(`(?m)(?:^ *|` + "`" + `|&& )make ([a-z0-9-]+)(?: ([A-Z]+)=)?`)
	flagWord   = regexp.MustCompile(`(?:^| )--?([a-z][a-z-]*)`)
)

// What is too long to be run, or for those who have the sources, names scripts, flags and
// targets that exist; internal/archtest checks tests and benchmarks.
func TestPagesNameScriptsAndTargetsThatThereAre(t *testing.T) {
	makefile := read(t, "../../Makefile")
	for name, text := range documents(t) {
		for _, m := range scriptLine.FindAllStringSubmatch(text, -1) {
			source := sources(t, filepath.Join("../..", m[1]), "*.go")
			for _, f := range flagWord.FindAllStringSubmatch(m[2], -1) {
				if !strings.Contains(source, `"`+f[1]+`"`) {
					t.Errorf("%s: %s has no flag -%s", name, m[1], f[1])
				}
			}
		}
		for _, m := range makeLine.FindAllStringSubmatch(text, -1) {
			rule := regexp.MustCompile(`(?m)^(?:[a-z0-9 -]+ )?` + m[1] + `(?: [a-z0-9 -]+)?:`)
			if !rule.MatchString(makefile) || m[2] != "" && !strings.Contains(makefile, "("+m[2]+")") {
				t.Errorf("%s: make %s %s: the Makefile has no such target or variable", name, m[1], m[2])
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources returns the texts of a directory's files; none of them is an error.
func sources(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, pattern))
	if len(files) == 0 {
		t.Errorf("there is nothing like %s in %s", pattern, dir)
	}
	var all strings.Builder
	for _, file := range files {
		all.WriteString(read(t, file))
	}
	return all.String()
}
