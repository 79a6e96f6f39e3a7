package docs

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readme returns the block of README.md that begins with a line.
func readme(t *testing.T, first string) []string {
	t.Helper()
	text := documents(t)["../README.md"]
	_, rest, ok := strings.Cut(text, "```\n"+first+"\n")
	if !ok {
		t.Fatalf("README.md has no block that begins with %q", first)
	}
	block, _, _ := strings.Cut(rest, "\n```\n")
	return strings.Split(block, "\n")
}

// docs/README.md names every page once: each has its place in the order of jobs.
func TestIndexNamesEveryPage(t *testing.T) {
	texts := documents(t)
	for name := range texts {
		if name == "README.md" || strings.HasPrefix(name, "..") {
			continue
		}
		if n := strings.Count(texts["README.md"], "("+name+")"); n != 1 {
			t.Errorf("docs/README.md names %s %d times, want once", name, n)
		}
	}
}

// scenes parts what the demonstration prints at its headings, and sorts the events of each:
// of two programs either may write its line first.
func scenes(lines []string) map[string][]string {
	found, at := map[string][]string{}, ""
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "All delivered"):
			at = line
			found[at] = nil
		case strings.TrimSpace(line) != "":
			found[at] = append(found[at], line)
		}
	}
	head := regexp.MustCompile(`^[\d:.]+ +(\S+ +\S+) +\S+ +\S+ *`)
	for _, events := range found {
		slices.SortFunc(events, func(a, b string) int {
			return strings.Compare(head.ReplaceAllString(a, "$1 "), head.ReplaceAllString(b, "$1 "))
		})
	}
	return found
}

func TestDemoPrintsWhatTheReadmeShows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := exec.Command("go", "run", "../../scripts/demo", "-bin", bin, "-dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := scenes(strings.Split(strings.ReplaceAll(string(out), dir, "var/demo"), "\n"))
	want := scenes(readme(t, "$ make demo"))
	for _, heading := range slices.Sorted(maps.Keys(want)) {
		shown, printed := strings.Join(want[heading], "\n"), strings.Join(got[heading], "\n")
		if ok, err := newMatcher().match(shown, printed+"\n"); !ok || err != nil {
			t.Errorf("%s\ngot\n%s\nwant\n%s (%v)", heading, printed, shown, err)
		}
	}
	if len(want) != 1 {
		t.Errorf("README.md shows %d parts, want one scene", len(want))
	}
}

// The five commands of README.md are those that test/install runs from install.md, with the
// package of its own.
func TestReadmeInstallsAsInstallPageDoes(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range readme(t, "make deb && apt install ./var/package/zmailer_*.deb") {
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("install.md has no %q", line)
		}
	}
}
