package smtpserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emersion/go-smtp"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/held"
	"zmailer/internal/wire/milter"
)

// filterCause is what stands behind the inode in freezer/ for a filter's quarantine.
const filterCause = "filter"

// door is a filter as the server has it.
type door struct {
	cfg     milter.Config
	trouble complaint
}

// filter is one as a client's connection has it.
type filter struct {
	*door
	open   *milter.Session // nil: not connected
	told   told            // what it knows of the client
	client milter.Answer   // what it says of the client
	off    bool            // it wants to hear no more of this message, or cannot
}

// told is what a filter is told of a client; with another a new session begins.
type told struct {
	addr             netip.AddrPort
	name, helo, user string
	tls              bool
}

// filtering is what the filters have to do with a session. The transaction's part is
// what Reset takes away.
type filtering struct {
	filters   []*filter
	number    string         // of the transaction, for the macro i
	failed    access.Verdict // what holds for all that follows in the transaction
	discarded string         // who has thrown the message away; "": nobody
}

// filtered tells whether a filter wants to see the content.
func (s *session) filtered() bool {
	return s.failed.Action != access.None || slices.ContainsFunc(s.filters, func(f *filter) bool { return !f.off })
}

// transactions are numbered for the filters, which log the number.
var transactions atomic.Uint64

// filterMail begins a message with the filters; nil: they have no objection.
func (s *session) filterMail(from address.Mailbox, params string) *smtp.SMTPError {
	if len(s.srv.filters) == 0 {
		return nil
	}
	for i := len(s.filters); i < len(s.srv.filters); i++ {
		s.filters = append(s.filters, &filter{door: s.srv.filters[i]})
	}
	s.failed, s.discarded = access.Verdict{}, ""
	s.number = strconv.FormatInt(time.Now().Unix(), 36) + "." + strconv.FormatUint(transactions.Add(1), 36)
	for _, f := range s.filters {
		f.off = false
	}
	v := s.askFilters(func(f *filter) (milter.Answer, error) {
		mail := func() (milter.Answer, error) {
			a, err := s.greetFilter(f)
			if err != nil || a.Action != milter.Continue {
				return a, err
			}
			return f.open.Mail(from.String(), strings.Fields(params), s.macros("{mail_addr}", from.String(), "{mail_host}", from.Domain, "{mail_mailer}", "smtp"))
		}
		before := f.open
		a, err := mail()
		if err != nil && before != nil && f.open == before {
			// It was restarted since the last message; the one that runs now knows nothing.
			s.closeFilter(f)
			return mail()
		}
		return a, err
	})
	if v.Action == access.None {
		return nil
	}
	code, st, text := v.Reply()
	s.srv.Log.Info("refused", "from", from.String(), "client", s.client.String(), "status", st.String(), "reply", text, "by", v.By)
	return reply(code, st.String(), text)
}

// filterRecipient asks the filters about one recipient.
func (s *session) filterRecipient(to address.Mailbox) access.Verdict {
	if len(s.filters) == 0 {
		return access.Verdict{}
	}
	_, params := splitPath(string(s.wire.line))
	return s.askFilters(func(f *filter) (milter.Answer, error) {
		return f.open.Rcpt(to.String(), strings.Fields(params), s.macros("{rcpt_addr}", to.String(), "{rcpt_host}", to.Domain, "{rcpt_mailer}", "smtp"))
	})
}

// askFilters takes a step with each filter that wants it, until one refuses.
func (s *session) askFilters(step func(f *filter) (milter.Answer, error)) access.Verdict {
	for _, f := range s.filters {
		if s.failed.Action != access.None || s.discarded != "" {
			break
		}
		if f.off {
			continue
		}
		a, err := step(f)
		if v := s.heed(f, a, err); v.Action != access.None {
			return v
		}
	}
	return s.failed
}

// heed does what a filter's answer asks for, and makes a verdict of a refusal.
func (s *session) heed(f *filter, a milter.Answer, err error) access.Verdict {
	if err != nil {
		return s.filterTrouble(f, err)
	}
	v := access.Verdict{Code: a.Code, Text: a.Text, By: f.name()}
	if c, ok := status.Parse(a.Status); ok {
		v.Status = c
	}
	switch a.Action {
	case milter.Accept:
		f.off = true
		return access.Verdict{}
	case milter.Discard:
		f.off = true
		s.discarded = f.name()
		return access.Verdict{}
	case milter.Reject:
		v.Action = access.Reject
	case milter.TempFail:
		v.Action = access.Defer
		if v.Code == 0 {
			v.Code = 451
		}
	default:
		return access.Verdict{}
	}
	if v.Text == "" {
		v.Text = map[access.Action]string{access.Reject: "refused by a filter of this host", access.Defer: "a filter of this host says not now, try again later"}[v.Action]
	}
	return v
}

func (d *door) name() string { return "milter " + d.cfg.Name() }

// filterTrouble ends the session with a filter that does not do what it should, and says
// what becomes of the message, as MILTERTROUBLE has it.
func (s *session) filterTrouble(f *filter, err error) access.Verdict {
	s.closeFilter(f)
	f.off = true
	f.trouble.begin(s.srv.Log, "filter-trouble", "filter", f.cfg.Name(), "reason", err, "advice", "look at the filter; MILTERTROUBLE says what becomes of mail meanwhile")
	if s.srv.Filters.TroubleAccepts {
		return access.Verdict{}
	}
	s.failed = access.Verdict{Action: access.Defer, Code: 451, Status: status.Code{Class: 4, Subject: 7, Detail: 1},
		Text: "a filter of this host does not answer now, try again later", By: f.name()}
	return s.failed
}

func (s *session) closeFilter(f *filter) {
	if f.open != nil {
		// There is nothing to lose, and it may be dead.
		_ = f.open.Close()
		f.open = nil
	}
}

// greetFilter connects to a filter and tells it of the client, unless it knows. Its
// verdict holds for each message of this client.
func (s *session) greetFilter(f *filter) (milter.Answer, error) {
	c := &s.client
	now := told{c.addr, c.name, c.helo, c.user, c.tls != nil}
	if f.open != nil && f.told == now {
		return f.client, nil
	}
	s.closeFilter(f)
	open, err := milter.Open(s.srv.ctx, f.cfg)
	if err != nil {
		return milter.Answer{}, err
	}
	f.open, f.told, f.client = open, now, milter.Answer{}
	name := c.name
	switch {
	case !c.addr.IsValid():
		name = "localhost"
	case name == "":
		name = "[" + c.addr.Addr().Unmap().WithZone("").String() + "]"
	}
	a, err := open.Connect(name, c.addr, s.macros())
	if err == nil && a.Action == milter.Continue {
		a, err = open.Helo(c.helo, s.macros())
	}
	f.client = a
	return a, err
}

// macros are what every step is told, and more.
func (s *session) macros(more ...string) milter.Macros {
	c := &s.client
	m := milter.Macros{"j", s.srv.Hostname, "v", "zmailer", "i", s.number, "{daemon_name}", string(c.role)}
	if c.addr.IsValid() {
		m = append(m, "{client_addr}", c.addr.Addr().Unmap().WithZone("").String(), "{client_port}", strconv.Itoa(int(c.addr.Port())))
		name := c.name
		if name == "" {
			name = "unknown"
		}
		m = append(m, "{client_name}", name, "{client_ptr}", name, "_", name+" ["+c.addr.Addr().Unmap().WithZone("").String()+"]")
	}
	if c.user != "" {
		m = append(m, "{auth_authen}", c.user)
	}
	if c.tls != nil {
		m = append(m, "{tls_version}", tls.VersionName(c.tls.Version), "{cipher}", tls.CipherSuiteName(c.tls.CipherSuite))
	}
	return append(m, more...)
}

// show gives the message to the filters, one after the other, and makes their changes:
// each sees what those before it have left.
func (s *session) show(l *letter) error {
	if !s.filtered() {
		return nil
	}
	if s.failed.Action != access.None {
		return &refusedError{s.failed}
	}
	l.split()
	for _, f := range s.filters {
		if f.off || s.discarded != "" {
			continue
		}
		if err := s.showOne(f, l); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) showOne(f *filter, l *letter) error {
	body, err := l.content()
	if err != nil {
		return err
	}
	fresh := held.New(s.holding)
	defer func() { s.release(fresh) }() // or the one that it replaces
	disk := &remembering{w: fresh}
	lines := &lineWriter{w: disk, limit: s.srv.MaxSize}
	a, changes, err := f.open.Content(l.fields, body, lines, s.macros())
	if err == nil {
		err = lines.flush()
	}
	if b := (*milter.BodyError)(nil); disk.err != nil || errors.As(err, &b) {
		// Our disk, not the filter.
		s.closeFilter(f)
		return errors.Join(disk.err, err)
	}
	v := s.heed(f, a, err)
	if v.Action != access.None {
		return &refusedError{v}
	}
	if err != nil {
		return nil // and MILTERTROUBLE=accept
	}
	f.trouble.end(s.srv.Log, "filter-recovered", "filter", f.cfg.Name())
	n := len(changes)
	for _, c := range changes {
		if err := s.change(f, l, c); err != nil {
			s.srv.Log.Warn("filter-nonsense", "filter", f.cfg.Name(), "from", s.transaction.From, "reason", err)
		}
	}
	if lines.used {
		fresh = l.replace(fresh)
		n++
	}
	if n > 0 {
		l.changes += n
		l.by = append(l.by, f.name())
	}
	return nil
}

// remembering keeps the error of what it writes to.
type remembering struct {
	w   *held.Content
	err error
}

func (r *remembering) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if err != nil {
		r.err = err
	}
	return n, err
}

// change makes a change.
func (s *session) change(f *filter, l *letter, c milter.Change) error {
	switch c.Kind {
	case milter.Quarantine:
		s.freeze(access.Verdict{Action: access.Freeze, Cause: filterCause, Text: oneLine(strings.ToValidUTF8(c.Value, "?")), By: f.name()})
		return nil
	case milter.AddField, milter.InsertField, milter.ChangeField:
		return l.change(c)
	}
	m, err := address.Parse(bracketed(c.Address))
	if err != nil {
		return fmt.Errorf("%w: %w", errChange, err)
	}
	e := s.transaction
	same := func(r envelope.Recipient) bool {
		have, err := address.Parse("<" + r.Address + ">")
		return err == nil && have.Key() == m.Key()
	}
	switch {
	case c.Kind == milter.ChangeSender:
		e.From = m.String()
	case m.IsNull():
		return fmt.Errorf("%w: the null address is no recipient", errChange)
	case c.Kind == milter.DeleteRecipient:
		e.Recipients = slices.DeleteFunc(e.Recipients, same)
	case !slices.ContainsFunc(e.Recipients, same):
		r := envelope.Recipient{Address: m.String()}
		if s.requireTLS {
			r.DSN = requireTLS
		}
		if err := s.name(r); err != nil {
			return fmt.Errorf("%w: %w", errChange, err)
		}
	}
	return nil
}

// bracketed is an address as a filter writes it, which may leave the brackets out.
func bracketed(s string) string {
	s = strings.Trim(s, " \t")
	if strings.HasPrefix(s, "<") {
		return s
	}
	return "<" + s + ">"
}

// endFilters ends a transaction with the filters.
func (s *session) endFilters() {
	s.failed, s.discarded = access.Verdict{}, ""
	for _, f := range s.filters {
		if f.open == nil {
			continue
		}
		if err := f.open.Abort(); err != nil {
			s.closeFilter(f)
		}
	}
}

// closeFilters ends the connections to the filters.
func (s *session) closeFilters() {
	for _, f := range s.filters {
		s.closeFilter(f)
	}
}
