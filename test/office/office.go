// Package office builds postoffices for tests of what operators see and do: messages in
// each state, owners that live or are dead, and files as a crash or a restore leaves them.
//
//	o := office.New(t)
//	a, name, offsets := o.Enqueue(t, "a@a.example.com")
//	o.Tag(t, name, offsets[0], workspec.LockBytes(4711))
//
// It keeps nothing beyond a test. Diagnostics: a failure ends the test.
package office

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/setup"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// PlainMail is a message with a sender and one recipient.
const PlainMail = "from <sender@client.example.net>\nto <user@a.example.com>\nenv-end\nSubject: test\n\nbody\n"

// MailFrom is PlainMail of another sender.
func MailFrom(sender string) string {
	return strings.ReplaceAll(PlainMail, "sender@client.example.net", sender)
}

// Office is a postoffice in a directory of a test.
type Office struct {
	*postoffice.PostOffice
	Dir     string
	Routing *postoffice.Owner // of a router, once something was claimed
}

// New makes a postoffice. POSTOFFICE names it until the test ends, and ZCONFIG names none.
func New(t *testing.T) *Office {
	t.Helper()
	t.Setenv("ZCONFIG", "")
	dir := filepath.Join(t.TempDir(), "po")
	t.Setenv("POSTOFFICE", dir)
	assert.Must(t, setup.Make(dir))
	return Open(t, dir, 0)
}

// Open opens the postoffice in a directory.
func Open(t *testing.T, dir string, levels int) *Office {
	t.Helper()
	p, err := postoffice.OpenDir(dir, levels, false)
	assert.Must(t, err)
	t.Cleanup(func() { _ = p.FS().(io.Closer).Close() })
	return &Office{PostOffice: p, Dir: dir}
}

// Run makes an owner number of this role live for the test.
func (o *Office) Run(t *testing.T, role string) *postoffice.Owner {
	t.Helper()
	w, err := o.Owners.Take(role)
	assert.Must(t, err)
	t.Cleanup(func() { w.Release() })
	return w
}

// DeadOwner leaves an owner number as a killed process does.
func (o *Office) DeadOwner(t *testing.T, n int, role string) {
	t.Helper()
	o.Write(t, postoffice.Owners+"/"+strconv.Itoa(n), role+" pid "+strconv.Itoa(n)+"\n")
}

// Path returns the path of a file of the postoffice.
func (o *Office) Path(name string) string { return filepath.Join(o.Dir, name) }

// Write writes a file.
func (o *Office) Write(t *testing.T, name, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(o.Path(name), []byte(text), 0o600))
}

// Read reads a file.
func (o *Office) Read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(o.Path(name))
	assert.Must(t, err)
	return string(b)
}

// Rename renames a file and makes the directory that it goes to.
func (o *Office) Rename(t *testing.T, from, to string) {
	t.Helper()
	assert.Must(t, os.MkdirAll(filepath.Dir(o.Path(to)), 0o755), os.Rename(o.Path(from), o.Path(to)))
}

// Age sets the times of a file.
func (o *Office) Age(t *testing.T, name string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	assert.Must(t, os.Chtimes(o.Path(name), at, at))
}

// Names lists a directory without the reasons beside set-aside messages; one that does not
// exist is empty.
func (o *Office) Names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(o.Path(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if _, reason := postoffice.ReasonFile(e.Name()); !reason {
			list = append(list, e.Name())
		}
	}
	return list
}

// Files lists every file but those in owners/ and ledger/, sorted.
func (o *Office) Files(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(o.Dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(o.Dir, path)
		if err == nil && !d.IsDir() && !strings.HasPrefix(rel, "owners/") && !strings.HasPrefix(rel, "ledger/") {
			names = append(names, rel)
		}
		return err
	})
	assert.Must(t, err)
	sort.Strings(names)
	return names
}

// Picture describes every file with its mode, time and content: two are equal if nothing was
// changed between them.
func (o *Office) Picture(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(o.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		}
		b.WriteByte('\n')
		return nil
	})
	assert.Must(t, err)
	return b.String()
}

// Submit accepts a message.
func (o *Office) Submit(t *testing.T, text string) postoffice.Accepted {
	t.Helper()
	d, err := o.Submissions.NewDraft("test")
	assert.Must(t, err)
	_, err = io.WriteString(d, text)
	assert.Must(t, err)
	a, err := d.Commit()
	assert.Must(t, err)
	return a
}

// Claim claims a message as a router does.
func (o *Office) Claim(t *testing.T, a postoffice.Accepted) *postoffice.Claim {
	t.Helper()
	if o.Routing == nil {
		o.Routing = o.Run(t, "router")
	}
	c, err := o.Router.Claim(o.Routing, filepath.Base(a.Name))
	assert.Must(t, err)
	return c
}

// Put puts a message into deferred/, freezer/ or postman/, with a reason, and returns its
// name there.
func (o *Office) Put(t *testing.T, dir, why, text string) (postoffice.Accepted, string) {
	t.Helper()
	a := o.Submit(t, text)
	c := o.Claim(t, a)
	assert.Must(t, o.Aside.Explain(dir, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "router", What: postoffice.WasDeferred, Text: "full reason of " + why}))
	name := filepath.Base(a.Name)
	switch dir {
	case postoffice.Deferred:
		name += "." + why
		assert.Must(t, c.Defer(why))
	case postoffice.Freezer:
		name += "." + why
		assert.Must(t, c.Freeze(why))
	default:
		assert.Must(t, c.ToPostman())
	}
	return a, name
}

// Addressed is a recipient at a host of channel smtp.
type Addressed struct{ Host, Address string }

// To returns a recipient at a host.
func To(host, address string) Addressed { return Addressed{Host: host, Address: address} }

// Enqueue submits and routes a message to these recipients over smtp/a.example.com, and returns
// its name below transport/ and the offsets of its recipients.
func (o *Office) Enqueue(t *testing.T, rcpts ...string) (a postoffice.Accepted, name string, offsets []int64) {
	t.Helper()
	var list []Addressed
	for _, r := range rcpts {
		list = append(list, Addressed{"a.example.com", r})
	}
	return o.enqueue(t, "sender@client.example.net", list)
}

// EnqueueFrom is Enqueue for a message of a sender to hosts.
func (o *Office) EnqueueFrom(t *testing.T, sender string, rcpts ...Addressed) (id, name string, offsets []int64) {
	t.Helper()
	a, name, offsets := o.enqueue(t, sender, rcpts)
	return a.ID.String(), name, offsets
}

func (o *Office) enqueue(t *testing.T, sender string, rcpts []Addressed) (a postoffice.Accepted, name string, offsets []int64) {
	t.Helper()
	a = o.Submit(t, MailFrom(sender))
	c := o.Claim(t, a)
	work, err := c.CreateWork()
	assert.Must(t, err)
	w := workspec.NewWriter(work)
	w.Preamble(&workspec.Spec{Format: workspec.FormatOurs, Message: c.Name(), BodyOffset: a.Size - int64(len("body\n"))})
	var list []workspec.Recipient
	for _, r := range rcpts {
		list = append(list, workspec.Recipient{Tag: workspec.TagToDo, Channel: "smtp", Host: r.Host, Address: r.Address, Privilege: "65534"})
	}
	w.Group(workspec.Sender{Channel: "local", Host: sender, Address: sender, Privilege: "1"}, list, []byte("Subject: test\n"))
	assert.Must(t, w.Close(), work.Close())
	name, err = c.HandOver()
	assert.Must(t, err)
	for _, g := range o.Spec(t, name).Groups {
		for _, r := range g.Recipients {
			offsets = append(offsets, r.Offset)
		}
	}
	return a, name, offsets
}

// Spec reads a specification.
func (o *Office) Spec(t *testing.T, name string) *workspec.Spec {
	t.Helper()
	spec, err := workspec.Parse([]byte(o.Read(t, postoffice.Transport+"/"+name)))
	assert.Must(t, err)
	return spec
}

// Edit changes a specification as scheduler and agents do.
func (o *Office) Edit(t *testing.T, name string, change func(s *postoffice.Spec) error) {
	t.Helper()
	s, err := o.Queue.Open(name)
	assert.Must(t, err)
	assert.Must(t, change(s), s.Close())
}

// Tag writes the tag of a recipient.
func (o *Office) Tag(t *testing.T, name string, offset int64, b []byte) {
	t.Helper()
	o.Edit(t, name, func(s *postoffice.Spec) error { return s.SetTag(b, workspec.TagOffset(offset)) })
}

// Event appends an event to the history.
func (o *Office) Event(t *testing.T, name string, e workspec.Event) {
	t.Helper()
	o.Edit(t, name, func(s *postoffice.Spec) error { return s.Append(workspec.AppendEvent(nil, &e)) })
}

// Copy copies the postoffice as cp -a does: names, bytes, modes and times stay, every inode
// is another.
func (o *Office) Copy(t *testing.T, levels int) *Office {
	t.Helper()
	to := filepath.Join(t.TempDir(), "restored")
	err := filepath.WalkDir(o.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(o.Dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			err = os.Mkdir(at, 0o700)
		case info.Mode().IsRegular():
			var b []byte
			if b, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(at, b, 0o600)
			}
		default:
			return nil
		}
		return errors.Join(err, os.Chmod(at, info.Mode()), os.Chtimes(at, info.ModTime(), info.ModTime()))
	})
	assert.Must(t, err)
	t.Setenv("POSTOFFICE", to)
	return Open(t, to, levels)
}
