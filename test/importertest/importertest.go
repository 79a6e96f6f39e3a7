// Package importertest reads what a Source gives, for tests of the formats.
package importertest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/importer"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "write golden files")

// Text returns all that a source has, in words.
func Text(t *testing.T, s importer.Source) string {
	t.Helper()
	refs, err := s.List(t.Context())
	assert.Must(t, err)
	var b strings.Builder
	for _, ref := range refs {
		fmt.Fprintf(&b, "=== %s\n", ref.Name)
		l, err := s.Open(ref)
		if err != nil {
			what := "error"
			if errors.Is(err, importer.ErrLeft) {
				what = "left"
			}
			fmt.Fprintf(&b, "%s: %v\n", what, err)
			continue
		}
		message(t, &b, l)
	}
	return b.String()
}

func message(t *testing.T, b *strings.Builder, l *importer.Message) {
	t.Helper()
	fmt.Fprintf(b, "key %s\n", l.Key)
	if !l.Arrival.IsZero() {
		fmt.Fprintf(b, "arrival %s\n", l.Arrival.UTC().Format(time.RFC3339Nano))
	}
	fmt.Fprintf(b, "local %v fullname %q bodytype %q\n", l.Local, l.FullName, l.BodyType)
	for _, p := range l.Parts {
		fmt.Fprintf(b, "from <%s> envid %q ret %q held %q\n", p.Sender, p.EnvID, p.Ret, p.Held)
		for _, r := range p.Recipients {
			fmt.Fprintf(b, "  to <%s> %s\n", r.Address, r.DSN)
		}
	}
	for _, n := range l.Notes {
		fmt.Fprintf(b, "note %s\n", n)
	}
	if len(l.Parts) > 0 {
		var content bytes.Buffer
		if err := l.Write(&content); err != nil {
			fmt.Fprintf(b, "error: %v\n", err)
		}
		for line := range strings.Lines(content.String()) {
			fmt.Fprintf(b, "| %q\n", line)
		}
	}
	if l.Close != nil {
		assert.NoError(t, l.Close())
	}
}

// Golden compares a text with a golden file.
func Golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		assert.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	assert.Must(t, err)
	assert.Same(t, got, string(want), file)
}

// Copy copies a queue into a directory of the test, with the modes of its files, and makes
// directories that git does not keep.
func Copy(t *testing.T, from string, dirs ...string) string {
	t.Helper()
	to := t.TempDir()
	assert.Must(t, os.CopyFS(to, os.DirFS(from)))
	for _, d := range dirs {
		assert.Must(t, os.MkdirAll(filepath.Join(to, d), 0o755))
	}
	return to
}

// Take imports from a source with --move into a postoffice of the test's.
func Take(t *testing.T, disk durable.FS, s importer.Source) importer.Sum {
	t.Helper()
	p, err := postoffice.Open(postoffice.Config{FS: disk})
	assert.Must(t, err)
	sum, err := importer.Run(t.Context(), importer.Config{PostOffice: p, Source: s, System: "test", Path: "/old", Move: true})
	assert.Must(t, err)
	return sum
}

// Disk is that of a postoffice.
func Disk(t *testing.T) durable.FS {
	t.Helper()
	disk, err := durable.NewOS(t.TempDir())
	assert.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, postoffice.Init(disk))
	return disk
}

// All lists what is left below a directory but some of the directories in it.
func All(t *testing.T, dir string, but ...string) []string {
	t.Helper()
	var list []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && name != "." && !slices.Contains(but, name) {
			list = append(list, name)
		}
		return err
	})
	assert.Must(t, err)
	return list
}

// Files lists what is left in a directory.
func Files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, name)
		}
		return err
	})
	assert.Must(t, err)
	return list
}
