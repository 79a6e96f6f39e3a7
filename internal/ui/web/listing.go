package web

import (
	"slices"

	"zmailer/internal/admin/view"
)

// Lister makes a Listing: Add each message that is selected.
type Lister struct {
	Listing
	first, most int
}

// NewLister keeps most messages behind the first so many.
func NewLister(first, most int) *Lister { return &Lister{first: first, most: most} }

// Add counts a message, and keeps it if it is one of those that are asked for.
func (l *Lister) Add(m *view.Message) {
	if l.All >= l.first && len(l.Messages) < l.most {
		m.Raw, m.Spec, m.Envelope = nil, nil, nil // they may be large, and no list shows them
		l.Messages = append(l.Messages, m)
	}
	l.All++
	l.Recipients += len(m.Recipients)
}

// listedRecipients is how many recipients of a message a list shows.
const listedRecipients = 5

// Settle leaves those recipients of each message that a list shows, open ones first.
func (l *Lister) Settle() *Listing {
	for _, m := range l.Messages {
		shorten(m)
	}
	return &l.Listing
}

func shorten(m *view.Message) {
	if len(m.Recipients) <= listedRecipients {
		return
	}
	slices.SortStableFunc(m.Recipients, func(a, b view.Recipient) int {
		switch {
		case a.Open() == b.Open():
			return 0
		case a.Open():
			return -1
		}
		return 1
	})
	m.Hidden += len(m.Recipients) - listedRecipients
	m.Recipients = m.Recipients[:listedRecipients]
}
