package envelope

import (
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
)

// place is where the value of a keyword is held: in a string, or as a line that is there or
// not.
type place struct {
	keyword string
	value   func(*Envelope) *string
	flag    func(*Envelope) *bool
}

// places are the keywords with one place, in the order in which they are written.
var places = []place{
	{keyword: "external", flag: func(e *Envelope) *bool { return &e.External }},
	{keyword: "rcvdfrom", value: func(e *Envelope) *string { return &e.RcvdFrom }},
	{keyword: "forwarded", value: func(e *Envelope) *string { return &e.Forwarded }},
	{keyword: "bodytype", value: func(e *Envelope) *string { return &e.BodyType }},
	{keyword: "errormsg", flag: func(e *Envelope) *bool { return &e.ErrorMsg }},
	{keyword: "with", value: func(e *Envelope) *string { return &e.With }},
	{keyword: "identinfo", value: func(e *Envelope) *string { return &e.IdentInfo }},
	{keyword: "fullname", value: func(e *Envelope) *string { return &e.FullName }},
	{keyword: "loginname", value: func(e *Envelope) *string { return &e.LoginName }},
	{keyword: "via", value: func(e *Envelope) *string { return &e.Via }},
	{keyword: "user", value: func(e *Envelope) *string { return &e.User }},
	{keyword: "submitted", value: func(e *Envelope) *string { return &e.Submitted }},
	{keyword: "rules", value: func(e *Envelope) *string { return &e.Rules }},
	{keyword: "filter", value: func(e *Envelope) *string { return &e.Filter }},
	{keyword: "filtered", flag: func(e *Envelope) *bool { return &e.Filtered }},
	{keyword: "above", value: func(e *Envelope) *string { return &e.Above }},
	{keyword: "verbose", value: func(e *Envelope) *string { return &e.Verbose }},
	{keyword: "envid", value: func(e *Envelope) *string { return &e.EnvID }},
	{keyword: "notaryret", value: func(e *Envelope) *string { return &e.NotaryRet }},
}

// keywords are all that we know: those with one place, and those that parse treats itself.
var keywords = func() map[string]place {
	all := map[string]place{}
	for _, p := range places {
		all[p.keyword] = p
	}
	for _, k := range []string{"comment", "from", "channel", "todsn", "to", "submitter"} {
		all[k] = place{keyword: k}
	}
	return all
}()

// longestKeyword bounds the copy that keywordOf makes.
const longestKeyword = len("notaryret")

// keywordOf finds a keyword, whatever its case.
func keywordOf(word []byte) (k place, known bool) {
	if len(word) > longestKeyword {
		return place{}, false
	}
	var lower [longestKeyword]byte
	for i, b := range word {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		lower[i] = b
	}
	k, known = keywords[string(lower[:len(word)])]
	return k, known
}

// octets is the comment that a draft of ours starts with (postoffice.Draft): the size
// of the file, and a checksum of so many digits.
const (
	octets    = "octets "
	sumDigits = 8
)

// parse reads the envelope lines, env-end not among them.
func (e *Envelope) parse(text string) error {
	e.Octets = -1
	var dsn string
	var hasDSN bool
	for n := 1; text != ""; n++ {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		word, value, reason := cutKeyword(line)
		if reason == "" {
			k, known := keywordOf([]byte(word))
			switch {
			case !known:
				e.Unknown = append(e.Unknown, word)
			case k.flag != nil:
				*k.flag(e) = true
			case k.value != nil:
				*k.value(e) = value
			case k.keyword == "todsn":
				dsn, hasDSN = value, true
			case k.keyword == "to":
				reason = e.addRecipients(value, dsn)
				dsn, hasDSN = "", false
			case k.keyword == "comment":
				e.addComment(n, value)
			case k.keyword == "submitter":
				if n != 2 || e.Octets < 0 || !e.setSubmitter(value) {
					e.Unknown = append(e.Unknown, word)
				}
			default:
				reason = e.setSender(k.keyword, value)
			}
		}
		if reason != "" {
			return &SyntaxError{n, line[:min(len(line), 100)], reason}
		}
	}
	if hasDSN {
		e.Unknown = append(e.Unknown, "todsn")
	}
	return nil
}

// cutKeyword parts a line at its first blank. reason is why it is no envelope
// line.
func cutKeyword(line string) (word, value, reason string) {
	end := len(line)
	for i := 0; i < len(line); i++ {
		switch b := line[i]; {
		case b == ' ' || b == '\t':
			if end == len(line) {
				end = i
			}
		case b < ' ' || b == 0x7f:
			return "", "", "control character " + strconv.Quote(line[i:i+1])
		}
	}
	word = line[:end]
	if word == "" {
		return "", "", "begins with a blank"
	}
	for i := 0; i < len(word); i++ {
		b := word[i]
		letter := 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
		if !letter && (i == 0 || !('0' <= b && b <= '9' || b == '-' || b == '_')) {
			return "", "", "neither an envelope keyword nor a header"
		}
	}
	return word, strings.Trim(line[end:], " \t"), ""
}

// setSubmitter reads "submitter UID ID". It counts behind the first line alone: what is
// below it may be the user's.
func (e *Envelope) setSubmitter(value string) bool {
	digits, id, _ := strings.Cut(value, " ")
	uid, err := strconv.ParseUint(digits, 10, 32)
	if err == nil {
		e.Submitter = &Submitter{UID: uint32(uid), ID: id}
	}
	return err == nil
}

func (e *Envelope) addComment(line int, value string) {
	if digits, ok := strings.CutPrefix(value, octets); ok && line == 1 {
		digits, sum, has := strings.Cut(digits, " ")
		_, err := strconv.ParseUint(sum, 16, 32)
		known := !has || err == nil && len(sum) == sumDigits
		if n, err := strconv.ParseInt(digits, 10, 64); known && err == nil && n >= 0 {
			e.Octets = n
			return
		}
	}
	e.Comments = append(e.Comments, value)
}

// setSender reads "from <ADDRESS>" or "channel error". A message has one sender:
// a second one that differs is a fault, not a choice.
func (e *Envelope) setSender(keyword, value string) (reason string) {
	sender := ""
	switch {
	case keyword == "from":
		var err error
		if sender, err = bare(value); err != nil {
			return err.Error()
		}
	case !strings.EqualFold(value, "error"):
		e.Unknown = append(e.Unknown, "channel")
		return ""
	}
	if e.HasFrom && e.From != sender {
		return "a second sender"
	}
	e.From, e.HasFrom = sender, true
	return ""
}

// bare checks an address and takes its brackets off; it stays as written.
func bare(s string) (string, error) {
	if _, err := address.Parse(s); err != nil {
		return "", err
	}
	if strings.HasPrefix(s, "<") {
		s = s[1 : len(s)-1]
	}
	return s, nil
}

// addRecipients reads the comma list of a to line.
func (e *Envelope) addRecipients(list, dsn string) (reason string) {
	found := false
	for list != "" {
		var one string
		one, list = cutComma(list)
		if one == "" {
			continue
		}
		a, err := bare(one)
		if err != nil {
			return err.Error()
		}
		if a == "" {
			return "the null address is no recipient"
		}
		found = true
		e.Recipients = append(e.Recipients, Recipient{Address: a, DSN: dsn})
	}
	if !found {
		return "no address"
	}
	return ""
}

// cutComma parts a list at its first comma outside of quotes and brackets.
func cutComma(list string) (first, rest string) {
	inQuotes, depth := false, 0
	for i := 0; i < len(list); i++ {
		switch b := list[i]; {
		case b == '\\' && inQuotes:
			i++
		case b == '"':
			inQuotes = !inQuotes
		case inQuotes:
		case b == '<' || b == '[':
			depth++
		case b == '>' || b == ']':
			depth--
		case b == ',' && depth <= 0:
			return strings.Trim(list[:i], " \t"), list[i+1:]
		}
	}
	return strings.Trim(list, " \t"), ""
}
