package workspec

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// samples are specifications that a running ZMailer wrote.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/samples/*/transport-*")
	if err != nil || len(names) == 0 {
		t.Fatalf("samples: %v, %v", names, err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel("testdata/samples", name)
		files[rel] = b
	}
	return files
}

// M16
func TestRecordedSpecificationsPrintBackByteForByte(t *testing.T) {
	for name, file := range samples(t) {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(file)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := Print(&got, s, file); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.String(), string(file)); diff != "" {
				t.Errorf("printed, got - want +\n%s", diff)
			}
			if !s.Complete || s.HasZ || s.Torn {
				t.Errorf("complete %v, z %v, torn %v; want only complete", s.Complete, s.HasZ, s.Torn)
			}
		})
	}
}
