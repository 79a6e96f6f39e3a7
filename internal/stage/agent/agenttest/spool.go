// Package agenttest has what tests of transport agents share: a postoffice with queued messages,
// and the scheduler's end of an agent that runs as a process.
package agenttest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
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

// NewSpool makes one.
func NewSpool(t testing.TB) *Spool {
	t.Helper()
	s := &Spool{Dir: t.TempDir(), t: t, next: 1000}
	disk, err := durable.NewOS(s.Dir)
	assert.Must(t, err)
	t.Cleanup(func() { disk.Close() })
	assert.Must(t, postoffice.Init(disk))
	if s.PostOffice, err = postoffice.Open(postoffice.Config{FS: disk}); err != nil {
		t.Fatal(err)
	}
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

// Envelope is the head of a message file up to its empty line.
func Envelope() string { return envelope }

// Specify writes the specification of a message file.
func (s *Spool) Specify(name string, m Message, body int64) {
	s.t.Helper()
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
	assert.Must(s.t, w.Close())
	s.Write("transport/"+name, b.Bytes())
}

// name is one that no file has. Agents look at its number only.
func (s *Spool) name() string {
	s.next++
	return strconv.Itoa(s.next) + "-7"
}

// NewName is a name that no file has.
func (s *Spool) NewName() string { return s.name() }

// Write writes a file below the postoffice.
func (s *Spool) Write(path string, b []byte) {
	s.t.Helper()
	path = filepath.Join(s.Dir, path)
	assert.Must(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	assert.Must(s.t, os.WriteFile(path, b, 0o644))
}

// Defer appends the event that the scheduler writes after a deferral.
func (s *Spool) Defer(t testing.TB, name string, a *taproto.Answer) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.Dir, "transport", name), os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(t, err)
	defer f.Close()
	_, err = f.Write(workspec.AppendEvent(nil, &workspec.Event{Time: time.Now(), Recipient: a.Offset, Event: workspec.EventDeferred, Text: a.Text}))
	assert.Must(t, err)
}

// Spec reads a specification.
func (s *Spool) Spec(name string) *workspec.Spec {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.Dir, "transport", name))
	assert.Must(s.t, err)
	spec, err := workspec.Parse(b)
	assert.Must(s.t, err)
	return spec
}

// Tags is the tags of all recipients, in order.
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
