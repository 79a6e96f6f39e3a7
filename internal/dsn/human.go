package dsn

import (
	"bufio"
	"strings"

	"zmailer/internal/status"
)

// subject speaks of the worst that happened.
func subject(a Action) string {
	switch a {
	case Delayed:
		return "Your message is delayed, delivery is still being tried"
	case Relayed:
		return "Your message was passed on"
	case Expanded:
		return "Your message was passed on to a list"
	case Delivered:
		return "Your message was delivered"
	}
	return "Your message could not be delivered"
}

// human writes the text for a person: what happened to whom, what the other side
// said, what can be done. Errors stick in w.
type human struct{ w *bufio.Writer }

// humanASCII tells whether the text will be ASCII.
func (r *Report) humanASCII() bool {
	for i := range r.Recipients {
		p := &r.Recipients[i]
		if !isASCII(p.Final) || !isASCII(p.Original) || !isASCII(p.Remote) || !isASCII(p.Text) {
			return false
		}
	}
	return isASCII(r.ReportingMTA) && isASCII(r.SpoolID)
}

func (h human) report(r *Report) {
	h.line("This is the mail system of " + text(r.ReportingMTA, true) + ".")
	h.line("")
	h.paragraph("", r.opening())
	for _, a := range actions() {
		if !r.has(a) {
			continue
		}
		h.line("")
		h.line(heading(a))
		for i := range r.Recipients {
			if p := &r.Recipients[i]; p.Action == a {
				h.recipient(p)
			}
		}
	}
	h.line("")
	if r.SpoolID != "" {
		h.line("If you ask your postmaster about this message, name it as")
		h.line("  " + text(r.SpoolID, true))
		h.line("")
	}
	end := "A report for programs follows"
	switch {
	case r.Original != nil && r.Full:
		end += ", then your message"
	case r.Original != nil:
		end += ", then the header of your message"
	}
	h.line(end + ".")
}

// line writes a line. bufio keeps its first error.
func (h human) line(s string) {
	h.w.WriteString(s)
	h.w.WriteByte('\n')
}

func (r *Report) opening() string {
	message := "Your message "
	if !r.Arrival.IsZero() {
		message = "Your message, which came here on " + r.Arrival.Format(dateFormat) + ", "
	}
	switch r.worst() {
	case Delayed:
		return message + "has not been delivered yet to the recipients named below. " +
			"It stays in the queue and is tried again. You need not send it again."
	case Relayed, Expanded, Delivered:
		return message + "went its way. You get this report because you asked for one."
	}
	return message + "could not be delivered to the recipients named under \"Not delivered\". " +
		"It will not be tried again for them."
}

func heading(a Action) string {
	switch a {
	case Delayed:
		return "Not delivered yet:"
	case Relayed:
		return "Passed on to a system that sends no reports of delivery:"
	case Expanded:
		return "Passed on to the members of a list:"
	case Delivered:
		return "Delivered:"
	}
	return "Not delivered:"
}

// recipient writes a recipient's paragraph. What others said is indented, so that
// no line of it can be taken for one of ours or for a boundary.
func (h human) recipient(p *Recipient) {
	h.line("")
	h.line("  <" + text(p.Final, true) + ">")
	if _, addr, _ := strings.Cut(p.Original, ";"); addr != "" && !strings.EqualFold(strings.TrimSpace(addr), p.Final) {
		h.line("    You had written to " + text(addr, true) + ".")
	}
	if p.Text != "" {
		_, host, _ := strings.Cut(p.Remote, ";")
		if host = text(host, true); host != "" {
			h.paragraph("    ", "The system "+host+" said:")
		} else {
			h.line("    The reason:")
		}
		h.quote(p.Text)
	}
	if p.Action == Delayed && !p.WillRetryUntil.IsZero() {
		h.line("    It will be tried until " + p.WillRetryUntil.Format(dateFormat) + ".")
	}
	if p.Action == Failed {
		h.paragraph("    ", advice(p.status()))
	}
}

// quote writes foreign text line by line, indented and bounded.
func (h human) quote(s string) {
	if len(s) > maxText {
		s = s[:maxText] + "\n..."
	}
	for line := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		h.paragraph("      ", text(line, true))
	}
}

// paragraph breaks a text at blanks into indented lines of about 72 bytes.
func (h human) paragraph(indent, s string) {
	width := 0
	for word := range strings.FieldsSeq(s) {
		switch {
		case width == 0:
			h.w.WriteString(indent)
			width = len(indent)
		case width+1+len(word) > 72:
			h.line("")
			h.w.WriteString(indent)
			width = len(indent)
		default:
			h.w.WriteByte(' ')
			width++
		}
		h.w.WriteString(word)
		width += len(word)
	}
	if width > 0 {
		h.line("")
	}
}

// advice says in words what a status means (RFC 3463 §3) and what the sender can
// do.
func advice(code string) string {
	c, _ := status.Parse(code)
	switch [2]uint16{c.Subject, c.Detail} {
	case [2]uint16{1, 1}, [2]uint16{1, 0}, [2]uint16{1, 6}:
		return "There is no such mailbox. Look for a typing error in the address, or ask the recipient for the right one."
	case [2]uint16{1, 2}, [2]uint16{1, 10}:
		return "There is no such mail domain, or it takes no mail. Look for a typing error behind the @."
	case [2]uint16{1, 3}:
		return "The address is not written as an address must be. Correct it and send the message again."
	case [2]uint16{2, 1}:
		return "The mailbox exists but takes no mail now. Reach the recipient in another way."
	case [2]uint16{2, 2}:
		return "The mailbox is full. Reach the recipient in another way, or send the message again later."
	case [2]uint16{2, 3}, [2]uint16{3, 4}:
		return "The message is too large for the recipient's system. Send it in smaller parts, or send a link to the content."
	case [2]uint16{4, 6}:
		return "The message went round in a circle between mail systems. The postmaster of the recipient's domain can mend that."
	case [2]uint16{4, 1}, [2]uint16{4, 2}, [2]uint16{4, 3}, [2]uint16{4, 4}:
		return "The recipient's system could not be reached in the time that there was. Look for a typing error behind the @; else send the message again later."
	case [2]uint16{4, 7}:
		return "It could not be delivered in the time that there was; the last answer says why. Send the message again later, or reach the recipient in another way."
	}
	switch c.Subject {
	case 5:
		return "The two mail systems did not understand each other. Your postmaster can find out why."
	case 6:
		return "The recipient's system cannot take a message of this kind. Send it in a simpler format."
	case 7:
		return "The recipient's system refuses the message by its rules. Reach the recipient in another way, or ask your postmaster."
	}
	return "If the reason does not tell you what to do, show this report to your postmaster."
}
