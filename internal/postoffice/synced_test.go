package postoffice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// M2: what a method promises is on the disk before it returns: when the sync that makes it so
// fails, the method does.
func TestFailedSyncIsNoPromise(t *testing.T) {
	id := NewOperationID(time.Now(), "test", 1)
	draft := func(t *testing.T, p *PostOffice) *Draft {
		t.Helper()
		d := assert.Get(p.Submissions.NewDraft("report"))(t)
		assert.Get(d.Write([]byte("to a\nenv-end\n\n")))(t)
		return d
	}
	spec := func(t *testing.T, p *PostOffice, dir string) *Spec {
		t.Helper()
		assert.Must(t, os.WriteFile(filepath.Join(dir, Transport, "7-1"), []byte("z 1\n"), 0o600))
		s := assert.Get(p.Queue.Open("7-1"))(t)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	record := func(p *PostOffice) error {
		r, _, err := p.Imports.OpenRecord("q", []byte("head\n"))
		if err == nil {
			err = r.Close()
		}
		return err
	}
	for name, tt := range map[string]struct {
		op   faultfs.Op
		glob string
		// prepare is done on a disk that works; it returns the method.
		prepare func(t *testing.T, p *PostOffice, dir string) func() error
	}{
		"content of a prepared message": {faultfs.Sync, "public/*", func(t *testing.T, p *PostOffice, _ string) func() error { return draft(t, p).Prepare }},
		"name of a prepared message":    {faultfs.SyncDir, "public", func(t *testing.T, p *PostOffice, _ string) func() error { return draft(t, p).Prepare }},
		"name of a frozen message": {faultfs.SyncDir, "freezer", func(t *testing.T, p *PostOffice, _ string) func() error {
			d := draft(t, p)
			return func() error { _, err := d.CommitFrozen("test"); return err }
		}},
		"its name before": {faultfs.SyncDir, "public", func(t *testing.T, p *PostOffice, _ string) func() error {
			d := draft(t, p)
			return func() error { _, err := d.CommitFrozen("test"); return err }
		}},
		"prepared message in router/": {faultfs.SyncDir, "router", func(t *testing.T, p *PostOffice, _ string) func() error {
			d := draft(t, p)
			assert.Must(t, d.Prepare())
			return func() error { _, err := p.Submissions.SubmitPrepared(d.Name()); return err }
		}},
		"names of imports":         {faultfs.SyncDir, "imports", func(_ *testing.T, p *PostOffice, _ string) func() error { return p.Imports.SyncDrafts }},
		"imports in router/":       {faultfs.SyncDir, "router", func(_ *testing.T, p *PostOffice, _ string) func() error { return p.Imports.SyncSubmitted }},
		"imports in freezer/":      {faultfs.SyncDir, "freezer", func(_ *testing.T, p *PostOffice, _ string) func() error { return p.Imports.SyncSubmitted }},
		"imports that have gone":   {faultfs.SyncDir, "imports", func(_ *testing.T, p *PostOffice, _ string) func() error { return p.Imports.SyncSubmitted }},
		"name of an import record": {faultfs.SyncDir, "imports", func(_ *testing.T, p *PostOffice, _ string) func() error { return func() error { return record(p) } }},
		"directory of its record":  {faultfs.SyncDir, ".", func(_ *testing.T, p *PostOffice, _ string) func() error { return func() error { return record(p) } }},
		"head of an import record": {faultfs.Sync, "imports/q", func(_ *testing.T, p *PostOffice, _ string) func() error { return func() error { return record(p) } }},
		"import record of before": {faultfs.Sync, "imports/q", func(t *testing.T, p *PostOffice, _ string) func() error {
			assert.Must(t, record(p))
			return func() error { return record(p) }
		}},
		"name of an operation": {faultfs.SyncDir, "orders", func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { _, err := p.Operations.Create(id, []byte("head\n")); return err }
		}},
		"directory of operations": {faultfs.SyncDir, ".", func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { _, err := p.Operations.Create(id, []byte("head\n")); return err }
		}},
		"content of an operation": {faultfs.Sync, "orders/*", func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { _, err := p.Operations.Create(id, []byte("head\n")); return err }
		}},
		"owner number": {faultfs.SyncDir, "owners", func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { _, err := p.Owners.Take("test"); return err }
		}},
		"claims of an owner that ends": {faultfs.SyncDir, "router", func(t *testing.T, p *PostOffice, _ string) func() error {
			return assert.Get(p.Owners.Take("test"))(t).Release
		}},
		"message that a dead writer has left": {faultfs.Sync, "public/left", func(t *testing.T, p *PostOffice, dir string) func() error {
			name := filepath.Join(dir, Public, "left")
			assert.Must(t, errors.Join(os.WriteFile(name, fmt.Appendf(nil, "comment octets %016d\nto a\n\n", 32+6), 0o600), os.Chmod(name, 0o700|mark)))
			return func() error {
				_, err := p.Submissions.acceptLeft("public/left")
				return err
			}
		}},
		"specification under another number": {faultfs.Sync, "router/..*", func(t *testing.T, p *PostOffice, dir string) func() error {
			for _, name := range []string{"queue/7-1", "transport/7-1"} {
				assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("z 1\n"), 0o600))
			}
			r := assert.Get(p.BeginRepair())(t)
			t.Cleanup(func() { _ = r.End() })
			return func() error {
				_, err := r.RenumberQueued("queue/7-1", "transport/7-1", func(spec []byte, _ string) ([]byte, error) { return spec, nil })
				return err
			}
		}},
		"router/ that is opened to users": {faultfs.SyncDir, ".", func(_ *testing.T, p *PostOffice, _ string) func() error { return p.Share }},
		"directories of ROUTERDIRS": {faultfs.SyncDir, ".", func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { return p.Router.EnsureDirs([]string{"router1"}) }
		}},
		"flag of a frozen service": {faultfs.Sync, FreezeFlag, func(_ *testing.T, p *PostOffice, _ string) func() error {
			return func() error { return p.FreezeService("why") }
		}},
		"lines of a specification":         {faultfs.Sync, "transport/7-1", func(t *testing.T, p *PostOffice, dir string) func() error { return spec(t, p, dir).Sync }},
		"note in a replaced specification": {faultfs.Sync, "transport/7-1", func(t *testing.T, p *PostOffice, dir string) func() error { return replace(spec(t, p, dir)) }},
		"content of its replacement":       {faultfs.Sync, "transport/.copy.*", func(t *testing.T, p *PostOffice, dir string) func() error { return replace(spec(t, p, dir)) }},
		"content of the suspensions":       {faultfs.Sync, suspensionNext, suspend},
		"name of the suspensions":          {faultfs.SyncDir, Suspended, suspend},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			below := assert.Get(durable.NewOS(dir))(t)
			t.Cleanup(func() { _ = below.Close() })
			assert.Must(t, Init(below))
			disk := faultfs.New(below)
			p := assert.Get(Open(Config{FS: disk}))(t)
			method := tt.prepare(t, p, dir)
			rule := disk.Fail(tt.op, tt.glob, unix.EIO, faultfs.Always)
			if err := method(); !errors.Is(err, unix.EIO) {
				t.Errorf("got %v, want EIO of %s of %s", err, tt.op, tt.glob)
			}
			if rule.Hits() == 0 {
				t.Error("nothing is synced")
			}
		})
	}
}

func replace(s *Spec) func() error {
	return func() error { return s.Replace([]byte("z 1\nnew\n"), []byte("z 1\n"), []byte("note\n")) }
}

func suspend(_ *testing.T, p *PostOffice, _ string) func() error {
	return func() error {
		return p.ChangeSuspensions(func([]byte) ([]byte, error) { return []byte("x\n"), nil })
	}
}
