package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// dirRig has files in a directory that changed long ago, and a clock.
type dirRig struct {
	t    *testing.T
	path string
	dir  *Directory
	now  time.Time
	// looks are the stats of files.
	looks int
}

func newDirRig(t *testing.T) *dirRig {
	r := &dirRig{t: t, path: t.TempDir(), now: time.Now()}
	r.dir = NewDirectory(r.path)
	r.age()
	return r
}

// age has the directory's last change be long ago.
func (r *dirRig) age() {
	r.t.Helper()
	old := time.Now().Add(-time.Hour)
	assert.Must(r.t, os.Chtimes(r.path, old, old))
}

func (r *dirRig) open(name string) *File[string] {
	r.t.Helper()
	parse := func(_ string, text []byte) (string, error) { return string(text), nil }
	f := assert.Get(OpenFile(filepath.Join(r.path, name), parse, FileOptions{Directory: r.dir, Now: func() time.Time { return r.now }}))(r.t)
	f.stat = func(path string) (fs.FileInfo, error) {
		r.looks++
		return os.Stat(path)
	}
	return f
}

// later returns what a file has when it is looked at again.
func (r *dirRig) later(f *File[string]) string {
	r.now = r.now.Add(2 * filePeriod)
	return f.Current()
}

func TestFilesThatAreNotThereCostOneLookAtTheirDirectory(t *testing.T) {
	r := newDirRig(t)
	files := []*File[string]{r.open("a"), r.open("b"), r.open("c")}
	for range 3 {
		for _, f := range files {
			assert.Equal(t, r.later(f), "")
		}
	}
	assert.Equal(t, r.looks, len(files)) // the first time each
}

// Each way in which a file appears is seen, whatever was believed before.
func TestFileThatAppearsInADirectoryIsRead(t *testing.T) {
	write := func(t *testing.T, path string) {
		assert.Must(t, os.WriteFile(path, []byte("new"), 0o644))
		old := time.Now().Add(-time.Hour)
		assert.Must(t, os.Chtimes(path, old, old))
	}
	for name, appear := range map[string]func(t *testing.T, r *dirRig, path string){
		"written": func(t *testing.T, _ *dirRig, path string) { write(t, path) },
		"renamed": func(t *testing.T, _ *dirRig, path string) {
			elsewhere := filepath.Join(t.TempDir(), "x")
			write(t, elsewhere)
			if err := os.Rename(elsewhere, path); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, _ *dirRig, path string) {
			elsewhere := filepath.Join(t.TempDir(), "x")
			write(t, elsewhere)
			assert.Must(t, os.Symlink(elsewhere, path))
		},
		"the directory's time was set back": func(t *testing.T, r *dirRig, path string) {
			before := assert.Get(os.Stat(r.path))(t).ModTime()
			write(t, path)
			assert.Must(t, os.Chtimes(r.path, before, before))
		},
		"another directory in its place": func(t *testing.T, r *dirRig, path string) {
			before := assert.Get(os.Stat(r.path))(t).ModTime()
			next := r.path + ".next"
			assert.Must(t, os.Mkdir(next, 0o755))
			write(t, filepath.Join(next, filepath.Base(path)))
			assert.Must(t, errors.Join(os.Chtimes(next, before, before), os.Rename(r.path, r.path+".old"), os.Rename(next, r.path)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDirRig(t)
			f := r.open("a")
			assert.Equal(t, r.later(f), "")
			assert.Equal(t, r.later(f), "")
			looks := r.looks
			appear(t, r, f.path)
			assert.Equal(t, r.later(f), "new")
			if r.looks == looks {
				t.Error("it was not looked at")
			}
		})
	}
}

// The target of a link is made in another directory, which is not looked at.
func TestLinkWhoseTargetAppearsIsRead(t *testing.T) {
	r := newDirRig(t)
	target := filepath.Join(t.TempDir(), "x")
	assert.Must(t, os.Symlink(target, filepath.Join(r.path, "a")))
	r.age()
	f := r.open("a")
	assert.Equal(t, r.later(f), "")
	assert.Equal(t, r.later(f), "")
	old := time.Now().Add(-time.Hour)
	assert.Must(t, errors.Join(os.WriteFile(target, []byte("new"), 0o644), os.Chtimes(target, old, old)))
	assert.Equal(t, r.later(f), "new")
}

// A change of the directory a moment ago may hide the next one. (This one is in the future, so
// that it is as recent however slow the test is.)
func TestDirectoryThatHasJustChangedIsNotBelieved(t *testing.T) {
	r := newDirRig(t)
	f := r.open("a")
	soon := time.Now().Add(time.Hour)
	assert.Must(t, os.Chtimes(r.path, soon, soon))
	for i := range 3 {
		assert.Equal(t, r.later(f), "")
		assert.Equal(t, r.looks, i+1)
	}
}
