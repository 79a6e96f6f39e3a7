package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// testTime is when everything happens in these tests.
var testTime = time.UnixMilli(1795220010123)

// spool is a postoffice in a temporary directory with an agent on it.
type spool struct {
	testing.TB
	*Spool
	fs    *faultyFS
	agent *Agent
	log   *logtest.Buffer
}

func newSpool(t testing.TB) *spool {
	t.Helper()
	s := &spool{TB: t, fs: &faultyFS{}, log: &logtest.Buffer{}}
	s.Spool = NewSpool(t, func(disk durable.FS) durable.FS {
		s.fs.FS = disk
		return s.fs
	})
	s.agent = &Agent{
		PostOffice: s.PostOffice, Owner: s.owner(), Name: "test", Channels: []string{"smtp", "local"},
		Log: s.log.Logger(), Now: func() time.Time { return testTime },
	}
	return s
}

// owner takes one more owner number, as another process would.
func (s *spool) owner() *postoffice.Owner {
	s.Helper()
	o, err := s.PostOffice.Owners.Take("test")
	assert.Must(s, err)
	s.Cleanup(func() { o.Release() })
	return o
}

const testEnvelope = "from <s@example.org>\nto <r@example.org>\nenv-end\n"

// message writes a message file in queue/ and returns its name and the offset of
// its body.
func (s *spool) message(header, body string) (string, int64) {
	s.Helper()
	return s.messageOf(testEnvelope, header, body)
}

func (s *spool) messageOf(envelope, header, body string) (string, int64) {
	s.Helper()
	return s.PutMessage(envelope + header + body), int64(len(envelope) + len(header))
}

// rcpt is an r line's values.
type rcpt struct{ channel, host, address, notary string }

// queue writes a small message and its specification.
func (s *spool) queue(rcpts ...rcpt) string {
	s.Helper()
	name, body := s.message("Subject: x\n\n", "body\n")
	s.specify(name, body, "Received: here\nSubject: x\n", rcpts...)
	return name
}

// specify writes the specification of a message.
func (s *spool) specify(name string, body int64, header string, rcpts ...rcpt) {
	s.Helper()
	var list []workspec.Recipient
	for _, r := range rcpts {
		list = append(list, workspec.Recipient{Channel: r.channel, Host: r.host, Address: r.address, Notary: r.notary})
	}
	s.Specify(name, Message{Header: header, Rcpts: list}, body)
}

// do performs a job and gives its lines as they go to the scheduler.
func (s *spool) do(name, host string, to Deliverer) string {
	var b []byte
	for _, l := range s.agent.Do(s.Context(), taproto.Job{Name: name, Host: host}, to) {
		b = taproto.AppendLine(b, &l)
	}
	return strings.ReplaceAll(string(b), fmt.Sprintf("test[%d]", os.Getpid()), "test[PID]")
}

// deliverFunc is a Deliverer.
type deliverFunc func(ctx context.Context, d *Delivery)

func (f deliverFunc) Deliver(ctx context.Context, d *Delivery) { f(ctx, d) }

// give gives every recipient the same result.
func give(res Result) Deliverer {
	return deliverFunc(func(_ context.Context, d *Delivery) {
		for _, r := range d.Recipients {
			d.Done(r, res)
		}
	})
}

// byAddress gives each recipient the result of its address, and none to others.
func byAddress(results map[string]Result) Deliverer {
	return deliverFunc(func(_ context.Context, d *Delivery) {
		for _, r := range d.Recipients {
			if res, ok := results[r.Address]; ok {
				d.Done(r, res)
			}
		}
	})
}

var (
	ok     = Result{Outcome: status.Delivered, Code: status.OK, Reply: "250 2.0.0 queued"}
	noUser = Result{Outcome: status.Failed, Code: status.BadMailbox, Reply: "550 5.1.1 no such user", Remote: "dns; mx.example.org",
		Text: "<<- RCPT To:<x>\n->> 550 5.1.1 no such user"}
	later = Result{Code: status.Code{Class: 4, Subject: 2, Detail: 1}, Reply: "451 4.2.1 later", Remote: "dns; mx.example.org"}
)

// faultyFS counts the operations on files and lets some fail.
type faultyFS struct {
	durable.FS
	mu   sync.Mutex
	ops  []string // "open transport/1-7", "writeat", ...
	fail func(op, name string) error
	// waiting is called before a lock is waited for; nil: nothing happens then.
	waiting func(name string)
}

func (f *faultyFS) step(op, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops = append(f.ops, op+" "+name)
	if f.fail != nil {
		return f.fail(op, name)
	}
	return nil
}

// failing sets what fails; nil: nothing.
func (f *faultyFS) failing(fail func(op, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// taken returns and forgets the operations so far.
func (f *faultyFS) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := f.ops
	f.ops = nil
	return ops
}

func (f *faultyFS) Open(name string, flag int, perm os.FileMode) (durable.File, error) {
	if err := f.step("open", name); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	file, err := f.FS.Open(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, fs: f, name: name}, nil
}

type faultyFile struct {
	durable.File
	fs   *faultyFS
	name string
}

func (f *faultyFile) do(op string, call func() (int, error)) (int, error) {
	if err := f.fs.step(op, f.name); err != nil {
		return 0, &os.PathError{Op: op, Path: f.name, Err: err}
	}
	return call()
}

func (f *faultyFile) Write(b []byte) (int, error) {
	return f.do("write", func() (int, error) { return f.File.Write(b) })
}

func (f *faultyFile) Append(b []byte) (int, error) {
	return f.do("append", func() (int, error) { return f.File.Append(b) })
}

func (f *faultyFile) WriteAt(b []byte, off int64) (int, error) {
	return f.do("writeat", func() (int, error) { return f.File.WriteAt(b, off) })
}

func (f *faultyFile) ReadAt(b []byte, off int64) (int, error) {
	return f.do("readat", func() (int, error) { return f.File.ReadAt(b, off) })
}

// WaitLock may have something happen while the lock is waited for.
func (f *faultyFile) WaitLock() error {
	f.fs.mu.Lock()
	waiting := f.fs.waiting
	f.fs.mu.Unlock()
	if waiting != nil {
		waiting(f.name)
	}
	return f.File.WaitLock()
}

func (f *faultyFile) Sync() error {
	_, err := f.do("sync", func() (int, error) { return 0, f.File.Sync() })
	return err
}

func (f *faultyFile) Read(b []byte) (int, error) {
	return f.do("read", func() (int, error) { return f.File.Read(b) })
}
