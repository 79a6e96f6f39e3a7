package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/suite"
)

// many makes n more messages that wait as the one does that is named.
func many(t *testing.T, s *suite.Suite, name string, n int) {
	t.Helper()
	first, ok := postoffice.ParseName(name)
	if !ok {
		t.Fatalf("%s is no spool name", name)
	}
	spec, message := []byte(read(t, path(s, "transport/"+name))), []byte(read(t, path(s, "queue/"+name)))
	for range n {
		tmp := path(s, "queue/new")
		var st syscall.Stat_t
		assert.Must(t, errors.Join(os.WriteFile(tmp, message, 0o600), syscall.Stat(tmp, &st)))
		next := postoffice.Name{Ino: st.Ino, Owner: first.Owner}.String()
		b, err := workspec.Renumber(spec, next)
		assert.Must(t, errors.Join(err, os.Rename(tmp, path(s, "queue/"+next)), os.WriteFile(path(s, "transport/"+next), b, 0o600)))
	}
}

// moved reports whether no specification is left at another depth, without reading all of a
// large directory.
func moved(t *testing.T, s *suite.Suite, levels int) bool {
	t.Helper()
	for depth, pattern := range []string{"transport", "transport/[A-Z]", "transport/[A-Z]/[A-Z]"} {
		dirs := assert.Get(filepath.Glob(path(s, pattern)))(t)
		for _, dir := range dirs {
			if depth != levels && hasFile(t, dir) {
				return false
			}
		}
	}
	return true
}

// hasFile reports whether a directory contains a file.
func hasFile(t *testing.T, dir string) bool {
	t.Helper()
	d, err := os.Open(dir)
	assert.Must(t, err)
	defer d.Close()
	for {
		list, err := d.ReadDir(100)
		if slices.ContainsFunc(list, func(e os.DirEntry) bool { return !e.IsDir() }) {
			return true
		}
		if err == io.EOF {
			return false
		}
		assert.Must(t, err)
	}
}

// M21: 100,000 messages wait when HASHLEVELS becomes 2, and again when it becomes 1: the
// scheduler moves both files of each to their place, and new mail is delivered meanwhile.
func TestLargeSpoolIsRehashed(t *testing.T) {
	t.Parallel()
	count := 20_000 // on any disk
	s := prepare(t, nil, slow)
	if os.Geteuid() == 0 && inMemory(t, s.PostOffice()) {
		count = 100_000
		zmctl(t, s, "init")
	}
	if testing.Short() {
		count = 2000
	}
	begin(t, s)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "w@127.0.0.1")
	event(t, s, "deferred")
	stop(t, s)
	many(t, s, only(t, s, "transport"), count-1)
	conf := read(t, s.Config())
	for n, levels := range []int{2, 1} {
		write(t, s.Config(), conf+fmt.Sprintf("HASHLEVELS=%d\n", levels))
		restart(t, s)
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
		awaitMail(t, s, "alice", n+1)
		awaitFor(t, s, 5*patience, fmt.Sprintf("spool of %d levels", levels), func() (bool, error) { return moved(t, s, levels), nil })
		scheduler := oneOf(t, s, "scheduler")
		t.Logf("%d messages, %d levels: the scheduler has had %d MB", count, levels, scheduler.Peak()>>20)
		stop(t, s)
		left := assert.Get(s.Left())(t)
		assert.Equal(t, inPlace(left, levels), 2*count, levels)
	}
	wantNone(t, s, "specification-refused", "vanished", "recovered", "message-lost")
}

// inMemory mounts a file system in memory that has room for a large spool.
func inMemory(t *testing.T, dir string) bool {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2g,nr_inodes=0"); err != nil {
		return false
	}
	t.Cleanup(func() {
		// Its processes are killed; the last of them may still be on its way out.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return true
}

// inPlace counts the files of queue/ and transport/ that stand where they belong; -1
// if one does not.
func inPlace(left []string, levels int) int {
	n := 0
	for _, name := range left {
		dir, file, _ := strings.Cut(name, "/")
		if dir != "queue" && dir != "transport" {
			continue
		}
		base := file[strings.LastIndexByte(file, '/')+1:]
		parsed, ok := postoffice.ParseName(base)
		want := base
		if hash := postoffice.HashDir(parsed.Ino, levels); hash != "" {
			want = hash + "/" + base
		}
		if !ok || file != want {
			return -1
		}
		n++
	}
	return n
}
