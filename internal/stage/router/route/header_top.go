package route

import (
	"net/mail"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/contentrules"
	"zmailer/internal/mail/envelope"
)

// top makes the header block as it is to be sent: our Received field, what a local
// submitter left to us, then the message's own fields as written. Of those none is
// changed but what the configuration asks for (masquerade, header-rules, and the policy
// for this variant of the message), and none left out but Bcc of local mail and of mail that users submitted.
//
// It is made of the message file alone, each time the message is routed: nothing is
// added twice (S13).
func (w *worker) top(b []byte, msg *message, variant int) []byte {
	resent, _ := msg.resent()
	own := 0
	// A header that begins with a blank goes on with the field above it. That may be
	// Received, and no other.
	folded := len(msg.head.Header) > 0 && (msg.head.Header[0] == ' ' || msg.head.Header[0] == '\t')
	above := 0
	if !folded {
		above = msg.above()
		for i := range msg.header.fields[:above] {
			b = append(b, msg.header.fields[i].Raw...)
		}
		b = msg.received(b, &w.en.c)
		// Postfix puts it below its own Received field too.
		b = msg.variants.deliveredField(b, variant)
		own = len(b)
	}
	if resent < 0 {
		b = msg.made(b, "", w.en.c.Hostname)
	}
	if folded {
		b = msg.variants.deliveredField(b, variant)
		b = msg.received(b, &w.en.c)
	}
	if resent < 0 && len(msg.masked) == 0 && msg.external && msg.user == "" && !msg.fromLines {
		skip := 0
		for i := range msg.header.fields[:above] {
			skip += len(msg.header.fields[i].Raw)
		}
		b = append(b, msg.head.Header[skip:]...)
	} else {
		for i := range msg.header.fields {
			f := &msg.header.fields[i]
			if i < above {
				continue
			}
			if i == resent {
				b = msg.made(b, "Resent-", w.en.c.Hostname)
			}
			switch raw, masked := msg.masked[i]; {
			case masked:
				b = append(b, raw...)
			case !msg.hides(f.Name):
				b = append(b, f.Raw...)
			}
		}
	}
	if from := msg.ruled(); msg.rules.ConcernHeader(from) {
		b = editHeader(b[:own], append([]byte(nil), b[own:]...), &msg.rules, from)
	}
	if rules := msg.variants.headerEdits(variant); rules != nil {
		b = editHeader(b[:own], append([]byte(nil), b[own:]...), rules, contentrules.Local)
	}
	return b
}

// above returns how many fields filters have put above our Received field, which only the
// server that has asked them may say.
func (msg *message) above() int {
	if !msg.trusted || msg.head.Above == "" {
		return 0
	}
	n, err := strconv.Atoi(msg.head.Above)
	if err != nil || n < 0 {
		return 0
	}
	n = min(n, len(msg.header.fields))
	if i := slices.IndexFunc(msg.header.fields[:n], func(f envelope.Field) bool { return f.Name == "" }); i >= 0 {
		n = i
	}
	return n
}

// hides reports whether a field is not to be sent. RFC 5322 §3.6.3 leaves Bcc to who makes
// the message; one that was handed in here with it is on its way from there to the
// others. What came from outside is the business of its sender, and may be signed.
func (msg *message) hides(name string) bool {
	return isBlind(name) && (!msg.external || msg.user != "" || msg.fromLines)
}

// resent returns the block of Resent fields that the local submitter has put on, as
// fields[from:to]; from is -1 if there is none. One below a Received field was put on
// elsewhere, RFC 5322 §3.6.6.
func (msg *message) resent() (from, to int) {
	if msg.external && msg.user == "" {
		return -1, 0
	}
	from, to = envelope.UppermostResent(msg.header.fields)
	for i := range max(from, 0) {
		if strings.EqualFold(msg.header.fields[i].Name, "Received") {
			return -1, 0
		}
	}
	return from, to
}

// ours returns the message's own fields, or of a message that was resent here the resent
// ones: what its local submitter has made.
func (msg *message) ours() (prefix string, fields []envelope.Field, offset int) {
	if from, to := msg.resent(); from >= 0 {
		return "Resent-", msg.header.fields[from:to], from
	}
	return "", msg.header.fields, 0
}

// made appends the fields that a message must have and a local submitter may leave to us
// (RFC 6409 §8): From, Date, Message-ID, or for a message that was resent the same with
// prefix Resent-, because then the others are not his (RFC 5322 §3.6.6). A user who submits by
// SMTP is such a submitter. Mail from outside gets none but the Sender of a submitter who
// uses another's address.
func (msg *message) made(b []byte, prefix, hostname string) []byte {
	_, fields, _ := msg.ours()
	find := func(name string) *envelope.Field {
		for i := range fields {
			if strings.EqualFold(fields[i].Name, prefix+name) {
				return &fields[i]
			}
		}
		return nil
	}
	from := find("From")
	// RFC 5322 §3.6.2: Sender is written only beside a From that names somebody else.
	if msg.claimed != "" && from != nil && !names(from, msg.author) && !names(find("Sender"), msg.author) {
		b = append(append(append(append(b, prefix...), "Sender: "...), msg.sender.String()...), '\n')
	}
	if msg.external && msg.user == "" {
		return b
	}
	if from == nil {
		a := mail.Address{Name: msg.head.FullName, Address: msg.sender.String()}
		if msg.sender.IsNull() {
			a = mail.Address{Address: "MAILER-DAEMON@" + hostname}
		}
		b = append(append(append(append(b, prefix...), "From: "...), fromPhrase(a)...), '\n')
	}
	if find("Date") == nil {
		b = append(msg.date(append(append(b, prefix...), "Date: "...)), '\n')
	}
	if find("Message-ID") == nil {
		b = append(append(append(append(b, prefix...), "Message-ID: "...), msg.madeID(hostname)...), '\n')
	}
	return b
}

// makesID reports whether made gives the message its Message-ID.
func (msg *message) makesID() bool {
	from, _ := msg.resent()
	return from < 0 && (!msg.external || msg.user != "") && msg.header.messageID == nil
}

// names reports whether a field holds this one address.
func names(f *envelope.Field, m address.Mailbox) bool {
	if f == nil {
		return false
	}
	list := address.ParseList(f.Value())
	return len(list) == 1 && list[0].Err == nil && strings.EqualFold(list[0].Mailbox.Key(), m.Key())
}
