package smtpserver

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/table"
)

// Access says where the rules of who may do what are (docs/access.md).
type Access struct {
	Dir         string         // where zmailer.conf and the file access are; "": there are no rules
	LocalNames  []string       // sources of LOCALNAMES; none: the file of Config.LocalNames
	SenderLogin []string       // sources of SENDERLOGIN; none: users send as whom they like
	Source      table.Options  // what tables have in common
	ETRNNets    []netip.Prefix // whose clients may start any queue
	RcptCheck   *RcptCheck     // nil: recipients are not verified
}

// RcptCheck says how recipients are verified.
type RcptCheck struct {
	rcptcheck.Options
	// All: those of every client, and of other domains, too. Else those of our domains that
	// other hosts' clients name.
	All   bool
	Defer bool // while nobody can tell, recipients are put off; else they are taken
}

// accessFrom takes these settings from zmailer.conf.
func accessFrom(c *config.Config) (a Access, err error) {
	a.Dir = c.Dir
	if a.LocalNames, err = sourcesFrom(c, "LOCALNAMES"); err != nil {
		return a, err
	}
	if a.SenderLogin, err = sourcesFrom(c, "SENDERLOGIN"); err != nil {
		return a, err
	}
	if a.Source.Timeout, err = c.Duration("LOOKUPTIMEOUT", table.DefaultTimeout); err != nil {
		return a, err
	}
	if a.Source.Keep, err = c.Duration("LOOKUPKEEP", table.DefaultTimeout); err != nil {
		return a, err
	}
	nets := c.List("ETRNNETS")
	if len(nets) == 0 {
		nets = []string{"127.0.0.0/8", "::1/128"}
	}
	if a.ETRNNets, err = parseNets(nets); err != nil {
		return a, c.Invalid("ETRNNETS", "cannot be used", err)
	}
	a.RcptCheck, err = rcptCheckFrom(c)
	return a, err
}

// sourcesFrom parts the sources in a setting.
func sourcesFrom(c *config.Config, name string) ([]string, error) {
	list, err := table.Split(c.String(name, ""))
	for _, source := range list {
		if err == nil {
			_, err = table.Parse(source, c.Dir)
		}
	}
	if err != nil {
		return nil, c.Invalid(name, "cannot be used", err)
	}
	return list, nil
}

func rcptCheckFrom(c *config.Config) (*RcptCheck, error) {
	word := c.String("RCPTCHECK", "yes")
	switch word {
	case "no":
		return nil, nil
	case "yes", "all":
	default:
		return nil, c.Invalid("RCPTCHECK", "cannot be used", fmt.Errorf("%s is none of yes, all, no", word))
	}
	r := &RcptCheck{All: word == "all", Defer: c.String("RCPTCHECKTROUBLE", "accept") == "defer"}
	var err error
	if r.Time, err = c.Duration("RCPTCHECKTIME", rcptcheck.DefaultTime); err != nil {
		return nil, err
	}
	if r.Keep, err = c.Duration("RCPTCHECKKEEP", rcptcheck.DefaultKeep); err != nil {
		return nil, err
	}
	r.Env = []string{"POSTOFFICE=" + c.PostOffice(), "ZCONFIG=" + c.File}
	return r, nil
}

// openAccess reads the rules and opens the tables.
func (s *server) openAccess() error {
	a := &s.Access
	o := access.Options{Dir: a.Dir, Source: a.Source, Log: s.Log}
	if o.Dir != "" {
		o.Path = filepath.Join(o.Dir, "access")
	}
	var err error
	if s.access, err = access.Open(o); err != nil {
		return err
	}
	sources := a.Source
	sources.Dir, sources.Log = a.Dir, s.Log
	err = s.relay.ask(a.LocalNames, s.LocalNames, sources)
	if err == nil {
		s.senders, err = openSenders(a.SenderLogin, sources)
	}
	if err == nil && a.RcptCheck != nil {
		check := a.RcptCheck.Options
		check.Log = s.Log
		s.rcpts, err = rcptcheck.New(check)
	}
	if err != nil {
		s.closeAccess()
	}
	return err
}

// closeAccess ends the use of tables and the child that verifies recipients.
func (s *server) closeAccess() {
	if s.rcpts != nil {
		s.rcpts.Close()
	}
	if err := errors.Join(s.access.Close(), s.relay.close(), s.senders.close()); err != nil {
		s.Log.Warn("access-trouble", "reason", err)
	}
}

// verify asks whether there is anybody behind a recipient; None: there is, or nobody
// asks. Our own users' mail is taken, for they read the report of what cannot be
// delivered; the sender of a stranger's mail is mostly forged, and would get one for mail
// of somebody else.
func (s *session) verify(to address.Mailbox) access.Verdict {
	if s.srv.rcpts == nil {
		return access.Verdict{}
	}
	if f := &s.facts; !s.srv.Access.RcptCheck.All && (s.client.role != RoleMX || f.Trusted || !f.Local) {
		return access.Verdict{}
	}
	a, err := s.srv.rcpts.Check(s.srv.ctx, s.facts.From, to)
	trouble := &s.srv.rcptTrouble
	switch {
	case err != nil:
		does := "recipients are taken without it"
		if s.srv.Access.RcptCheck.Defer {
			does = "clients are told to try again"
		}
		trouble.begin(s.srv.Log, "rcpt-check-trouble", "reason", err, "advice", does)
		if !s.srv.Access.RcptCheck.Defer {
			return access.Verdict{}
		}
		v := lookupTrouble
		v.By = "rcpt-check"
		return v
	case a.Known:
		trouble.end(s.srv.Log, "rcpt-check-recovered")
		return access.Verdict{}
	}
	trouble.end(s.srv.Log, "rcpt-check-recovered")
	return access.Verdict{Action: access.Reject, Code: 550, Status: a.Code, Text: fmt.Sprintf("<%s>: %s", to, a.Text), By: "rcpt-check"}
}

// commit makes the draft a message: in router/ or, where a rule, a check or a milter has
// said so, in freezer/.
func (s *session) commit(draft *postoffice.Draft) (postoffice.Accepted, error) {
	v := s.frozen
	if v.Action != access.Freeze {
		return draft.Commit()
	}
	a, err := draft.CommitFrozen(v.Cause)
	if err != nil {
		return a, err
	}
	why := v.By
	if v.Text != "" {
		why += ": " + v.Text
	}
	err = s.srv.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "smtpserver",
		What: postoffice.WasFrozen, Text: v.Cause + ": " + why})
	if err != nil {
		// It is for people; the name says the cause.
		s.srv.Log.Warn("no-reason", "id", a.ID.String(), "name", a.Name, "reason", err)
	}
	s.srv.Log.Warn("frozen", "id", a.ID.String(), "name", a.Name, "reason", why, "advice", "zmctl freezer thaw, or zmctl freezer discard")
	return a, nil
}
