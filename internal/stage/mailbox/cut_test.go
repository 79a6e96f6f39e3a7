package mailbox

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// below is a directory of a test disk as the root of a file system.
type below struct {
	durable.FS
	dir string
}

func (b below) Close() error { return nil }
func (b below) Open(name string, flag int, perm os.FileMode) (durable.File, error) {
	return b.FS.Open(b.dir+"/"+name, flag, perm)
}
func (b below) RenameNew(from, to string) error { return b.FS.RenameNew(b.dir+"/"+from, b.dir+"/"+to) }
func (b below) Link(from, to string) error      { return b.FS.Link(b.dir+"/"+from, b.dir+"/"+to) }
func (b below) Remove(name string) error        { return b.FS.Remove(b.dir + "/" + name) }
func (b below) Mkdir(name string, perm os.FileMode) error {
	return b.FS.Mkdir(b.dir+"/"+name, perm)
}
func (b below) Stat(name string) (durable.Info, error) { return b.FS.Stat(b.dir + "/" + name) }
func (b below) ReadDir(name string) ([]durable.Entry, error) {
	return b.FS.ReadDir(path.Join(b.dir, name))
}
func (b below) SyncDir(name string) error { return b.FS.SyncDir(path.Join(b.dir, name)) }

// cutDirs are a test disk's directories.
type cutDirs struct{ fs *cutfs.FS }

// at returns an absolute path's name on the test disk.
func (cutDirs) at(name string) string { return path.Clean("." + path.Clean(name)) }

func (c cutDirs) mkdir(dir string, mode uint32) error {
	return c.fs.Mkdir(c.at(dir), os.FileMode(mode))
}

func (c cutDirs) stat(name string) (fileID, error) {
	info, err := c.fs.Stat(c.at(name))
	return fileID{info.Dev, info.Ino}, err
}

func (c cutDirs) makeable(string, target) (ok, asRoot bool) { return true, false }

func (c cutDirs) sync(name string, _ target, _ bool) error {
	return c.fs.SyncDir(c.at(path.Dir(name)))
}

const cutBody = "body\n"

// fillDisk queues a message on a test disk, for jim if not for others, and makes a whole
// Maildir.
func fillDisk(t *testing.T, disk *cutfs.FS, whole bool, rcpts ...workspec.Recipient) (*cutfs.FS, string) {
	t.Helper()
	if len(rcpts) == 0 {
		rcpts = []workspec.Recipient{mailTo("jim@example.org")}
	}
	assert.Must(t, postoffice.Init(disk))
	if disk.Model() == cutfs.Journal {
		assert.Must(t, disk.Mkdir("jim", 0o700))
	}
	if whole {
		assert.Must(t, makeSubs(below{disk, "jim"}, 0o700))
	}
	const header = "Subject: x\n\n"
	return disk, Fill(t, disk, testEnvelope+header+cutBody, Message{Sender: "s@example.org", Header: "Received: here\nSubject: x\n", Rcpts: rcpts}, int64(len(testEnvelope+header)))
}

// attempt runs one job in a process on a test disk.
func attempt(t *testing.T, disk *cutfs.FS, name string, quota Quota, cut func(*cutfs.FS)) *cutfs.FS {
	t.Helper()
	proc := disk.Process()
	po, err := postoffice.Open(postoffice.Config{FS: proc})
	assert.Must(t, err)
	owner, err := po.Owners.Take("test")
	assert.Must(t, err)
	m, err := New(Config{Template: "/%u/", LocalUsers: "passwd", Hostname: "h", Quota: quota, Now: func() time.Time { return testTime }})
	assert.Must(t, err)
	m.users.byName["jim"] = remembered[account]{account{login: "jim"}, testTime.Add(time.Hour)}
	m.open = func(dir string, _ int, _ bool) (maildirFS, error) {
		if _, err := proc.Stat(strings.TrimPrefix(dir, "/")); err != nil {
			return nil, err
		}
		return below{proc, strings.TrimPrefix(dir, "/")}, nil
	}
	m.dirs = cutDirs{proc}
	a := &agent.Agent{PostOffice: po, Owner: owner, Name: "mailbox", Log: slog.New(slog.DiscardHandler), Now: m.c.Now, Settles: true}
	cut(proc)
	a.Do(t.Context(), taproto.Job{Name: name}, m)
	return proc
}

// state is what a test disk holds of the delivery.
type state struct {
	tag     workspec.Tag
	history []workspec.Event
	whole   int // messages in new/ with all their bytes
	torn    int // files in tmp/
}

func look(t *testing.T, disk *cutfs.FS, name string) state {
	t.Helper()
	read := func(name string) string { return string(Read(t, disk, name)) }
	spec := Parse(t, []byte(read("transport/"+name)))
	s := state{tag: spec.Groups[0].Recipients[0].Tag, history: spec.History}
	entries, err := disk.ReadDir("jim/new")
	if err != nil {
		return s // not made yet
	}
	for _, e := range entries {
		assert.Equal(t, read("jim/new/"+e.Name), top+"Subject: x\n\n"+cutBody, "%s in new/; %s", e.Name, disk.Log())
		s.whole++
	}
	tmp, err := disk.ReadDir("jim/tmp")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	s.torn = len(tmp)
	return s
}

// The process or the machine stops before every operation of a delivery, in every
// way in which a disk may lose what was not synced. Then: no part of a message is
// ever in new/; the tag says delivered only if the message is there; after the next
// attempt it is. A process that only died delivers once, and nothing is left in tmp/;
// so does one after a power loss. With a quota the same holds, and whatever the stop has
// made of the size file, the next message finds room.
func TestMaildirDeliverySurvivesEveryCut(t *testing.T) {
	for what, c := range map[string]struct {
		fresh bool
		quota Quota
		sizes string // the size file; "": none
	}{
		"Maildir made on demand false": {},
		"Maildir made on demand true":  {fresh: true},
		"made on demand, quota":        {fresh: true, quota: Quota{Bytes: 5000}},
		"quota without a size file":    {quota: Quota{Bytes: 5000}},
		"quota with a size file":       {quota: Quota{Bytes: 5000}, sizes: "5000S\n0 0\n"},
		"quota with a full size file":  {quota: Quota{Bytes: 5000}, sizes: "5000S\n4999 9\n-1 0\n"},
	} {
		t.Run(what, func(t *testing.T) {
			var name string
			EveryCut(t, 8, func(cut func(*cutfs.FS)) *cutfs.FS {
				var disk *cutfs.FS
				disk, name = fillDisk(t, cutfs.New(), !c.fresh)
				if c.sizes != "" {
					putSizes(t, disk, c.sizes)
				}
				return attempt(t, disk, name, c.quota, cut)
			}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
				after(t, proc.Restart(loss), name, c.quota, where, loss.Power)
			})
		})
	}
}

// Dur3: a Maildir that is made on demand, on a disk on which a name is durable when the
// directory that it is in was synced and not before, is there with its message when the tag
// says so; also if an attempt that was killed has made it.
func TestDur3NewMaildirSurvivesEveryCut(t *testing.T) {
	var name string
	EveryCut(t, 12, func(cut func(*cutfs.FS)) *cutfs.FS {
		disk := cutfs.New()
		disk.SetModel(cutfs.POSIX)
		disk, name = fillDisk(t, disk, false)
		return attempt(t, disk, name, Quota{}, cut)
	}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
		next := proc.Restart(loss)
		after(t, next, name, Quota{}, where, loss.Power)
		for _, loss := range next.Losses() {
			if s := look(t, next.Restart(loss), name); s.tag == workspec.TagOK && s.whole == 0 {
				t.Errorf("%s, and after the next attempt %v: the tag says delivered, and the message is lost", where, loss)
			}
		}
	})
}

// putSizes gives jim's Maildir a size file that is on the disk.
func putSizes(t *testing.T, disk *cutfs.FS, text string) {
	t.Helper()
	f, err := disk.Open("jim/"+sizeFile, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = io.WriteString(f, text)
	}
	if err == nil {
		err = errors.Join(f.SetModTime(testTime.Add(-time.Hour)), f.Sync(), f.Close(), disk.SyncDir("jim"))
	}
	assert.Must(t, err)
}

// after checks a disk after a stop and delivers what is open.
func after(t *testing.T, disk *cutfs.FS, name string, quota Quota, where string, power bool) {
	t.Helper()
	s := look(t, disk, name)
	defer func() {
		if err := quota.maildirRoom(below{disk, "jim"}, "next", 1000, testTime.Add(time.Hour)); quota.Bytes > 0 && err != nil {
			t.Errorf("%s: the next message: %v", where, err)
		}
	}()
	if s.tag == workspec.TagOK {
		assert.Equal(t, s.whole, 1, "%s: the tag says delivered; messages in new/", where)
		return
	}
	attempt(t, disk, name, quota, func(*cutfs.FS) {})
	s = look(t, disk, name)
	if s.tag != workspec.TagOK || s.whole == 0 {
		t.Errorf("%s: after the next attempt: got tag %q and %d messages", where, s.tag, s.whole)
	}
	for _, e := range s.history {
		if e.Event == workspec.EventInDoubt && !power {
			t.Errorf("%s: in doubt, although its name shows the outcome", where)
		}
	}
	if s.whole > 1 || s.torn > 0 {
		t.Errorf("%s: got %d messages in new/, %d in tmp/", where, s.whole, s.torn)
	}
}
