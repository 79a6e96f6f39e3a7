// Package mailbox is the stage that delivers to this machine's own stores: the
// mailboxes of local users (channel local) and of virtual domains (channel virtual), files
// (channel file), programs (channel pipe) and nowhere (channel bitbucket). A store whose path ends in a slash is a Maildir, any other
// is an mbox file; /dev/null discards.
//
// It owns nothing of the postoffice: recipients are locked and marked by package
// agent. It owns the message that it adds to a store until that is whole: a file in
// a Maildir's tmp/, the bytes at the end of an mbox behind its locks.
//
// What survives a crash: a message is delivered when it is synced and has its name in
// new/ (Maildir), or is synced at the end of the file (mbox); its recipient's tag is set
// after that. If the process is killed in between, the next attempt searches the store:
// for the message's name in a Maildir, which is the same at each attempt, and at the place
// in an mbox that the history records. A complete message there counts as delivered, a
// partial one is removed. A doubt is left, and recorded, only if the store's reader has
// changed it meanwhile, or if the recipient is a program: what it did is unknown.
//
// A local fault is never the sender's: permissions, missing directories and full
// disks defer. Only a user that does not exist (5.1.1), a name that cannot be that of a
// mailbox (5.1.3), and what a program refuses by its exit code fail.
//
// Diagnostics: New and Run fail on a configuration that cannot work, with a
// *TemplateError for MAILBOX. The error of one delivery is its agent.Result.
package mailbox

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/fenced"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// Config is where mail is delivered.
type Config struct {
	PostOffice string   // directory; an agent runs in its transport/, so ".."
	Channels   []string // channels to serve; empty: all of Channels
	Slots      int      // deliveries at once
	Template   string   // MAILBOX: %u user, %h home, %d domain, %% a percent sign
	LocalUsers string   // LOCALUSERS: "passwd" or the path of a list of logins
	Hostname   string   // for names in Maildirs
	// FileUser writes the files that root's tables name, DAEMONUSER; "": root does.
	FileUser string
	Pipe     Pipe  // how programs are run
	Quota    Quota // of users' mailboxes
	Virtual  Virtual
	Lease    *lease.Page // of this machine in a cluster; nil: it is in none
	// LockWait is how long a store's locks are waited for; 0: 30 s.
	LockWait time.Duration
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
}

// Virtual says where virtual mailboxes may be, and whose.
type Virtual struct {
	Base       string // VIRTUALMAILBOXBASE; "": nowhere
	MinimumUID int    // VIRTUALMINIMUMUID; 0: 1
}

// Mailbox delivers to local stores. It is an agent.Deliverer for many goroutines.
type Mailbox struct {
	c       Config
	stores  template
	users   *users
	host    string // in the form for names in Maildirs
	creds   *credentials
	open    func(dir string, uid int, strict bool) (maildirFS, error)
	writers sync.Pool // of *bufio.Writer
	dirs    directories
	synced  durableNames

	mu    sync.Mutex
	boxes map[string]*turn  // mbox files in use by this process
	left  map[string]uint64 // lock files that could not be removed, see leave
}

// Channels lists the channels that this stage delivers.
func Channels() []string { return []string{"local", workspec.Virtual, "file", "pipe", "bitbucket"} }

// bufferSize holds a usual message whole, so that it is one write; bytes.
const bufferSize = 64 << 10

// Run serves the scheduler on in and out until in ends or ctx is done.
func Run(ctx context.Context, c Config, in io.Reader, out io.Writer) (err error) {
	m, err := New(c)
	if err != nil {
		return err
	}
	// Hash levels and SYNC concern who moves files in it; an agent does not.
	p, err := postoffice.OpenLeased(c.PostOffice, 0, false, c.Lease, fenced.Names)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return &config.Error{File: c.PostOffice, Reason: "a transport agent runs in its postoffice's transport/", Err: err}
	}
	if err != nil {
		return err
	}
	if f, ok := p.FS().(interface{ Inherit() }); ok {
		// The scheduler, which is not root, is to see whether our number is still held.
		f.Inherit()
	}
	owner, err := p.Owners.Take("ta-mailbox")
	if err != nil {
		return err
	}
	a := &agent.Agent{
		PostOffice: p, Owner: owner, Name: "mailbox", Channels: m.c.Channels, Log: m.c.Log, Now: m.c.Now, Settles: true, Lease: m.c.Lease,
	}
	defer func() { err = errors.Join(err, a.Release()) }()
	return a.Run(ctx, in, out, c.Slots, m)
}

// New checks a configuration and makes a deliverer of it.
func New(c Config) (*Mailbox, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.LockWait == 0 {
		c.LockWait = 30 * time.Second
	}
	if c.Pipe.Limit <= 0 {
		c.Pipe.Limit = defaultPipeLimit
	}
	if len(c.Channels) == 0 {
		c.Channels = Channels()
	}
	t, err := parseTemplate(c.Template)
	if err != nil {
		return nil, err
	}
	creds, err := ownCredentials()
	if err != nil {
		return nil, err
	}
	m := &Mailbox{
		c: c, stores: t, users: newUsers(c.LocalUsers, c.Now), creds: creds,
		// "/" and ":" mean something in Maildir names.
		host:    strings.NewReplacer("/", `\057`, ":", `\072`).Replace(c.Hostname),
		open:    openMaildir,
		writers: sync.Pool{New: func() any { return bufio.NewWriterSize(nil, bufferSize) }},
		boxes:   map[string]*turn{},
	}
	m.dirs = realDirectories{m}
	return m, nil
}

// Deliver implements agent.Deliverer.
func (m *Mailbox) Deliver(ctx context.Context, d *agent.Delivery) {
	if len(d.Recipients) == 1 {
		m.copy(ctx, d, d.Recipients)
		return
	}
	for _, list := range copies(d) {
		m.copy(ctx, d, list)
	}
}

// copy delivers one copy of the message, which is for all of the list.
func (m *Mailbox) copy(ctx context.Context, d *agent.Delivery, list []*agent.Recipient) {
	start := m.c.Now()
	res := m.deliver(ctx, d, list)
	if len(list) == 1 {
		d.Done(list[0], res)
	} else {
		results := make([]agent.Result, len(list))
		for i := range results {
			results[i] = res
		}
		d.DoneAll(list, results)
	}
	m.c.Log.Debug("local-delivery", "id", d.ID(), "rcpt", list[0].Address, "rcpts", len(list), "channel", list[0].Channel,
		"status", res.Code, "reply", res.Reply, "took", m.c.Now().Sub(start))
}

// deliver brings the message to one store, for recipients who all have that one.
func (m *Mailbox) deliver(ctx context.Context, d *agent.Delivery, list []*agent.Recipient) agent.Result {
	r := list[0]
	for _, one := range list {
		if one.Sent != nil { // an attempt that was for some of them may have written the copy
			r = one
			break
		}
	}
	if isPipe(r) {
		return m.toPipe(d, r)
	}
	t, err := m.target(r)
	if err != nil {
		return m.result(d, r, err)
	}
	if t.path == os.DevNull {
		return delivered("discarded")
	}
	l := message{delivery: d, recipient: r, all: list, lead: leadOf(d, r), now: m.c.Now(), creds: m.creds, as: t.as}
	if len(list) == 1 { // of more, none does
		if err := loops(d, r.Group, r.Address); err != nil {
			return m.result(d, r, err)
		}
	}
	l.top = topLines(r.Group.Sender, l.lead.Address)
	what := "delivered to an mbox file"
	err = m.creds.as(t.as, func() error {
		if dir, ok := strings.CutSuffix(t.path, "/"); ok {
			what = "delivered to a Maildir"
			return m.toMaildir(dir, t, &l)
		}
		return m.toMbox(ctx, t, &l)
	})
	if err != nil {
		return m.result(d, r, err)
	}
	return delivered(what)
}

func delivered(what string) agent.Result {
	return agent.Result{Outcome: status.Delivered, Code: status.OK, Reply: what}
}
