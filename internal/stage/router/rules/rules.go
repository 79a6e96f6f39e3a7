// Package rules decides where a recipient goes: it turns an address into targets, each
// a channel, a host and a user with a privilege. It asks these tables, in this
// order (docs/routing.md):
//
//	fqdnaliases  whole addresses, first
//	localnames   domains that are ours; their users are looked up in
//	aliases      , then among
//	lists        , then among the local users, who may have a .forward
//	virtual...   domains whose addresses are found by name@domain (docs/virtual-domains.md)
//	relay...     domains that we relay for (docs/relay-domains.md)
//	routes       all other domains
//
// A message takes one snapshot and resolves its recipients with it:
//
//	tables := r.Tables()
//	err := tables.Resolve(ctx, rules.Query{Recipient: m}, func(t rules.Target) error { ... })
//
// It owns nothing on disk and only reads. Text tables are held in memory as hash maps
// and read again when their files have changed; other sources are asked for each key
// (package table). A message is resolved with one snapshot of them (Tables). Nothing
// here survives a crash, or needs to.
//
// Diagnostics: New returns a *config.Error that names file, line and reason; the
// program exits with 78. A table that turns bad later is logged once, and the one
// read before stays. *Trouble means that a lookup could not be made now: the message
// must wait, nothing is known about the recipient. A recipient that cannot be
// delivered is no error but a target of channel error.
package rules

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// Config names the sources of the rules.
type Config struct {
	// Dir holds routes, aliases, fqdnaliases, localnames and lists/; one that is missing
	// is empty. With no Dir the tables built into the programs are used.
	Dir string
	// Sources are those of a table, asked in their order; a table that has none is
	// the file of its name in Dir.
	Sources map[text.Kind][]string
	// Source is what the sources that are not text files have in common.
	Source     table.Options
	Hostname   string // this machine's; its domain is local
	Classes    Classes
	Postmaster string // whom mail for postmaster goes to if no alias says so; an address or a local user
	// LocalUsers is "passwd" (also if empty), or the path of a file with one login a
	// line.
	LocalUsers string
	// Subaddress are the characters of which one parts user and tag; "": there are no
	// tags.
	Subaddress string
	// Extend says in which tables an alias of user, under which user+tag was found, leads to its
	// addresses with +tag.
	Extend Extend
	// Forward is the path of a user's own aliases, ~ his home, %u his login; "": users
	// have none.
	Forward string
	// Reverse returns the address that an address of ours stands for, as package srs has it; ok is
	// false for any other, an error is why it stands for none. nil: no address does.
	Reverse func(m address.Mailbox) (to address.Mailbox, ok bool, err error)
	Closed  Closed           // for .forward files and what they and lists include; nil: no process
	Keeper  config.Keeper    // of the text tables; may be nil
	Passwd  Users            // nil: the system's
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: discarded
}

// period is how often files are looked at, at most.
const period = time.Second

// Rules are the tables and their files. It may be used by many goroutines.
type Rules struct {
	now  func() time.Time
	log  *slog.Logger
	keep config.Keeper
	next atomic.Int64 // when the files are looked at again, UnixNano
	gen  atomic.Int64 // how often the tables have changed
	cur  atomic.Pointer[Tables]

	mu    sync.Mutex // held by who looks at the files
	feeds []feed
	open  []*external
	dir   string // relative paths start here
}

// feed is a file and what it is read into.
type feed struct {
	file  watched
	parse func(to *Tables, s source) error
	// agrees: the table must agree with others. What was read waits until it does, and blamed is the
	// reason, once that was reported.
	agrees  bool
	waiting *parsed
	blamed  string
}

// parsed is the content of a file that can be used.
type parsed struct {
	source
	warnings error
}

// New reads all tables. Its error joins a *config.Error for each line and source that cannot
// be used.
func New(c Config) (*Rules, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	t, err := newTables(c)
	if t == nil {
		return nil, err
	}
	errs := []error{err}
	r := &Rules{now: c.Now, log: c.Log, keep: c.Keeper, dir: c.Dir}
	for _, kind := range text.Kinds() {
		if kind == text.Masquerade {
			continue // it is not about recipients
		}
		errs = append(errs, r.addTable(t, c, kind))
	}
	if c.LocalUsers != "" && c.LocalUsers != "passwd" {
		r.feeds = append(r.feeds, feed{file: watched{path: c.LocalUsers, required: true}, parse: (*Tables).parseUsers})
	}
	for i := range r.feeds {
		errs = append(errs, r.first(t, &r.feeds[i]))
	}
	err = errors.Join(errs...)
	if err == nil {
		err = r.agreeAtStart(t)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	t.lookForLists()
	r.cur.Store(t)
	r.next.Store(c.Now().Add(period).UnixNano())
	return r, nil
}

// first reads a file at the start. For one that cannot be used there may be a copy of what
// it had when it could.
func (r *Rules) first(t *Tables, k *feed) error {
	s, _, err := k.file.read(r.now(), true)
	if err == nil {
		err = r.take(t, k, s)
	}
	if err == nil || r.keep == nil {
		return err
	}
	old := r.lastGood(k)
	if old == nil {
		r.keep.Bad(k.file.path, err, false)
		return err
	}
	bad, _ := config.Sort(k.parse(t, old.source))
	r.keep.Bad(k.file.path, err, bad == nil)
	if bad != nil {
		return err
	}
	r.log.Error("table-refused", "file", k.file.path, "reason", err, "kept", "the copy of "+old.time.UTC().Format(time.RFC3339))
	return nil
}

// copied is what a file had when it could be used.
type copied struct {
	source
	time time.Time
}

// lastGood returns the copy of what a file had when it could be used, or nil if no copy is kept.
func (r *Rules) lastGood(k *feed) *copied {
	kept := r.keep.Last(k.file.path)
	if kept == nil {
		return nil
	}
	old := source{name: k.file.path, text: string(kept.Text), rights: rights{uid: kept.UID}}
	if kept.UID == Nobody {
		old.rights.why = "the copy of " + k.file.path + " belongs to the user account nobody"
	}
	return &copied{old, kept.Time}
}

// take parses what was read, and has it kept unless it has to agree with other tables first.
func (r *Rules) take(t *Tables, k *feed, s source) error {
	k.waiting, k.blamed = nil, ""
	err, warnings := config.Sort(k.parse(t, s))
	if err != nil {
		return err
	}
	if k.agrees {
		k.waiting = &parsed{s, warnings}
		return nil
	}
	r.good(k, parsed{s, warnings})
	return nil
}

// good has the content of a file kept that can be used.
func (r *Rules) good(k *feed, p parsed) {
	config.LogWarnings(r.log, k.file.path, p.warnings)
	if r.cur.Load() != nil {
		r.log.Info("table-read", "file", k.file.path)
	}
	switch {
	case r.keep == nil:
	case p.exists:
		r.keep.Good(k.file.path, []byte(p.text), p.rights.uid, p.warnings)
	default:
		r.keep.Good(k.file.path, nil, Nobody, p.warnings)
	}
}

// addTable makes the layers of one table, a source each.
func (r *Rules) addTable(t *Tables, c Config, kind text.Kind) error {
	sources := c.Sources[kind]
	layers := t.layersOf(kind)
	if len(sources) == 0 && slices.Contains(text.ClassKinds(), kind) {
		return nil
	}
	if len(sources) == 0 && c.Dir == "" {
		*layers = make([]layer, 1)
		built := source{name: "built-in " + string(kind), text: string(config.Default(string(kind))),
			rights: rights{uid: Nobody, why: "built-in tables belong to the user nobody"}}
		return t.parseLayer(kind, 0, built)
	}
	if len(sources) == 0 {
		sources = []string{filepath.Join(c.Dir, string(kind))}
	}
	*layers = make([]layer, len(sources))
	var errs []error
	for i, name := range sources {
		if id, is := staticID(kind, name); is {
			e, err := text.ParseClass(kind, id)
			if err == nil && kind == text.VirtualUIDMaps && e.ID < t.classes.MinimumUID {
				err = fmt.Errorf("uid %d is below VIRTUALMINIMUMUID=%d", e.ID, t.classes.MinimumUID)
			}
			if err != nil {
				errs = append(errs, &config.Error{File: strings.ToUpper(string(kind)), Reason: name + " cannot be used", Err: err})
				continue
			}
			(*layers)[i].static = &found{entry: entry{key: name, id: e.ID}, where: where{file: strings.ToUpper(string(kind))}}
			continue
		}
		s, err := table.Parse(name, c.Dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if s.Scheme == "file" {
			r.feeds = append(r.feeds, feed{
				// A source that somebody has named must be there; one beside zmailer.conf may be.
				file:   watched{path: s.Rest, required: len(c.Sources[kind]) > 0},
				parse:  func(to *Tables, s source) error { return to.parseLayer(kind, i, s) },
				agrees: slices.Contains(agreeing, kind),
			})
			continue
		}
		o := c.Source
		o.Name, o.Dir, o.Now, o.Log = string(kind), c.Dir, c.Now, c.Log
		opened, err := table.Open(name, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e := &external{Table: opened, name: name, kind: kind}
		(*layers)[i].ext = e
		r.open = append(r.open, e)
	}
	return errors.Join(errs...)
}

// staticID returns the number in a source that is one for all mailboxes, as Postfix's
// "static:5000".
func staticID(kind text.Kind, source string) (string, bool) {
	if kind != text.VirtualUIDMaps && kind != text.VirtualGIDMaps {
		return "", false
	}
	id, static := strings.CutPrefix(source, "static:")
	return id, static || id != "" && strings.Trim(id, "0123456789") == ""
}

// IsNumber reports whether a source of the tables of uids and gids is one number for all.
func IsNumber(kind text.Kind, source string) bool {
	_, is := staticID(kind, source)
	return is
}

// newTables returns tables without content, which have no errors of their own; the error is
// about settings.
func newTables(c Config) (*Tables, error) {
	host := address.Mailbox{Local: "postmaster", Domain: c.Hostname}
	hostname, err := host.ASCIIDomain()
	if err != nil || hostname == "" {
		err = &config.Error{File: "HOSTNAME", Reason: fmt.Sprintf("%q is no domain", c.Hostname), Err: err}
	}
	if c.Postmaster == "" {
		c.Postmaster = "postmaster"
	}
	postmaster, perr := address.Parse(c.Postmaster)
	if perr != nil || postmaster.IsNull() {
		perr = &config.Error{File: "POSTMASTER", Reason: fmt.Sprintf("%q is neither an address nor a local user", c.Postmaster), Err: perr}
	}
	if c.Passwd == nil {
		c.Passwd = newPasswd(c.Now)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	err = errors.Join(err, perr)
	t := &Tables{
		hostname:   hostname,
		postmaster: postmaster,
		passwd:     c.Passwd,
		rolls:      &rolls{now: c.Now, tries: triesToRead, reach: reach{c.Closed}, files: map[string]*roll{}},
		forwards:   newForwards(c.Forward, c.Log),
		subaddress: c.Subaddress,
		extend:     c.Extend,
		classes:    c.Classes,
		reverse:    c.Reverse,
		log:        c.Log,
		seeds:      [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
	}
	if c.Dir != "" {
		t.listDir = filepath.Join(c.Dir, "lists")
	}
	return t, err
}

// Tables returns the tables as they are now. It looks at the files at most once a
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
	changed, compare, waited := t.lookForLists(), false, len(r.waiting()) > 0
	for i := range r.feeds {
		k := &r.feeds[i]
		s, state, err := k.file.read(now, false)
		switch {
		case err != nil:
			k.waiting, k.blamed = nil, ""
			r.refused(k.file.path, err)
		case state == unsettled:
			next = now.Add(settle)
		case state == fresh:
			tried := t
			if err := r.take(&tried, k, s); err != nil {
				r.refused(k.file.path, err)
				continue
			}
			t = tried
			changed, compare = changed || !k.agrees, compare || k.agrees
		}
	}
	if compare && r.agree(&t, old, waited) {
		changed = true
	}
	if changed {
		r.gen.Add(1)
		r.cur.Store(&t)
	}
	r.next.Store(next.UnixNano())
	return r.cur.Load()
}

// Generation identifies the tables as they are now: it changes with each file, compiled table,
// list and account of the system. asks: other sources may have changed without it.
func (r *Rules) Generation() (name string, asks bool) {
	t := r.Tables()
	h := maphash.Hash{}
	h.SetSeed(t.seeds[0])
	look := func(path string) {
		info, err := os.Stat(path)
		if err != nil {
			info = nil // it is not there, or cannot be looked at: a change of that counts
		}
		maphash.WriteComparable(&h, sign(info))
	}
	for _, e := range r.open {
		if path, is := strings.CutPrefix(e.name, "db:"); is {
			if !filepath.IsAbs(path) {
				path = filepath.Join(r.dir, path)
			}
			look(path)
		}
	}
	if t.lists != "" {
		look(t.lists)
	}
	if t.logins == nil {
		look("/etc/passwd")
	}
	return fmt.Sprintf("%d.%x", r.gen.Load(), h.Sum64()), t.Asks()
}

// refused logs once per change that a table cannot be used.
func (r *Rules) refused(path string, err error) {
	if r.keep != nil {
		r.keep.Bad(path, err, true)
	}
	r.log.Error("table-refused", "file", path, "reason", err, "kept", "the table as it was read before")
}

// Close ends the connections and programs of the sources. No Tables is to be used
// after it.
func (r *Rules) Close() error {
	var err error
	for _, e := range r.open {
		err = errors.Join(err, e.Close())
	}
	r.open = nil
	return err
}

// Check looks at what New does not: it asks each source for a key, reads all lists, and
// looks for programs and files that will be refused. Its errors are *config.Error.
func (r *Rules) Check(ctx context.Context) error {
	var err error
	for _, e := range r.open {
		if _, _, asked := e.Lookup(ctx, "postmaster"); asked != nil {
			err = errors.Join(err, &config.Error{File: e.name, Reason: "cannot be asked for " + string(e.kind), Err: asked})
		}
	}
	t := r.Tables()
	err = errors.Join(err, checkRights(t.aliases), checkRights(t.fqdn), t.checkMailboxes(ctx))
	if t.lists == "" {
		return err
	}
	names, listed := os.ReadDir(t.lists)
	if listed != nil {
		return errors.Join(err, &config.Error{File: t.lists, Reason: "cannot be listed", Err: listed})
	}
	for _, n := range names {
		err = errors.Join(err, t.checkList(ctx, n.Name()))
	}
	return err
}
