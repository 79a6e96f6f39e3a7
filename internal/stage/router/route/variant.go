package route

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
)

// variant is a message as some of its recipients get it: with another sender, with other
// fields in its header, or by itself, as the policy wants it. 0 is what all others get.
type variant struct {
	header []contentrules.Rule
	sender *address.Mailbox // nil: the message's
	split  string           // the policy's own word for its recipients; ""
	// delivered is the address of ours that it is forwarded for; "": it is not. of is the
	// variant that it would have without that.
	delivered string
	of        int
}

// variants are those of a message; 0 is the whole message's.
type variants struct {
	list     []variant // none: nothing is changed
	places   map[string]int
	forwards int // those that name an address that they were forwarded for
}

// of returns the variant that has these changes besides those of the whole message; the
// same changes have the same one. Without any it is 0.
func (s *variants) of(v variant) int {
	if len(v.header) == 0 && v.sender == nil && v.split == "" && v.delivered == "" {
		return 0
	}
	key := v.key()
	if i, ok := s.places[key]; ok {
		return i
	}
	if len(s.list) == 0 {
		s.list = append(s.list, variant{})
	}
	if s.places == nil {
		s.places = map[string]int{}
	}
	s.list = append(s.list, v)
	s.places[key] = len(s.list) - 1
	return len(s.list) - 1
}

// key returns the same for the same changes, and for no others: no field holds a NUL.
func (v *variant) key() string {
	var b strings.Builder
	b.WriteString(v.split)
	b.WriteByte(0)
	if v.sender != nil {
		b.WriteString(v.sender.String())
	}
	b.WriteByte(0)
	b.WriteString(v.delivered)
	for i := range v.header {
		b.WriteString("\x00" + v.header[i].Key())
	}
	return b.String()
}

// from returns the sender of a variant. The null sender stays: no report is made about a
// report (RFC 5321 §4.5.5).
func (msg *message) from(i int) address.Mailbox {
	list := msg.variants.list
	if msg.sender.IsNull() || len(list) == 0 {
		return msg.sender
	}
	for _, v := range [...]*variant{&list[i], &list[0]} {
		if v.sender != nil {
			return *v.sender
		}
	}
	return msg.sender
}

// headerEdits returns the changes in the header of a variant, nil if there are none: first
// those of the whole message.
func (s *variants) headerEdits(i int) *contentrules.Rules {
	if len(s.list) == 0 {
		return nil
	}
	list := s.list[0].header
	if i > 0 {
		list = append(list[:len(list):len(list)], s.list[i].header...)
	}
	if len(list) == 0 {
		return nil
	}
	rules := contentrules.Fields(list)
	return &rules
}
