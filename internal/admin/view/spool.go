package view

import (
	"errors"
	"io/fs"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

// Spool finds and reads the messages of a postoffice. It opens files for reading only and
// takes no lock on a message. It serves one command. Explainer, Histories, Removals and
// Survey answer questions about what it reads.
type Spool struct{ *Processes }

// New makes a Spool that sees a postoffice at a time.
func New(po *postoffice.PostOffice, now time.Time) *Spool {
	return &Spool{&Processes{Files: &Files{PO: po, FS: po.FS(), Now: now}, owners: map[int]Owner{}, roles: map[string]bool{}}}
}

// OpenPostOffice opens the postoffice that the configuration names, as operators' programs
// do: what root makes in it belongs to the owner of its directory, and no symbolic link in
// it is followed. An error of the configuration is a *config.Error.
func OpenPostOffice(settings *config.Config) (*postoffice.PostOffice, error) {
	dir := settings.PostOffice()
	levels, err := settings.Int("HASHLEVELS", 0)
	if err != nil {
		return nil, err
	}
	po, err := postoffice.OpenDir(dir, levels, settings.String("SYNC", "normal") == "strict")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) {
		return nil, &config.Error{File: dir, Reason: "POSTOFFICE cannot be used", Err: err}
	}
	if err != nil {
		return nil, err
	}
	if f, ok := po.FS().(*durable.OS); ok {
		f.Inherit()
		f.Beneath()
	}
	return po, nil
}
