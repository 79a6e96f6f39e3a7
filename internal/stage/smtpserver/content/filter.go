// Package content is what happens to a message between its arrival and its message file: it
// is spooled, so that the checks (package checks) and the filters can read it as a whole, and
// changed as the filters want.
//
// It owns nothing on disk but the files that a Spool is given, see there.
//
// Diagnostics: *access.RefusedError is a filter's refusal, also for a filter that cannot be
// asked (MILTERTROUBLE). ErrHeader is a header too long to be read. Any other error is the
// disk's.
package content

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/wire/milter"
)

// FilterConfig defines which filters get messages (docs/filters.md).
type FilterConfig struct {
	Milters  []Milter // in the order in which they are asked
	Hostname string
	// DaemonName is the macro {daemon_name} by role (MILTERDAEMONNAME); without one it is
	// Hostname.
	DaemonName map[session.Role]string
	// Connections returns how many connections a client has; nil: they are not counted.
	Connections func(netip.Addr) int
	MaxSize     int64 // of a body that a filter makes; 0: no limit
	Log         *slog.Logger
	Keeper      config.Keeper // of alarms about filters; may be nil
}

func (c *FilterConfig) daemonName(r session.Role) string { return cmp.Or(c.DaemonName[r], c.Hostname) }

// filterCause follows the inode in the name of a file in freezer/ that a filter quarantined.
const filterCause = "filter"

// Filters are the filters of the server.
type Filters struct {
	cfg  FilterConfig
	list []*filter
	none Session // of all connections when there are no filters; nothing is written to it
}

// filter is one filter as all connections share it.
type filter struct {
	Milter
	trouble logging.Trouble
	away    *config.Outage
}

func (f *filter) label() string { return "milter " + f.Name() }

// NewFilters prepares the filters; no connection is made yet.
func NewFilters(c FilterConfig) *Filters {
	f := &Filters{cfg: c}
	f.none.Filters = f
	for _, m := range c.Milters {
		away := config.NewOutage(c.Keeper, config.Backend{Name: "milter:" + m.Name(),
			Remedy: "start the filter, or take it out of MILTERS and reload; until then: " + m.Trouble.String()})
		f.list = append(f.list, &filter{Milter: m, away: away})
	}
	return f
}

// Session is the filters as one client's connection has them.
type Session struct {
	*Filters
	ctx       context.Context
	client    session.Client
	open      []*filterSession
	number    string         // of the transaction, for the macro i and the log; "": no filter is asked
	known     milter.Macros  // of the client; nil: not made yet
	of        key            // the client that they are of
	failed    access.Verdict // what applies to all further commands of the transaction
	discarded string         // the filter that has discarded the message; ""
	held      access.Verdict // the message is held, because a filter is in trouble
}

// filterSession is one filter as one client's connection has it.
type filterSession struct {
	*filter
	open   *milter.Session // nil: not connected
	known  known           // the client as it was introduced
	client milter.Answer   // its answer to that
	off    bool            // it wants to hear no more of this message, or cannot
}

// known is the client as a filter knows it; with another value a new session begins.
type known struct {
	addr       netip.AddrPort
	name, helo string
	tls        *tls.ConnectionState
}

// Session begins with a connection. ctx ends what the filters are asked.
func (f *Filters) Session(ctx context.Context) *Session {
	if len(f.list) == 0 {
		return &f.none
	}
	return &Session{Filters: f, ctx: ctx}
}

// NoFilters returns the session of a client whose mail no filter is asked about.
func NoFilters() *Session { return &Session{Filters: &Filters{}} }

// Wanted reports whether a filter wants the content.
func (s *Session) Wanted() bool {
	return s.failed.Action != access.None || slices.ContainsFunc(s.open, func(f *filterSession) bool { return !f.off })
}

// Number returns the macro i of the message, under which filters log it; "": no filter was
// asked.
func (s *Session) Number() string { return s.number }

// Discarded returns the filter that has discarded the message; "": none has.
func (s *Session) Discarded() string { return s.discarded }

// Held returns the verdict of a filter in trouble whose messages are held; None: there is none.
func (s *Session) Held() access.Verdict { return s.held }

// transactions are numbered for the filters, which log the number.
var transactions atomic.Uint64

// Mail begins a message with the filters; None: they accept it so far.
func (s *Session) Mail(c session.Client, from address.Mailbox, params []string) access.Verdict {
	if s.Filters == nil || len(s.list) == 0 {
		return access.Verdict{}
	}
	s.begin(c)
	s.failed, s.held, s.discarded = access.Verdict{}, access.Verdict{}, ""
	s.number = strconv.FormatInt(time.Now().Unix(), 36) + "." + strconv.FormatUint(transactions.Add(1), 36)
	for _, f := range s.open {
		f.off = false
	}
	return s.each(func(f *filterSession) (milter.Answer, error) {
		mail := func() (milter.Answer, error) {
			a, err := s.connect(f)
			if err != nil || a.Action != milter.Continue {
				return a, err
			}
			return f.open.Mail(from.String(), params, s.macros("{mail_addr}", from.String(), "{mail_host}", from.Domain, "{mail_mailer}", "smtp", "{auth_author}", author(params)))
		}
		return f.again(mail)
	})
}

// begin notes the client that the filters are asked about.
func (s *Session) begin(c session.Client) {
	s.client = c
	for i := len(s.open); i < len(s.list); i++ {
		s.open = append(s.open, &filterSession{filter: s.list[i]})
	}
}

// again takes a step that a filter's session may begin with, a second time if the session
// was open before and has ended: the filter was restarted since the last message, and the
// process that runs now has no session.
func (f *filterSession) again(step func() (milter.Answer, error)) (milter.Answer, error) {
	before := f.open
	a, err := step()
	if err != nil && before != nil && f.open == before {
		f.close()
		return step()
	}
	return a, err
}

// Rcpt asks the filters about one recipient; None: they accept it.
func (s *Session) Rcpt(to address.Mailbox, params []string) access.Verdict {
	if len(s.open) == 0 {
		return access.Verdict{}
	}
	return s.each(func(f *filterSession) (milter.Answer, error) {
		return f.open.Rcpt(to.String(), params, s.macros("{rcpt_addr}", to.String(), "{rcpt_host}", to.Domain, "{rcpt_mailer}", "smtp"))
	})
}

// Refused shows a recipient that was refused to the filters that want to see those.
func (s *Session) Refused(to address.Mailbox, params []string, code status.Code, text string) {
	for _, f := range s.open {
		if f.off || f.open == nil || s.failed.Action != access.None {
			continue
		}
		err := f.open.RefusedRcpt(to.String(), params, s.macros("{rcpt_addr}", text, "{rcpt_host}", code.String(), "{rcpt_mailer}", "error"))
		if err != nil {
			s.troubled(f, err)
		}
	}
}

// Data passes on DATA, or the first BDAT; None: the filters accept it.
func (s *Session) Data() access.Verdict {
	if len(s.open) == 0 {
		return access.Verdict{}
	}
	v := s.each(func(f *filterSession) (milter.Answer, error) { return f.open.Data(s.macros()) })
	if s.failed.Action != access.None {
		return access.Verdict{} // it is the answer to the content
	}
	return v
}

// Unknown passes on a command that the server does not know; None: it is answered as usual.
func (s *Session) Unknown(c session.Client, line string) access.Verdict {
	if len(s.list) == 0 {
		return access.Verdict{}
	}
	s.begin(c)
	return s.each(func(f *filterSession) (milter.Answer, error) {
		return f.again(func() (milter.Answer, error) {
			a, err := s.connect(f)
			if err != nil || a.Action != milter.Continue {
				return a, err
			}
			return f.open.Unknown(line, s.macros())
		})
	})
}

// each takes a step with each filter that wants it, until one refuses.
func (s *Session) each(step func(f *filterSession) (milter.Answer, error)) access.Verdict {
	for _, f := range s.open {
		if s.failed.Action != access.None || s.discarded != "" {
			break
		}
		if f.off {
			continue
		}
		a, err := step(f)
		if v := s.verdict(f, a, err); v.Action != access.None {
			return v
		}
	}
	return s.failed
}

// verdict does what a filter's answer asks for, and makes a verdict of a refusal.
func (s *Session) verdict(f *filterSession, a milter.Answer, err error) access.Verdict {
	if err != nil {
		return s.troubled(f, err)
	}
	if a.Action != milter.Continue {
		s.works(f) // one that fails later in each message does not
	}
	v := access.Verdict{Code: a.Code, Text: a.Text, More: a.More, By: f.label()}
	if c, ok := status.Parse(a.Status); ok {
		v.Status = c
	}
	switch a.Action {
	case milter.Accept:
		f.off = true
		return access.Verdict{}
	case milter.Discard:
		f.off = true
		s.discarded = f.label()
		return access.Verdict{}
	case milter.Reject:
		v.Action = access.Reject
	case milter.TempFail:
		v.Action = access.Defer
		if v.Code == 0 {
			v.Code = 451
		}
	case milter.Shutdown:
		// After a 421 the connection is closed.
		v.Action, v.Code, v.Status = access.Defer, 421, status.Code{Class: 4, Subject: 7, Detail: 0}
		v.Text = s.cfg.Hostname + " Server closing connection"
	default:
		return access.Verdict{}
	}
	if v.Text == "" {
		v.Text = map[access.Action]string{access.Reject: "Rejected by content filter", access.Defer: "Temporarily rejected by content filter"}[v.Action]
	}
	return v
}

// troubled ends the session with a filter that fails, and decides about the message as its
// setting has it.
func (s *Session) troubled(f *filterSession, err error) access.Verdict {
	f.close()
	f.off = true
	if s.ctx.Err() == nil {
		f.away.Failed(err)
	}
	f.trouble.Begin(s.cfg.Log, "filter-trouble", "filter", f.Name(), "reason", err, "action", f.Trouble.String(), "advice", "check the filter; MILTERTROUBLE decides about messages meanwhile")
	switch f.Trouble {
	case TroubleAccept:
		return access.Verdict{}
	case TroubleQuarantine:
		if s.held.Action == access.None {
			s.held = quarantine(f.label(), "the filter could not be asked: "+err.Error())
		}
		return access.Verdict{}
	case TroubleReject:
		s.failed = access.Verdict{Action: access.Reject, Code: 550, Status: status.Code{Class: 5, Subject: 5, Detail: 0},
			Text: "Service unavailable", By: f.label()}
	default:
		s.failed = access.Verdict{Action: access.Defer, Code: 451, Status: status.Code{Class: 4, Subject: 7, Detail: 1},
			Text: "Service unavailable, try again later", By: f.label()}
	}
	return s.failed
}

// works notes that a filter has decided about a message.
func (s *Session) works(f *filterSession) {
	f.away.Answers()
	f.trouble.End(s.cfg.Log, "filter-recovered", "filter", f.Name())
}

func (f *filterSession) close() {
	if f.open != nil {
		// There is nothing to lose, and it may be dead.
		_ = f.open.Close()
		f.open = nil
	}
}

// connect connects to a filter and introduces the client, unless it is known. Its answer
// holds for each message of this client.
func (s *Session) connect(f *filterSession) (milter.Answer, error) {
	c := &s.client
	now := known{c.Addr, c.Name, c.Helo, c.TLS}
	if f.open != nil && f.known == now {
		return f.client, nil
	}
	f.close()
	open, err := milter.Open(s.ctx, f.Milter.Config)
	if err != nil {
		return milter.Answer{}, err
	}
	f.open, f.known, f.client = open, now, milter.Answer{}
	name := c.Name
	switch {
	case !c.Addr.IsValid():
		name = "localhost"
	case name == "":
		name = "[" + c.IP().String() + "]"
	}
	a, err := open.Connect(name, c.Addr, s.macros())
	if err == nil && a.Action == milter.Continue {
		a, err = open.Helo(c.Helo, s.macros())
	}
	f.client = a
	return a, err
}

// Content gives the message to the filters, one after the other, and makes their changes:
// each gets it as those before have left it. change is called for changes of the envelope
// and for a quarantine; spool makes the file of a long new body. An error is the disk's or an
// *access.RefusedError.
func (s *Session) Content(m *Message, spool func() (File, error), release func(*Spool), change func(filter string, c milter.Change) error) error {
	if !s.Wanted() {
		return nil
	}
	if s.failed.Action != access.None {
		return &access.RefusedError{Verdict: s.failed}
	}
	m.split()
	for _, f := range s.open {
		if f.off || s.discarded != "" {
			continue
		}
		fresh := NewSpool(spool)
		old, err := s.contentOne(f, m, fresh, change)
		if old != nil {
			release(old)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// contentOne returns the Spool that is of no use any more: fresh, or the one that fresh
// replaces.
func (s *Session) contentOne(f *filterSession, m *Message, fresh *Spool, change func(string, milter.Change) error) (unused *Spool, err error) {
	body, err := m.content()
	if err != nil {
		return fresh, err
	}
	disk := &errorKeeper{w: fresh}
	lines := &lineWriter{w: disk, limit: s.cfg.MaxSize}
	a, changes, err := f.open.Content(m.fields, body, lines, s.macros())
	if err == nil {
		err = lines.flush()
	}
	if b := (*milter.BodyError)(nil); disk.err != nil || errors.As(err, &b) {
		// Our disk, not the filter.
		f.close()
		return fresh, errors.Join(disk.err, err)
	}
	if v := s.verdict(f, a, err); v.Action != access.None {
		return fresh, &access.RefusedError{Verdict: v}
	}
	if err != nil {
		return fresh, nil // and the message goes on without this filter
	}
	s.works(f)
	n, ignored := len(changes), 0
	for _, c := range changes {
		switch c.Kind {
		case milter.AddField, milter.InsertField, milter.ChangeField:
			err = m.change(c)
		default:
			err = change(f.label(), c)
		}
		if err == nil {
			continue
		}
		// A filter that asks for thousands of impossible changes does not fill the log.
		if ignored++; ignored <= maxNonsense {
			s.cfg.Log.Warn("filter-nonsense", "filter", f.Name(), "from", m.From, "reason", err)
		}
	}
	unused = fresh
	if lines.used {
		unused = m.replace(fresh)
		n++
	}
	if n > 0 {
		m.Changes += n
		m.ChangedBy = append(m.ChangedBy, f.label())
	}
	return unused, nil
}

// maxNonsense is how many impossible changes of one filter are logged for a message.
const maxNonsense = 5

// errorKeeper keeps the error of its writer.
type errorKeeper struct {
	w   io.Writer
	err error
}

func (r *errorKeeper) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if err != nil {
		r.err = err
	}
	return n, err
}

// Editor makes the changes of filters in an envelope.
type Editor struct {
	e    *envelope.Envelope
	dsn  string   // what a recipient that a filter adds gets on its todsn line beside its own parameters
	keys []string // of the recipients; nil: not made yet
	have map[string]bool
	size int
}

// NewEditor makes an Editor for one message.
func NewEditor(e *envelope.Envelope, dsn string) *Editor { return &Editor{e: e, dsn: dsn} }

// index makes the keys of the recipients, once: a filter may make thousands of changes.
func (d *Editor) index() {
	if d.have != nil {
		return
	}
	d.have = map[string]bool{}
	for _, r := range d.e.Recipients {
		key := ""
		if m, err := address.Parse("<" + r.Address + ">"); err == nil {
			key = m.Key()
			d.have[key] = true
		}
		d.keys = append(d.keys, key)
		d.size += r.Size()
	}
}

// Change makes one change.
func (d *Editor) Change(c milter.Change) error {
	m, err := address.Parse(bracketed(c.Address))
	if err != nil {
		return fmt.Errorf("%w: %w", errChange, err)
	}
	if c.Kind == milter.ChangeSender {
		return changeSender(d.e, m, c.Params)
	}
	if m.IsNull() {
		return fmt.Errorf("%w: the null address is no recipient", errChange)
	}
	d.index()
	switch key := m.Key(); {
	case c.Kind == milter.DeleteRecipient:
		d.remove(key)
	case !d.have[key]:
		own, err := session.ParseRcptParams(strings.Fields(c.Params))
		if err != nil {
			return fmt.Errorf("%w: %w", errChange, err)
		}
		r := envelope.Recipient{Address: m.String(), DSN: own.DSN(d.dsn)}
		if d.size+r.Size() > envelope.MaxRecipients {
			return fmt.Errorf("%w: too many recipients", errChange)
		}
		d.e.Recipients, d.keys = append(d.e.Recipients, r), append(d.keys, key)
		d.have[key] = true
		d.size += r.Size()
	}
	return nil
}

// remove removes the recipients of a key.
func (d *Editor) remove(key string) {
	if !d.have[key] {
		return
	}
	delete(d.have, key)
	rest := 0
	for i, r := range d.e.Recipients {
		if d.keys[i] == key {
			d.size -= r.Size()
			continue
		}
		d.e.Recipients[rest], d.keys[rest] = r, d.keys[i]
		rest++
	}
	d.e.Recipients, d.keys = d.e.Recipients[:rest], d.keys[:rest]
}

// changeSender replaces the sender, and of its parameters those that the filter names.
func changeSender(e *envelope.Envelope, to address.Mailbox, params string) error {
	own, err := session.ParseMailParams(strings.Fields(params))
	if err != nil {
		return fmt.Errorf("%w: %w", errChange, err)
	}
	e.From = to.String()
	e.EnvID, e.NotaryRet = cmp.Or(own.EnvID, e.EnvID), cmp.Or(own.Ret, e.NotaryRet)
	return nil
}

// Quarantine returns the verdict for a filter's quarantine.
func Quarantine(filter string, c milter.Change) access.Verdict { return quarantine(filter, c.Value) }

func quarantine(filter, why string) access.Verdict {
	return access.Verdict{Action: access.Freeze, Cause: filterCause, Text: session.OneLine(strings.ToValidUTF8(why, "?")), By: filter}
}

// bracketed returns an address as a filter writes it, which may leave the brackets out.
func bracketed(s string) string {
	s = strings.Trim(s, " \t")
	if strings.HasPrefix(s, "<") {
		return s
	}
	return "<" + s + ">"
}

// Reset ends a transaction with the filters.
func (s *Session) Reset() {
	if len(s.list) == 0 {
		return
	}
	s.failed, s.held, s.discarded, s.number = access.Verdict{}, access.Verdict{}, "", ""
	for _, f := range s.open {
		if f.open == nil {
			continue
		}
		if err := f.open.Abort(); err != nil {
			f.close()
		}
	}
}

// Close ends the connections to the filters.
func (s *Session) Close() {
	for _, f := range s.open {
		f.close()
	}
}
