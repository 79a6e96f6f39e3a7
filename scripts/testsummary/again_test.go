package main

import (
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// A test that fails once is run again alone; one that fails again stays failed.
func TestFailedTestsAreRunAgain(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"go.mod": "module x\n\ngo 1.26\n",
		"x_test.go": `package x

import (
	"os"
	"testing"
)

func TestGood(t *testing.T) {}

func TestOnce(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if os.Mkdir("mark", 0o755) == nil {
			t.Error("the first time")
		}
	})
}

func TestAlways(t *testing.T) { t.Error("always") }
`,
	}
	for name, text := range files {
		assert.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	var out strings.Builder
	first, names, err := run([]string{"-count=1", "./..."}, &out)
	if err != nil || first != (counts{passed: 1, failed: 2}) || len(names) != 2 {
		t.Fatalf("got %v, %v, %v\n%s", first, names, err, out.String())
	}
	if got := again(first, names, nil, &out); got != (counts{passed: 2, failed: 1}) || !strings.Contains(out.String(), "FLAKY x.TestOnce/sub") {
		t.Errorf("got %v\n%s", got, out.String())
	}
}
