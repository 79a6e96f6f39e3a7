package faultfs

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/durabletest"
	"zmailer/internal/run/assert"
)

// K1: without rules it is the FS below.
func TestWithoutRulesItPassesTheSuite(t *testing.T) {
	durabletest.Run(t, func(*testing.T) durable.FS { return New(cutfs.New()) })
}

func TestEveryOperationCanFail(t *testing.T) {
	with := func(do func(durable.File) error) func(*FS) error {
		return func(f *FS) error {
			file, err := f.Open("x", os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return errors.Join(do(file), file.Close())
		}
	}
	b := make([]byte, 1)
	steps := map[Op][]func(f *FS) error{
		Open:    {func(f *FS) error { _, err := f.Open("x", os.O_RDONLY, 0); return err }},
		Create:  {func(f *FS) error { _, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600); return err }},
		Rename:  {func(f *FS) error { return f.Rename("x", "y") }, func(f *FS) error { return f.RenameNew("y", "x") }},
		Link:    {func(f *FS) error { return f.Link("x", "z") }},
		Remove:  {func(f *FS) error { return f.Remove("x") }},
		Mkdir:   {func(f *FS) error { return f.Mkdir("x", 0o700) }},
		ReadDir: {func(f *FS) error { _, err := f.ReadDir("x"); return err }},
		SyncDir: {func(f *FS) error { return f.SyncDir("x") }},
		Lock:    {func(f *FS) error { _, err := f.Lock("x", nil); return err }},
		Read: {with(func(f durable.File) error { _, err := f.Read(b); return err }),
			with(func(f durable.File) error { _, err := f.ReadAt(b, 0); return err })},
		Write:   {with(func(f durable.File) error { _, err := f.Write(b); return err })},
		WriteAt: {with(func(f durable.File) error { _, err := f.WriteAt(b, 0); return err })},
		Sync:    {with(func(f durable.File) error { return f.Sync() })},
		Chmod: {with(func(f durable.File) error { return f.Chmod(0o700) }),
			with(func(f durable.File) error { return f.SetModTime(time.Unix(1000, 0)) })},
		Close: {with(func(durable.File) error { return nil })},
		Stat: {func(f *FS) error { _, err := f.Stat("x"); return err },
			with(func(f durable.File) error { _, err := f.Stat(); return err })},
		Flock: {with(func(f durable.File) error { _, err := f.TryLock(); return err }),
			with(func(f durable.File) error { return f.WaitLock() }), with(func(f durable.File) error { return f.Unlock() })},
	}
	for op, list := range steps {
		for _, step := range list {
			f := New(cutfs.New())
			file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
			assert.Must(t, err)
			assert.Must(t, file.Close())
			rule := f.Fail(op, "x", unix.EIO, 1)
			err = step(f)
			perr, lerr := (*fs.PathError)(nil), (*os.LinkError)(nil)
			if !errors.Is(err, unix.EIO) || !errors.As(err, &perr) && !errors.As(err, &lerr) {
				t.Errorf("%s: got %v, want EIO with operation and path", op, err)
			}
			assert.Equal(t, rule.Hits(), 1, "%s hits", op)
			if err := step(f); errors.Is(err, unix.EIO) {
				t.Errorf("%s: failed twice", op)
			}
		}
	}
}

func TestRulesGoByNameAndCount(t *testing.T) {
	f := New(cutfs.New())
	twice := f.Fail(Mkdir, "d/*", unix.ENOSPC, 2)
	always := f.Fail(Any, "e", unix.EMFILE, Always)
	for i, want := range []error{unix.ENOSPC, unix.ENOSPC, fs.ErrNotExist} {
		if err := f.Mkdir("d/x", 0o700); !errors.Is(err, want) {
			t.Errorf("%d: got %v, want %v", i, err, want)
		}
	}
	for range 5 {
		if err := f.Mkdir("e", 0o700); !errors.Is(err, unix.EMFILE) {
			t.Errorf("got %v, want EMFILE", err)
		}
	}
	always.End()
	if err := f.Mkdir("e", 0o700); err != nil {
		t.Errorf("after its end: got %v", err)
	}
	if twice.Hits() != 2 || always.Hits() != 5 {
		t.Errorf("got %d and %d hits, want 2 and 5", twice.Hits(), always.Hits())
	}
}

func TestAnotherProcessMayComeBetween(t *testing.T) {
	disk := cutfs.New()
	other := disk.Process()
	f := New(disk)
	f.On(Rename, "a", 1, func(string) error { return other.Rename("a", "stolen") })
	file := assert.Get(f.Open("a", os.O_RDWR|os.O_CREATE, 0o600))(t)
	if err := f.RenameNew("a", "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	assert.NoError(t, file.Close())
}
