// Package storetest queues messages for the tests of what works on the delivery queue:
// a Box is a postoffice with a clock and a log, whose methods do what the router and the
// transport agents do.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// Box is a postoffice with a virtual clock.
type Box struct {
	T   testing.TB
	FS  durable.FS
	PO  *postoffice.PostOffice
	Now time.Time
	Log *bytes.Buffer
}

// Conf is a scheduler.conf with two channels.
const Conf = `
PARAM global-report-interval = 5m
*/*
	interval=1m retries="1 2 4" expiry=3d reporttimes=4h maxthr=20
smtp/*
local/*
	command="ta $channel"
`

// New makes a postoffice in f with levels of hash directories.
func New(t testing.TB, f durable.FS, levels int) *Box {
	t.Helper()
	assert.Must(t, postoffice.Init(f))
	return Open(t, f, levels)
}

// Open opens the postoffice in f.
func Open(t testing.TB, f durable.FS, levels int) *Box {
	t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: f, HashLevels: levels})
	assert.Must(t, err)
	return &Box{T: t, FS: f, PO: po, Now: time.Now().Truncate(time.Millisecond), Log: &bytes.Buffer{}}
}

// Disk makes a directory on the real file system; it is removed when the test ends.
func Disk(t testing.TB) (durable.FS, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f, dir
}

// Logger writes to Log, all of it.
func (b *Box) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Rcpt is a recipient for queue: "CHANNEL HOST ADDRESS" and its N, R, n lines.
type Rcpt struct{ Line, Notary, Ret, EnvID string }

// Header is the header of queued messages.
const Header = "Received: by mx.example.org\nFrom: a@b\nSubject: test\n"

// Queue hands over a message as the router does and gives its name.
func (b *Box) Queue(sender string, rcpts ...Rcpt) string {
	b.T.Helper()
	name, err := QueueMessage(b.PO, sender, "Body of the message.\n", rcpts)
	assert.Must(b.T, err)
	return name
}

// QueueMessage is Queue for a message with a body.
func QueueMessage(po *postoffice.PostOffice, sender, body string, rcpts []Rcpt) (string, error) {
	return QueueWith(po, sender, Header, body, rcpts)
}

// QueueWith hands over a message; change may give its specification other lines, while
// the message is accepted and not routed yet.
func QueueWith(po *postoffice.PostOffice, sender, header, body string, rcpts []Rcpt, change ...func(*workspec.Spec, *workspec.Sender)) (string, error) {
	d, err := po.Submissions.NewDraft("test")
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(d, "channel error\nto x\nenv-end\nFrom: a@b\nSubject: test\n\n"); err != nil {
		return "", err
	}
	offset := d.Size()
	if _, err := io.WriteString(d, body); err != nil {
		return "", err
	}
	a, err := d.Commit()
	if err != nil {
		return "", err
	}
	owner, err := po.Owners.Take("test-router")
	if err != nil {
		return "", err
	}
	defer owner.Release()
	name, err := RouteWith(po, owner, strings.TrimPrefix(a.Name, "router/"), offset, sender, header, rcpts, change...)
	if errors.Is(err, postoffice.ErrOccupied) { // it waits under another name
		list, err := po.Router.List(false, time.Now())
		if err != nil || len(list) != 1 {
			return "", fmt.Errorf("router/ has %v: %w", list, err)
		}
		return RouteWith(po, owner, list[0].Name, offset, sender, header, rcpts, change...)
	}
	return name, err
}

// RouteWith hands over the message router/name, whose body is at offset.
func RouteWith(po *postoffice.PostOffice, owner *postoffice.Owner, name string, offset int64, sender, header string, rcpts []Rcpt, change ...func(*workspec.Spec, *workspec.Sender)) (string, error) {
	claim, err := po.Router.Claim(owner, name)
	if err != nil {
		return "", err
	}
	w, err := claim.CreateWork()
	if err != nil {
		return "", err
	}
	spec := workspec.NewWriter(w)
	preamble := &workspec.Spec{Message: claim.Name(), BodyOffset: offset}
	from := workspec.Sender{Channel: "local", Host: "sender", Address: sender, Privilege: "65534"}
	if sender == "<>" {
		from = workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}
	} else {
		preamble.ErrorTo = []string{sender}
	}
	for _, fn := range change {
		fn(preamble, &from)
	}
	spec.Preamble(preamble)
	list := make([]workspec.Recipient, len(rcpts))
	for i, r := range rcpts {
		f := strings.Fields(r.Line)
		list[i] = workspec.Recipient{Channel: f[0], Host: f[1], Address: f[2], Privilege: "65534",
			Notary: r.Notary, Ret: r.Ret, EnvID: r.EnvID}
	}
	spec.Group(from, list, []byte(header))
	if err := spec.Close(); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	to, err := claim.HandOver()
	if err != nil {
		err = errors.Join(err, claim.Release())
	}
	return to, err
}

// Parse reads a specification as it is now.
func (b *Box) Parse(name string) *workspec.Spec {
	b.T.Helper()
	s, err := workspec.Parse([]byte(b.Read("transport/" + name)))
	assert.Must(b.T, err)
	return s
}

// Read reads a file of the postoffice.
func (b *Box) Read(name string) string {
	b.T.Helper()
	f, err := b.FS.Open(name, os.O_RDONLY, 0)
	assert.Must(b.T, err)
	defer f.Close()
	text, err := io.ReadAll(f)
	assert.Must(b.T, err)
	return string(text)
}

// List lists a directory.
func (b *Box) List(dir string) []string {
	b.T.Helper()
	entries, err := b.FS.ReadDir(dir)
	assert.Must(b.T, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

// Reports returns the messages in router/.
func (b *Box) Reports() []string {
	b.T.Helper()
	var list []string
	for _, name := range b.List("router") {
		list = append(list, b.Read("router/"+name))
	}
	return list
}

// Mark does what an agent does for a recipient: diagnostic, then tag.
func (b *Box) Mark(name string, n int, action string, tag workspec.Tag) {
	b.T.Helper()
	assert.Must(b.T, Mark(b.PO, name, n, action, tag, b.Now))
}

// Mark is Box.Mark on any postoffice.
func Mark(po *postoffice.PostOffice, name string, n int, action string, tag workspec.Tag, now time.Time) error {
	f, err := po.Queue.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		return err
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return err
	}
	g := &spec.Groups[0]
	r := &g.Recipients[n]
	if action != "" {
		code := map[string]string{"failed": "5.1.1", "delivered": "2.0.0", "relayed": "2.1.5"}[action]
		err = f.Append(workspec.AppendDiagnostic(nil, &workspec.Diagnostic{Recipient: r.Offset, HeaderOffset: g.HeaderOffset,
			NotaryOffset: r.NotaryOffset, Time: now, Text: "<<- RCPT TO\n->> reply of the host",
			Notary: workspec.Notary{Address: r.Address, Action: action, Status: code, Diagnostic: "smtp; reply of the host",
				Remote: "dns; host.example", Agent: "smtp[1]"}}))
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.SetTag(workspec.TagBytes(spec.Format, tag), workspec.TagOffset(r.Offset)))
}

// Lock sets a recipient's lock as an agent does.
func (b *Box) Lock(name string, n, owner int) {
	b.T.Helper()
	f, err := b.PO.Queue.Open(name)
	assert.Must(b.T, err)
	defer f.Close()
	off := b.Parse(name).Groups[0].Recipients[n].Offset
	assert.Must(b.T, f.SetTag(workspec.LockBytes(owner), workspec.TagOffset(off)))
}

// WantLog checks that a line of the log holds all the words.
func (b *Box) WantLog(words ...string) {
	b.T.Helper()
	for line := range strings.Lines(b.Log.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	b.T.Errorf("no log line with %q in:\n%s", words, b.Log)
}

// Tags returns the recipients' Tags in order.
func Tags(s *workspec.Spec) string {
	out := ""
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			out += string(r.Tag)
		}
	}
	return out
}

// Gone checks that nothing of a message is left.
func Gone(t testing.TB, f durable.FS, name string) {
	t.Helper()
	for _, dir := range []string{"queue/", "transport/"} {
		if _, err := f.Stat(dir + name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s%s is still there (%v)", dir, name, err)
		}
	}
}

// OffsetOf returns the offset of recipient n.
func OffsetOf(s *workspec.Spec, n int) int64 { return s.Groups[0].Recipients[n].Offset }

// ID returns the spool ID of queue/name.
func (b *Box) ID(name string) postoffice.SpoolID {
	b.T.Helper()
	info, err := b.PO.Queue.StatMessage(name)
	assert.Must(b.T, err)
	return postoffice.IDOf(info)
}

// LedgerRecord returns the ledger's record of a message.
func (b *Box) LedgerRecord(id postoffice.SpoolID) ledger.Record {
	b.T.Helper()
	book, err := ledger.Read(b.PO)
	assert.Must(b.T, err)
	if book.Records[id] == nil {
		b.T.Fatalf("the ledger does not know %s: %v", id, book.Records)
	}
	return *book.Records[id]
}

// Fields returns the lines of a report's delivery-status part that start with a name.
func Fields(report, name string) (list []string) {
	for line := range strings.Lines(report) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			list = append(list, strings.TrimSpace(value))
		}
	}
	return list
}

// Plant puts a specification and a message of that name into a postoffice.
func Plant(t testing.TB, dir, sub string, spec []byte) string {
	t.Helper()
	s, err := workspec.Parse(spec)
	name := "4711"
	if err == nil && s.Message != "" {
		name = s.Message
	}
	for top, text := range map[string]string{"queue": strings.Repeat("x\n", 600), "transport": string(spec)} {
		assert.Must(t, os.MkdirAll(filepath.Join(dir, top, sub), 0o755))
		assert.Must(t, os.WriteFile(filepath.Join(dir, top, sub, name), []byte(text), 0o644))
	}
	return filepath.Join(sub, name)
}

// Request returns an order about one message; addresses none: about all its recipients.
func (b *Box) Request(name string, addresses ...string) operations.Request {
	b.T.Helper()
	q := operations.Request{PostOffice: b.PO, ID: b.ID(name), Now: b.Now, Who: "a test", Reason: "because"}
	if len(addresses) > 0 {
		q.Match = func(_ *workspec.Group, r *workspec.Recipient) bool { return slices.Contains(addresses, r.Address) }
	}
	return q
}

// Ordered checks that an order was about n recipients.
func (b *Box) Ordered(res operations.Result, err error) func(n int) {
	return func(n int) {
		b.T.Helper()
		if err != nil || len(res.Changed) != n {
			b.T.Fatalf("the order was about %q, %v; want %d", res.Changed, err, n)
		}
	}
}

// Lengthen gives each recipient of a message as many deferrals as the history may have, or
// almost.
func (b *Box) Lengthen(name string, most int) (attempts int) {
	b.T.Helper()
	f, err := b.PO.Queue.Open(name)
	assert.Must(b.T, err)
	defer f.Close()
	s := b.Parse(name)
	var lines []byte
	for n := 1; ; n++ {
		for gi := range s.Groups {
			for _, r := range s.Groups[gi].Recipients {
				e := workspec.DeferredEvent(b.Now, r.Offset, n, b.Now, status.Code{Class: 4}, "450 4.2.1 later"+strings.Repeat(" and later", 40))
				lines = workspec.AppendEvent(lines, &e)
			}
		}
		if len(lines) > most {
			assert.Must(b.T, f.Append(lines))
			return n
		}
	}
}
