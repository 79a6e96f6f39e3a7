package main

import (
	"time"

	"zmailer/internal/run/human"
)

// everything is what zmctl show tells of a message, for programs.
type everything struct {
	*message
	Details       []fileDetails `json:"file_details"`
	Reasons       []happened    `json:"reasons,omitempty"`       // why it was put aside, each time
	Envelope      []string      `json:"envelope,omitempty"`      // lines as they stand
	Specification []string      `json:"specification,omitempty"` // the same
	History       []happened    `json:"history,omitempty"`
	Next          []string      `json:"next"`               // in words
	Troubles      []string      `json:"troubles,omitempty"` // what could not be read
}

// fileDetails is one of a message's files.
type fileDetails struct {
	File    string    `json:"file"`
	Gone    bool      `json:"gone,omitempty"` // meanwhile
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"`
	UID     uint32    `json:"uid"`
	Written time.Time `json:"written"`
}

// everything gathers it.
func (s *spool) everything(m *message) *everything {
	e := &everything{message: m, Specification: textLines(m.raw), Next: s.next(m)}
	for _, name := range m.Files {
		info, err := s.fs.Stat(name)
		e.Details = append(e.Details, fileDetails{File: name, Gone: err != nil, Size: info.Size, Mode: info.Mode.String(), UID: info.UID, Written: info.ModTime})
	}
	if m.message.Dir != "" {
		var err error
		if e.Envelope, err = s.envelopeLines(m); err != nil {
			e.Troubles = append(e.Troubles, human.Clean(err.Error()))
		}
		e.Reasons = s.putAside(m)
		for i := range e.Reasons {
			e.Reasons[i].ID = m.ID
		}
	}
	list, err := s.history(m.id)
	if err != nil {
		e.Troubles = append(e.Troubles, human.Clean(err.Error()))
	}
	e.History = list
	return e
}
