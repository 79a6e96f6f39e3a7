package view

import (
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/human"
)

// ThreadName is CHANNEL/HOST, followed by two blanks; "" of what is not routed.
func (r *Recipient) ThreadName() string {
	if r.Channel == "" {
		return ""
	}
	return r.Channel + "/" + r.Host + "  "
}

// Words describes the state of a recipient.
func (r *Recipient) Words(now time.Time) string {
	words := []string{r.State}
	if r.Unserved != "" {
		words[0] += " (" + r.Unserved + ")"
	}
	if r.Owner != nil {
		words[0] += " (" + r.Owner.String() + ")"
	}
	words = append(words, r.ordered(now)...)
	if r.Attempts > 0 {
		words = append(words, human.Count(r.Attempts, "attempt"))
	}
	switch {
	case r.Next == nil || !r.Open() || r.State == Held || r.State == Suspended:
	case r.Next.After(now):
		words = append(words, "next in "+human.Span(r.Next.Sub(now)))
	default:
		words = append(words, "due for "+human.Span(now.Sub(*r.Next)))
	}
	if r.State == Failed && r.Reported {
		words = append(words, "reported to sender")
	}
	if r.Status != "" {
		words = append(words, "status "+r.Status)
	}
	return strings.Join(words, ", ")
}

// ordered describes a hold or a freeze: its end, who ordered it, the reason.
func (r *Recipient) ordered(now time.Time) []string {
	if r.Ordered == nil {
		return nil
	}
	var words []string
	if r.Until != nil {
		words = append(words, "for "+human.Span(r.Until.Sub(now)))
	}
	if r.Cause != "" {
		words = append(words, "cause "+r.Cause)
	}
	if r.By != "" {
		words = append(words, "by "+r.By)
	}
	if r.Reason != "" {
		words = append(words, strconv.Quote(r.Reason))
	}
	return words
}
