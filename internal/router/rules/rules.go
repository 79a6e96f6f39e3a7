// Package rules says where a recipient goes: it turns an address into targets, each
// a channel, a host and a user with a privilege, by four tables that a postmaster
// edits (formats.md "Routing tables") and by the list of local users:
//
//	fqdnaliases  whole addresses, first
//	localnames   domains that are ours; their users are looked up in
//	aliases      and then among the local users
//	routes       all other domains
//
// It owns nothing on disk and only reads. The tables are held in memory as hash
// maps and read again when their files have changed; a message is resolved with one
// snapshot of them (Tables). Nothing here survives a crash, or needs to.
//
// Diagnostics: New returns a *config.Error that names file, line and reason; the
// program exits with 78. A table that turns bad later is logged once, and the one
// read before stays. *Trouble means that a lookup could not be made now: the message
// must wait, nothing is known about the recipient. A recipient that cannot be
// delivered is no error but a target of channel error.
package rules

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/address"
	"zmailer/internal/config"
)

// Channels that rules itself gives. Any other comes from the table routes.
const (
	Local     = "local"     // a local user's mailbox: host and user are login@domain
	File      = "file"      // host file.UID, user a path
	Pipe      = "pipe"      // host pipe.UID, user a bar and a command
	Bitbucket = "bitbucket" // host -, user what was dropped
	SMTP      = "smtp"      // the channel of a domain that has no route
	Error     = "error"     // host says why, see the Err constants
)

// Hosts of channel error.
const (
	ErrNoUser     = "nouser"     // 5.1.1: a local domain has no such user or alias
	ErrBadAddress = "badaddress" // 5.1.3: not an address
	ErrLoop       = "loop"       // 5.4.6: aliases lead back to themselves, or too deep
	ErrUnsafe     = "unsafe"     // 5.7.1: a program or file that nobody may have run or written
)

// ErrorHost is the host of a recipient that cannot be delivered: one of the Err
// constants, a word, or a status code like 5.7.1, and what the report is to say; ""
// if the word says enough (docs/notes/error-channel.md).
func ErrorHost(word, text string) string {
	if text == "" {
		return word
	}
	return word + ":" + address.EncodeXText(text)
}

// Nobody is the privilege of what comes from no trustworthy file: an address from
// outside, a value of a table that its group or everybody may write (M48). A uid.
const Nobody = 65534

// Target is one place where a recipient's mail is to go.
type Target struct {
	Channel   string
	Host      string // holds no blanks
	User      string // the address in the recipient's line
	Privilege uint32 // a uid
	// Via is what was expanded on the way, the recipient itself first; nil if
	// nothing was. Targets share it: do not change it.
	Via []string
	// Owner is where reports of it go instead of to the message's sender: the owner
	// of the list that it is a member of; "": to the sender.
	Owner string
	VERP  bool // the sender that its agent gives is Owner with the recipient in it
}

// Trouble is a lookup that could not be made.
type Trouble struct {
	Why string // one word, for the name in deferred/: "users", "include"
	Err error
}

func (e *Trouble) Error() string { return e.Err.Error() }
func (e *Trouble) Unwrap() error { return e.Err }

// Config says where the rules come from.
type Config struct {
	// Dir holds routes, aliases, fqdnaliases and localnames; one that is missing is
	// empty. With no Dir the tables built into the programs are used.
	Dir        string
	Hostname   string // this machine's; its domain is local
	Postmaster string // whom mail for postmaster goes to if no alias says so; an address or a local user
	// LocalUsers is "passwd" (also if empty), or the path of a file with one login a
	// line.
	LocalUsers string
	Passwd     Users            // nil: the system's
	Now        func() time.Time // nil: time.Now
	Log        *slog.Logger     // nil: discarded
}

// period is how often files are looked at, at most.
const period = time.Second

// Rules are the tables and their files. It may be used by many goroutines.
type Rules struct {
	now  func() time.Time
	log  *slog.Logger
	next atomic.Int64 // when the files are looked at again, UnixNano
	cur  atomic.Pointer[Tables]

	mu     sync.Mutex // held by who looks at the files
	tables []table
}

// table is a file and what it is read into.
type table struct {
	file  watched
	parse func(to *Tables, s source) error
}

// New reads all tables. A bad one is a *config.Error.
func New(c Config) (*Rules, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	t, err := newTables(c)
	if err != nil {
		return nil, err
	}
	r := &Rules{now: c.Now, log: c.Log}
	for _, k := range []struct {
		name  string
		parse func(*Tables, source) error
	}{
		{"localnames", (*Tables).parseLocalNames},
		{"routes", (*Tables).parseRoutes},
		{"aliases", (*Tables).parseAliases},
		{"fqdnaliases", (*Tables).parseFQDNAliases},
	} {
		if c.Dir == "" {
			built := source{name: "built-in " + k.name, text: string(config.Default(k.name)), uid: Nobody}
			if err := k.parse(t, built); err != nil {
				return nil, err
			}
			continue
		}
		r.tables = append(r.tables, table{watched{path: filepath.Join(c.Dir, k.name)}, k.parse})
	}
	if c.LocalUsers != "" && c.LocalUsers != "passwd" {
		r.tables = append(r.tables, table{watched{path: c.LocalUsers, required: true}, (*Tables).parseUsers})
	}
	for i := range r.tables {
		k := &r.tables[i]
		s, _, err := k.file.read(c.Now(), true)
		if err != nil {
			return nil, err
		}
		if err := k.parse(t, s); err != nil {
			return nil, err
		}
	}
	r.cur.Store(t)
	r.next.Store(c.Now().Add(period).UnixNano())
	return r, nil
}

// newTables makes empty tables.
func newTables(c Config) (*Tables, error) {
	host := address.Mailbox{Local: "postmaster", Domain: c.Hostname}
	hostname, err := host.ASCIIDomain()
	if err != nil || hostname == "" {
		return nil, &config.Error{File: "HOSTNAME", Reason: fmt.Sprintf("%q is no domain", c.Hostname), Err: err}
	}
	if c.Postmaster == "" {
		c.Postmaster = "postmaster"
	}
	postmaster, err := address.Parse(c.Postmaster)
	if err != nil || postmaster.IsNull() {
		return nil, &config.Error{File: "POSTMASTER", Reason: fmt.Sprintf("%q is neither an address nor a local user", c.Postmaster), Err: err}
	}
	if c.Passwd == nil {
		c.Passwd = newPasswd(c.Now)
	}
	return &Tables{
		hostname:   hostname,
		postmaster: postmaster,
		passwd:     c.Passwd,
		includes:   &includes{now: c.Now, files: map[string]*include{}},
		local:      map[string]struct{}{hostname: {}},
	}, nil
}

// Tables gives the tables as they are now. It looks at the files at most once a
// second.
func (r *Rules) Tables() *Tables {
	now := r.now()
	left := r.next.Load() - now.UnixNano()
	if left > 0 && left <= int64(period) || !r.mu.TryLock() {
		return r.cur.Load()
	}
	defer r.mu.Unlock()
	next := now.Add(period)
	old := r.cur.Load()
	t := *old
	changed := false
	for i := range r.tables {
		k := &r.tables[i]
		s, state, err := k.file.read(now, false)
		switch {
		case err != nil:
			r.refused(k.file.path, err)
		case state == unsettled:
			next = now.Add(settle)
		case state == fresh:
			tried := t
			if err := k.parse(&tried, s); err != nil {
				r.refused(k.file.path, err)
				continue
			}
			t, changed = tried, true
			r.log.Info("table-read", "file", k.file.path)
		}
	}
	if changed {
		r.cur.Store(&t)
	}
	r.next.Store(next.UnixNano())
	return r.cur.Load()
}

// refused says once per change that a table cannot be used.
func (r *Rules) refused(path string, err error) {
	r.log.Error("table-refused", "file", path, "reason", err, "kept", "the table as it was read before")
}
