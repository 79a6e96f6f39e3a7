package route

import (
	"net/netip"
	"slices"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
)

// A content filter that gives mail back to port 25 instead of REINJECTLISTEN gets all of it again,
// until there are 50 Received fields. The mark is a comment in our Received field of mail that goes
// to the filter. Mail that comes from the filter's networks, is not filtered, and has the mark in the
// uppermost of our own fields has come from the filter. Mail of a list manager, or another program
// that sends on what we have delivered, has our field of the way behind the filter above that.

// toFilter is the comment. Recipients may read it: it has no address.
const toFilter = "(to the content filter)"

// loopCause is why such mail is put into the freezer: it is a fault of this host, which no sender
// can help, and concerns all mail.
const loopCause = "filter-loop"

// filterLoop returns the *Frozen of a message that has come back from the content filter to a
// port for other mail; nil: it has not, or an operator has thawed it.
func (en *Engine) filterLoop(msg *message) error {
	if !msg.trusted || !msg.external || msg.head.RcvdFrom == "" || !msg.header.isMarked(en.c.Hostname) {
		return nil
	}
	peer := envelope.Envelope{RcvdFrom: msg.head.RcvdFrom} // the client itself, not one that it names
	client, ok := envelope.ClientAddress(peer.Origin().Client)
	from := client.Addr().Unmap()
	if !ok || !slices.ContainsFunc(en.c.FilterNets, func(n netip.Prefix) bool { return n.Contains(from) }) || en.isThawed(msg.claim.ID) {
		return nil
	}
	return &Frozen{loopCause, "the content filter " + en.c.ContentFilter.Channel + "!" + en.c.ContentFilter.Host + " has returned it from " + from.String() +
		" to a port for other mail; it has to return mail to the address of REINJECTLISTEN"}
}

// isMarked reports whether the uppermost Received field of this host has the mark.
func (h *header) isMarked(hostname string) bool {
	_, marked := h.wayToFilter(hostname)
	return marked
}

// wayToFilter returns the spool ID in the uppermost Received field of this host, if that has the mark.
func (h *header) wayToFilter(hostname string) (id string, marked bool) {
	for i := range h.fields {
		f := &h.fields[i]
		if len(f.Name) != len("Received") || !strings.EqualFold(f.Name, "Received") {
			continue
		}
		words := strings.Fields(f.Value())
		by := slices.Index(words, "by")
		if by < 0 || by+1 >= len(words) || !strings.EqualFold(words[by+1], hostname) {
			continue
		}
		words = words[by:]
		if at := slices.Index(words, "id"); at >= 0 && at+1 < len(words) {
			id = strings.TrimSuffix(words[at+1], ";")
		}
		return id, strings.Contains(strings.Join(words, " "), toFilter)
	}
	return "", false
}

// beforeFilter returns the spool ID that a message which the content filter has given back had on the
// way to it; "": it has not passed the filter, or that took our field out.
func (en *Engine) beforeFilter(msg *message) string {
	if !msg.trusted || !msg.head.Filtered {
		return ""
	}
	id, marked := msg.header.wayToFilter(en.c.Hostname)
	if _, err := postoffice.ParseSpoolID(id); err != nil || !marked {
		return ""
	}
	return id
}
