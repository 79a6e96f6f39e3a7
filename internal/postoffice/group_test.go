package postoffice

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// commits has one draft committed, and n others come while the disk is busy with it. It
// gives what became of each, the first ahead. others is asked before the others' syncs.
func commits(t *testing.T, p *PostOffice, disk *faultfs.FS, n int, others func() error) ([]Accepted, []error) {
	t.Helper()
	under, goOn := make(chan bool), make(chan bool)
	disk.On(faultfs.Sync, "public/*", 1, func(string) error {
		close(under)
		<-goOn
		return nil
	})
	disk.On(faultfs.Sync, "public/*", faultfs.Always, func(string) error { return others() })
	got, errs := make([]Accepted, n+1), make([]error, n+1)
	var all sync.WaitGroup
	commit := func(i int) {
		all.Go(func() {
			d, err := p.Submissions.NewDraft("test")
			if err == nil {
				_, err = io.WriteString(d, groupText(i))
			}
			if err == nil {
				got[i], err = d.Commit()
			} else if d != nil {
				err = errors.Join(err, d.Abort())
			}
			errs[i] = err
		})
	}
	commit(0)
	<-under
	for i := range n {
		commit(i + 1)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); p.group.Waiting() < n; {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%d wait for the disk, want %d", p.group.Waiting(), n)
		}
	}
	close(goOn)
	all.Wait()
	return got, errs
}

func groupText(i int) string {
	return fmt.Sprintf("to a%d\n\n%s\n", i, strings.Repeat(fmt.Sprint(i%10), 300))
}

// counter is a disk that counts its syncs.
type counter struct {
	*faultfs.FS
	together int
}

func (c *counter) SyncAll(files []durable.File) error {
	c.together++
	return c.FS.SyncAll(files)
}

func groupOffice(t *testing.T, below durable.FS) (*PostOffice, *counter) {
	t.Helper()
	disk := &counter{FS: faultfs.New(below)}
	p := newOn(t, disk, false)
	return p, disk
}

// M2: sessions that commit at the same time share the disk's syncs; one alone has its
// own.
func TestConcurrentCommitsShareSyncs(t *testing.T) {
	p, disk := groupOffice(t, cutfs.New())
	files := 0
	got, errs := commits(t, p, disk.FS, 20, func() error { files++; return nil })
	assert.Must(t, errors.Join(errs...))
	for i, a := range got {
		if _, err := disk.Stat(a.Name); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if disk.together != 1 || files != 20 {
		t.Errorf("got %d shared syncs of %d files, want 1 of 20", disk.together, files)
	}
	submit(t, p, "to alone\n\n")
	assert.Equal(t, disk.together, 1, "shared syncs of a lone message")
}

// M2: a failing sync refuses every message that shared it, and leaves nothing of them.
func TestFailedSharedSyncAcceptsNothing(t *testing.T) {
	below := cutfs.New()
	p, disk := groupOffice(t, below)
	n := 0
	got, errs := commits(t, p, disk.FS, 20, func() error {
		if n++; n == 5 {
			return unix.EIO
		}
		return nil
	})
	if errs[0] != nil {
		t.Errorf("the first: got %v, want it accepted", errs[0])
	}
	for i, err := range errs[1:] {
		if !errors.Is(err, unix.EIO) {
			t.Errorf("%d: got %v, want EIO", i+1, err)
		}
	}
	for dir, want := range map[string]int{Public: 0, Router: 1} {
		list, err := below.ReadDir(dir)
		if err != nil || len(list) != want {
			t.Errorf("%s/: got %v, %v, want %d files", dir, list, err, want)
		}
	}
	if _, err := below.Stat(got[0].Name); err != nil {
		t.Errorf("the first: %v", err)
	}
	submit(t, p, "to next\n\n") // the group goes on
}

// SYNC=strict is for disks of which no order is taken for granted: each message has its
// own fsync.
func TestStrictSharesNothing(t *testing.T) {
	f := cutfs.New()
	assert.Must(t, Init(f))
	for _, strict := range []bool{true, false} {
		p, err := Open(Config{FS: f, Strict: strict})
		if err != nil || (p.group == nil) != strict {
			t.Errorf("strict %v: got %v, a group %v", strict, err, p.group != nil)
		}
	}
}

// Power is lost at each operation of a shared sync and behind it. What was accepted
// is there, whole; the rest is whole or no message.
func TestCutInsideSharedSyncKeepsAccepted(t *testing.T) {
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose} {
		t.Run(model.String(), func(t *testing.T) {
			cut := true
			for n := 0; cut; n++ {
				below := cutfs.New()
				below.SetModel(model)
				p, disk := groupOffice(t, below)
				below.CutAfter(n)
				got, errs := cutCommits(t, p, disk.FS)
				cut = below.Dead()
				for _, loss := range []cutfs.Loss{cutfs.KeepAll(), cutfs.LoseUnsynced(0), cutfs.LoseUnsynced(3), cutfs.MetadataFirst(),
					{Power: true, Names: -1, Data: cutfs.DataTorn}, {Power: true, Data: cutfs.DataAll}} {
					checkAccepted(t, fmt.Sprintf("cut after %d, %v", n, loss), below.Restart(loss), got, errs)
				}
			}
		})
	}
}

// cutCommits is commits on a disk that may end before all wait.
func cutCommits(t *testing.T, p *PostOffice, disk *faultfs.FS) ([]Accepted, []error) {
	t.Helper()
	const n = 4
	drafts := make([]*Draft, n)
	got, errs := make([]Accepted, n), make([]error, n)
	files := []durable.File{}
	for i := range drafts {
		d, err := p.Submissions.NewDraft("test")
		if err == nil {
			_, err = io.WriteString(d, groupText(i))
		}
		if err == nil {
			err = d.complete()
		}
		if err == nil {
			err = d.f.Chmod(0o700 | mark)
		}
		if err != nil {
			errs[i] = err
			return nil, nil // no submitter was answered
		}
		drafts[i], files = d, append(files, d.f)
	}
	err := disk.SyncAll(files)
	for i, d := range drafts {
		if errs[i] = err; err != nil {
			continue
		}
		info, err := d.f.Stat()
		if err == nil {
			got[i].Name = Router + "/" + inodeName(info.Ino)
			err = disk.RenameNew(d.name, got[i].Name)
		}
		errs[i] = err
	}
	return got, errs
}

// checkAccepted looks for the messages behind a restart, as a router's sweep takes them
// up.
func checkAccepted(t *testing.T, what string, f *cutfs.FS, got []Accepted, errs []error) {
	t.Helper()
	p, err := Open(Config{FS: f})
	if errors.Is(err, ErrNotPostoffice) && len(got) == 0 {
		return
	}
	if err == nil {
		_, err = p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return true }})
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	list, err := f.ReadDir(Router)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	texts := map[string]int{}
	for _, e := range list {
		file, err := f.Open(path.Join(Router, e.Name), 0, 0)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		b, err := io.ReadAll(file)
		if err != nil || len(b) < octetsLine {
			t.Errorf("%s: %s: got %q, %v", what, e.Name, b, err)
			continue
		}
		texts[string(b[octetsLine:])]++
	}
	for i := range got {
		if errs[i] == nil && texts[groupText(i)] != 1 {
			t.Errorf("%s: message %d was accepted and is there %d times", what, i, texts[groupText(i)])
		}
		delete(texts, groupText(i))
	}
	if len(got) > 0 && len(texts) > 0 {
		t.Errorf("%s: what no one sent: %v", what, texts)
	}
}
