package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// box is a postoffice with a Spool on a virtual clock.
type box struct {
	t     testing.TB
	fs    durable.FS
	po    *postoffice.PostOffice
	spool *Spool
	now   time.Time
	log   *bytes.Buffer
}

const testConf = `
PARAM global-report-interval = 5m
*/*
	interval=1m retries="1 2 4" expiry=3d reporttimes=4h maxthr=20
smtp/*
local/*
	command="ta $channel"
`

func newBox(t testing.TB, f durable.FS) *box {
	return newBoxConf(t, f, 0, testConf)
}

func newBoxConf(t testing.TB, f durable.FS, levels int, conf string) *box {
	t.Helper()
	if err := postoffice.Init(f); err != nil {
		t.Fatal(err)
	}
	return openBox(t, f, levels, conf)
}

func openBox(t testing.TB, f durable.FS, levels int, conf string) *box {
	t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: f, HashLevels: levels})
	if err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, fs: f, po: po, now: time.Now().Truncate(time.Millisecond), log: &bytes.Buffer{}}
	b.spool = &Spool{PostOffice: po, Conf: mustConf(t, conf), Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		Now: func() time.Time { return b.now },
		Log: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	return b
}

// diskBox is a box on the real file system.
func diskBox(t testing.TB) (*box, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return newBox(t, f), dir
}

// rcpt is a recipient for queue: "CHANNEL HOST ADDRESS" and its N, R, n lines.
type rcpt struct{ line, notary, ret, envID string }

const testHeader = "Received: by mx.example.org\nFrom: a@b\nSubject: test\n"

// queue hands over a message as the router does and gives its name.
func (b *box) queue(sender string, rcpts ...rcpt) string {
	b.t.Helper()
	name, err := queueMessage(b.po, sender, "Body of the message.\n", rcpts)
	if err != nil {
		b.t.Fatal(err)
	}
	return name
}

func queueMessage(po *postoffice.PostOffice, sender, body string, rcpts []rcpt) (string, error) {
	return queueWith(po, sender, testHeader, body, rcpts)
}

// queueWith hands over a message; change may give its specification other lines, while
// the message is accepted and not routed yet.
func queueWith(po *postoffice.PostOffice, sender, header, body string, rcpts []rcpt, change ...func(*workspec.Spec, *workspec.Sender)) (string, error) {
	d, err := po.NewDraft("test")
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
	owner, err := po.NewOwner("test-router")
	if err != nil {
		return "", err
	}
	defer owner.Release()
	name, err := routeWith(po, owner, strings.TrimPrefix(a.Name, "router/"), offset, sender, header, rcpts, change...)
	if errors.Is(err, postoffice.ErrOccupied) { // it waits under another name
		list, err := po.ListRouter(false, time.Now())
		if err != nil || len(list) != 1 {
			return "", fmt.Errorf("router/ has %v: %w", list, err)
		}
		return routeWith(po, owner, list[0].Name, offset, sender, header, rcpts, change...)
	}
	return name, err
}

// routeWith hands over the message router/name, whose body is at offset.
func routeWith(po *postoffice.PostOffice, owner *postoffice.Owner, name string, offset int64, sender, header string, rcpts []rcpt, change ...func(*workspec.Spec, *workspec.Sender)) (string, error) {
	claim, err := po.Claim(owner, name)
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
		f := strings.Fields(r.line)
		list[i] = workspec.Recipient{Channel: f[0], Host: f[1], Address: f[2], Privilege: "65534",
			Notary: r.notary, Ret: r.ret, EnvID: r.envID}
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

// parse reads a specification as it is now.
func (b *box) parse(name string) *workspec.Spec {
	b.t.Helper()
	s, err := workspec.Parse([]byte(b.read("transport/" + name)))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *box) read(name string) string {
	b.t.Helper()
	f, err := b.fs.Open(name, os.O_RDONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// list lists a directory.
func (b *box) list(dir string) []string {
	b.t.Helper()
	entries, err := b.fs.ReadDir(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names
}

// reports are the messages in router/.
func (b *box) reports() []string {
	b.t.Helper()
	var list []string
	for _, name := range b.list("router") {
		list = append(list, b.read("router/"+name))
	}
	return list
}

func (b *box) load(name string) *Loaded {
	b.t.Helper()
	l, err := b.spool.Load(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *box) settle(name string) Settled {
	b.t.Helper()
	s, err := b.spool.Settle(name, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// agentMarks does what an agent does for a recipient: diagnostic, then tag.
func (b *box) agentMarks(name string, n int, action string, tag workspec.Tag) {
	b.t.Helper()
	if err := agentMarks(b.po, name, n, action, tag, b.now); err != nil {
		b.t.Fatal(err)
	}
}

func agentMarks(po *postoffice.PostOffice, name string, n int, action string, tag workspec.Tag, now time.Time) error {
	f, err := po.OpenSpec(name)
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

// lock sets a recipient's lock as an agent does.
func (b *box) lock(name string, n, owner int) {
	b.t.Helper()
	f, err := b.po.OpenSpec(name)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	off := b.parse(name).Groups[0].Recipients[n].Offset
	if err := f.SetTag(workspec.LockBytes(owner), workspec.TagOffset(off)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) wantLog(words ...string) {
	b.t.Helper()
	for line := range strings.Lines(b.log.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return
		}
	}
	b.t.Errorf("no log line with %q in:\n%s", words, b.log)
}

// tags are the recipients' tags in order.
func tags(s *workspec.Spec) string {
	out := ""
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			out += string(r.Tag)
		}
	}
	return out
}

func gone(t testing.TB, f durable.FS, name string) {
	t.Helper()
	for _, dir := range []string{"queue/", "transport/"} {
		if _, err := f.Stat(dir + name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s%s is still there (%v)", dir, name, err)
		}
	}
}

func offsetOf(s *workspec.Spec, n int) int64 { return s.Groups[0].Recipients[n].Offset }
