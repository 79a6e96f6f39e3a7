// Package agenttest has what tests of transport agents share: a postoffice with queued messages,
// and the scheduler's end of an agent that runs as a process.
package agenttest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// Spool is a postoffice in a temporary directory.
type Spool struct {
	Dir        string
	PostOffice *postoffice.PostOffice

	t    testing.TB
	next int
}

// NewSpool makes one, whose postoffice is on the disk that wrap returns, if there is one.
func NewSpool(t testing.TB, wrap ...func(durable.FS) durable.FS) *Spool {
	t.Helper()
	s := &Spool{Dir: t.TempDir(), t: t, next: 1000}
	real, err := durable.NewOS(s.Dir)
	assert.Must(t, err)
	t.Cleanup(func() { real.Close() })
	disk := durable.FS(real)
	for _, w := range wrap {
		disk = w(disk)
	}
	assert.Must(t, postoffice.Init(disk))
	s.PostOffice, err = postoffice.Open(postoffice.Config{FS: disk})
	assert.Must(t, err)
	return s
}

// Message is one to be queued. Zero values give a small message from sender@here.test.
type Message struct {
	Sender string // "-" for the null sender
	VERP   string // see workspec.Sender
	Header string // as it is to be sent
	// Stored is the message from its empty line on; it is stored as it is. "": an
	// empty line and a short body.
	Stored string
	Rcpts  []workspec.Recipient
}

// Rcpts are recipients of one channel and host.
func Rcpts(channel, host string, addresses ...string) []workspec.Recipient {
	var list []workspec.Recipient
	for _, a := range addresses {
		list = append(list, workspec.Recipient{Channel: channel, Host: host, Address: a})
	}
	return list
}

// Queue writes the message file and its specification and returns their name.
func (s *Spool) Queue(m Message) string {
	s.t.Helper()
	if m.Stored == "" {
		m.Stored = "\nbody\n"
	}
	name := s.name()
	s.Write("queue/"+name, []byte(envelope+m.Stored))
	s.Specify(name, m, int64(len(envelope)+1))
	return name
}

const envelope = "from <sender@here.test>\nto <to@there.test>\nenv-end\nSubject: as it came\n"

// Envelope returns the head of a message file up to its empty line.
func Envelope() string { return envelope }

// PutMessage writes a message file and returns its name, which has its inode number as the
// router's have.
func (s *Spool) PutMessage(text string) string {
	s.t.Helper()
	s.Write("queue/new", []byte(text))
	info, err := os.Stat(filepath.Join(s.Dir, "queue", "new"))
	assert.Must(s.t, err)
	name := strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10) + "-7"
	assert.Must(s.t, os.Rename(filepath.Join(s.Dir, "queue", "new"), filepath.Join(s.Dir, "queue", name)))
	return name
}

// Specify writes the specification of a message file.
func (s *Spool) Specify(name string, m Message, body int64) {
	s.t.Helper()
	s.Write("transport/"+name, Specification(s.t, name, m, body))
}

// Fill queues a message on a test disk and makes it durable; its content begins with text.
func Fill(t testing.TB, disk durable.FS, text string, m Message, body int64) (name string) {
	t.Helper()
	put := func(name string, b []byte) uint64 {
		f, err := disk.Open(name, os.O_RDWR|os.O_CREATE, 0o600)
		assert.Must(t, err)
		_, err = f.Write(b)
		assert.Must(t, err)
		info, err := f.Stat()
		assert.Must(t, errors.Join(err, f.Sync(), f.Close()))
		return info.Ino
	}
	name = strconv.FormatUint(put("queue/new", []byte(text)), 10) + "-7"
	assert.Must(t, disk.Rename("queue/new", "queue/"+name))
	put("transport/"+name, Specification(t, name, m, body))
	for _, dir := range []string{"queue", "transport", "."} {
		assert.Must(t, disk.SyncDir(dir))
	}
	return name
}

// Read returns what a test disk has in a file.
func Read(t testing.TB, disk durable.FS, name string) []byte {
	t.Helper()
	f, err := disk.Open(name, os.O_RDONLY, 0)
	assert.Must(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	assert.Must(t, err)
	return b
}

// Parse parses a specification.
func Parse(t testing.TB, b []byte) *workspec.Spec {
	t.Helper()
	spec, err := workspec.Parse(b)
	assert.Must(t, err)
	return spec
}

// Specification returns the specification of a message file whose body begins at an offset.
func Specification(t testing.TB, name string, m Message, body int64) []byte {
	t.Helper()
	sender := workspec.Sender{Channel: "local", Host: "sender@here.test", Address: "sender@here.test", Privilege: "65534"}
	switch m.Sender {
	case "":
	case "-":
		sender = workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}
	default:
		sender.Host, sender.Address = m.Sender, m.Sender
	}
	sender.VERP = m.VERP
	if m.Header == "" {
		m.Header = "Subject: test\n"
	}
	for i := range m.Rcpts {
		if m.Rcpts[i].Privilege == "" {
			m.Rcpts[i].Privilege = "65534"
		}
	}
	var b bytes.Buffer
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: body})
	w.Group(sender, m.Rcpts, []byte(m.Header))
	assert.Must(t, w.Close())
	return b.Bytes()
}

// name is one that no file has. Agents look at its number only.
func (s *Spool) name() string {
	s.next++
	return strconv.Itoa(s.next) + "-7"
}

// NewName returns a name that no file has.
func (s *Spool) NewName() string { return s.name() }

// Write writes a file below the postoffice.
func (s *Spool) Write(path string, b []byte) {
	s.t.Helper()
	path = filepath.Join(s.Dir, path)
	assert.Must(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	assert.Must(s.t, os.WriteFile(path, b, 0o644))
}

// Event appends a line to a specification's history.
func (s *Spool) Event(name string, e workspec.Event) {
	s.t.Helper()
	f, err := os.OpenFile(s.Path(name), os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(s.t, err)
	defer f.Close()
	_, err = f.Write(workspec.AppendEvent(nil, &e))
	assert.Must(s.t, err)
}

// Defer appends the event that the scheduler writes after a deferral.
func (s *Spool) Defer(name string, a *taproto.Answer) {
	s.t.Helper()
	s.Event(name, workspec.Event{Time: time.Now(), Recipient: a.Offset, Event: workspec.EventDeferred, Text: a.Text})
}

// Mark writes a recipient's tag field.
func (s *Spool) Mark(name string, recipient int, tag []byte) {
	s.t.Helper()
	f, err := os.OpenFile(s.Path(name), os.O_RDWR, 0)
	assert.Must(s.t, err)
	defer f.Close()
	_, err = f.WriteAt(tag, workspec.TagOffset(s.Spec(name).Groups[0].Recipients[recipient].Offset))
	assert.Must(s.t, err)
}

// Path returns the path of a specification.
func (s *Spool) Path(name string) string { return filepath.Join(s.Dir, "transport", name) }

// Text reads a specification.
func (s *Spool) Text(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(s.Path(name))
	assert.Must(s.t, err)
	return string(b)
}

// Spec is Text, parsed.
func (s *Spool) Spec(name string) *workspec.Spec {
	s.t.Helper()
	return Parse(s.t, []byte(s.Text(name)))
}

// Tags returns the tags of all recipients, in order.
func (s *Spool) Tags(name string) string {
	s.t.Helper()
	var tags []byte
	for _, g := range s.Spec(name).Groups {
		for _, r := range g.Recipients {
			tags = append(tags, byte(r.Tag))
		}
	}
	return string(tags)
}
