package view

import (
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// Spool reads the messages of a postoffice. It opens files for reading only and takes no
// lock on a message. It serves one command.
type Spool struct {
	*Processes
	// resubmits is when routers try deferred mail again; the zero value: never.
	resubmits config.Resubmission
	settings  *config.Config // nil: not known
}

// With sets the configuration, which has the times of retries and expiry.
func (s *Spool) With(settings *config.Config) *Spool {
	if settings != nil {
		// They were checked when they were read.
		s.settings = settings
		s.resubmits, _ = settings.Resubmission()
	}
	return s
}

// New makes a Spool that sees a postoffice at a time.
func New(po *postoffice.PostOffice, now time.Time) *Spool {
	return &Spool{Processes: &Processes{Files: &Files{PO: po, FS: po.FS(), Now: now}, owners: map[int]Owner{}, roles: map[string]bool{}}}
}
