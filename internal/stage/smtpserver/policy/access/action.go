package access

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	tabletext "zmailer/internal/table/text"
)

// EffectKind is what an Effect does to a message.
type EffectKind uint8

const (
	Prepend  EffectKind = iota + 1 // a header field on top
	Redirect                       // to this address instead of its recipients
	BCC                            // also to this address
	Hold                           // frozen
	Discard                        // accepted and thrown away
	Filter                         // to this CHANNEL!HOST, whatever the recipients are
)

// Effect is what an action does to the whole message beside accepting it.
type Effect struct {
	Kind EffectKind
	Text string // the field, the address, or the reason
	By   string
}

func (e Effect) String() string {
	words := map[EffectKind]string{Prepend: "prepend", Redirect: "redirect to", BCC: "copy to", Hold: "hold", Discard: "discard", Filter: "filter"}
	return strings.TrimSpace(words[e.Kind] + " " + e.Text)
}

// Warning is what a rule would have done but for warn_if_reject, or a WARN.
type Warning struct{ By, Text string }

// outcome is the result of a restriction. The zero value is DUNNO: the next rule decides.
type outcome struct {
	verdict  Verdict
	effect   Effect // Kind 0: none
	warning  string
	ifPermit bool // the verdict counts only if a later rule accepts
	ifReject bool // it counts only if a later rule rejects
	trouble  bool // something else does not answer: code and text of the rule are not about that
}

// fitting returns an enhanced code about an address in the form that fits what is refused: the
// codes X.1.N are about a sender or about a recipient (RFC 3463 section 3.2), and Postfix
// replaces one that is about the other.
func fitting(st status.Code, what string) status.Code {
	if st.Subject != 1 {
		return st
	}
	switch what {
	case "Sender address":
		st.Detail = map[uint16]uint16{1: 7, 2: 8, 3: 7, 4: 7, 6: 7, 7: 7, 8: 8}[st.Detail]
	case "Recipient address":
		switch st.Detail {
		case 7:
			st.Detail = 3
		case 8:
			st.Detail = 2
		case 9, 10:
			st.Detail = 0
		}
	default:
		st.Subject, st.Detail = 0, 0
	}
	return st
}

// ErrAction means that a word is no action that is known.
var ErrAction = errors.New("unknown action")

// parseAction reads an action of access(5), as tables and policy services have them. object and
// reply are for the reply: "<bob@example.org>", "Recipient address".
func parseAction(text, object, reply string) (outcome, error) {
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimSpace(rest)
	refuse := func(a Action, code int, st status.Code, text string) outcome {
		if text == "" {
			text = "Access denied"
		}
		return outcome{verdict: Verdict{Action: a, Code: code, Status: st, Text: object + ": " + reply + " rejected: " + text}}
	}
	coded := func(a Action, code int) outcome {
		class := 5
		if a == Defer {
			class = 4
		}
		st, text := status.Code{Class: uint16(class), Subject: 7, Detail: 1}, rest
		first, more, _ := strings.Cut(rest, " ")
		if c, ok := status.Parse(first); ok {
			text = strings.TrimSpace(more)
			if st = c; int(c.Class) != class {
				st.Class = uint16(class)
			}
			st = fitting(st, reply)
		}
		return refuse(a, code, st, text)
	}
	switch upper := strings.ToUpper(word); upper {
	case "DUNNO":
		return outcome{}, nil
	case "OK", "PERMIT":
		return outcome{verdict: Verdict{Action: Accept}}, nil
	case "REJECT":
		return coded(Reject, 554), nil
	case "DEFER":
		return coded(Defer, 450), nil
	case "DEFER_IF_PERMIT", "DEFER_IF_REJECT":
		o := coded(Defer, 450)
		o.ifPermit, o.ifReject = upper == "DEFER_IF_PERMIT", upper == "DEFER_IF_REJECT"
		return o, nil
	case "WARN", "INFO":
		if rest == "" {
			rest = upper
		}
		return outcome{warning: rest}, nil
	case "HOLD", "DISCARD":
		kind := Hold
		if upper == "DISCARD" {
			kind = Discard
		}
		return outcome{effect: Effect{Kind: kind, Text: rest}}, nil
	case "PREPEND":
		name, _, ok := strings.Cut(rest, ":")
		if !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return outcome{}, fmt.Errorf("PREPEND: %.60q is no header field: want Name: value", rest)
		}
		return outcome{effect: Effect{Kind: Prepend, Text: rest}}, nil
	case "REDIRECT", "BCC":
		m, err := address.Parse(strings.Trim(rest, "<>"))
		if err != nil || m.IsNull() {
			return outcome{}, fmt.Errorf("%s: %.60q is no address", upper, rest)
		}
		kind := Redirect
		if upper == "BCC" {
			kind = BCC
		}
		return outcome{effect: Effect{Kind: kind, Text: "<" + m.String() + ">"}}, nil
	case "FILTER":
		to, err := tabletext.ParseFilter(rest)
		if err != nil {
			return outcome{}, fmt.Errorf("FILTER: %w", err)
		}
		return outcome{effect: Effect{Kind: Filter, Text: to.Channel + "!" + to.Host}}, nil
	default:
		n, err := strconv.Atoi(word)
		switch {
		case strings.Trim(word, "0123456789") == "" && word != "" && rest == "":
			// access(5): "an all-numerical result is treated as OK", 550 without a text, too.
			return outcome{verdict: Verdict{Action: Accept}}, nil
		case err == nil && len(word) == 3 && word[0] == '4':
			return coded(Defer, n), nil
		case err == nil && len(word) == 3 && word[0] == '5':
			return coded(Reject, n), nil
		}
	}
	return outcome{}, fmt.Errorf("%w %.60q: want OK, DUNNO, REJECT, DEFER, DEFER_IF_PERMIT, DEFER_IF_REJECT, 4NN or 5NN with a text, HOLD, DISCARD, PREPEND, REDIRECT, BCC, FILTER, WARN or INFO", ErrAction, word)
}
