package web

import "slices"

// Lister makes a Listing: Add each message that is selected.
type Lister struct {
	Listing
	first, most int
}

// NewLister keeps most messages behind the first so many.
func NewLister(first, most int) *Lister { return &Lister{first: first, most: most} }

// Add counts a message, and keeps it if it is one of those that are asked for.
func (l *Lister) Add(m *Message) {
	if l.All >= l.first && len(l.Messages) < l.most {
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
		m.shorten()
	}
	return &l.Listing
}

func (m *Message) shorten() {
	if len(m.Recipients) <= listedRecipients {
		return
	}
	slices.SortStableFunc(m.Recipients, func(a, b Recipient) int {
		switch {
		case a.Open == b.Open:
			return 0
		case a.Open:
			return -1
		}
		return 1
	})
	m.Hidden += len(m.Recipients) - listedRecipients
	m.Recipients = m.Recipients[:listedRecipients]
}
