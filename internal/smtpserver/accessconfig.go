package smtpserver

import (
	"time"

	"zmailer/internal/config"
	"zmailer/internal/postoffice"
	"zmailer/internal/smtpserver/access"
	"zmailer/internal/table"
)

// Access says where the rules of who may do what are (docs/access.md).
type Access struct {
	Dir    string        // where zmailer.conf and the file access are; "": there are no rules
	Source table.Options // what tables have in common
}

// accessFrom takes these settings from zmailer.conf.
func accessFrom(c *config.Config) (a Access, err error) {
	a.Dir = c.Dir
	if a.Source.Timeout, err = c.Duration("LOOKUPTIMEOUT", table.DefaultTimeout); err != nil {
		return a, err
	}
	a.Source.Keep, err = c.Duration("LOOKUPKEEP", table.DefaultTimeout)
	return a, err
}

// openAccess reads the rules.
func (s *server) openAccess() (err error) {
	o := access.Options{Dir: s.Access.Dir, Source: s.Access.Source, Log: s.Log}
	if o.Dir != "" {
		o.Path = o.Dir + "/access"
	}
	s.access, err = access.Open(o)
	return err
}

// closeAccess ends the use of tables.
func (s *server) closeAccess() {
	if err := s.access.Close(); err != nil {
		s.Log.Warn("access-trouble", "reason", err)
	}
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
	err = s.srv.po.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "smtpserver",
		What: postoffice.WasFrozen, Text: v.Cause + ": " + why})
	if err != nil {
		// It is for people; the name says the cause.
		s.srv.Log.Warn("no-reason", "id", a.ID.String(), "name", a.Name, "reason", err)
	}
	s.srv.Log.Warn("frozen", "id", a.ID.String(), "name", a.Name, "reason", why, "advice", "zmctl freezer thaw, or zmctl freezer discard")
	return a, nil
}
