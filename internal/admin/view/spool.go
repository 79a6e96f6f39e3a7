package view

import (
	"time"

	"zmailer/internal/postoffice"
)

// Spool finds and reads the messages of a postoffice. It opens files for reading only and
// takes no lock on a message. It serves one command. Explainer, Histories, Removals and
// Survey answer questions about what it reads.
type Spool struct{ *Processes }

// New makes a Spool that sees a postoffice at a time.
func New(po *postoffice.PostOffice, now time.Time) *Spool {
	return &Spool{&Processes{Files: &Files{PO: po, FS: po.FS(), Now: now}, owners: map[int]Owner{}, roles: map[string]bool{}}}
}
