package envelope

import (
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
)

// keyword is an envelope keyword that we know.
type keyword uint8

const (
	kNone keyword = iota
	kExternal
	kRcvdFrom
	kBodyType
	kErrorMsg
	kWith
	kIdentInfo
	kComment
	kFullName
	kLoginName
	kVia
	kUser
	kVerbose
	kFrom
	kChannel
	kEnvID
	kNotaryRet
	kToDSN
	kTo
	kSubmitter
)

// longestKeyword bounds the copy that keywordOf makes.
const longestKeyword = len("notaryret")

// keywordOf finds a keyword, whatever its case.
func keywordOf(word []byte) keyword {
	if len(word) > longestKeyword {
		return kNone
	}
	var lower [longestKeyword]byte
	for i, b := range word {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		lower[i] = b
	}
	switch string(lower[:len(word)]) {
	case "external":
		return kExternal
	case "rcvdfrom":
		return kRcvdFrom
	case "bodytype":
		return kBodyType
	case "errormsg":
		return kErrorMsg
	case "with":
		return kWith
	case "identinfo":
		return kIdentInfo
	case "comment":
		return kComment
	case "fullname":
		return kFullName
	case "loginname":
		return kLoginName
	case "via":
		return kVia
	case "user":
		return kUser
	case "verbose":
		return kVerbose
	case "from":
		return kFrom
	case "channel":
		return kChannel
	case "envid":
		return kEnvID
	case "notaryret":
		return kNotaryRet
	case "todsn":
		return kToDSN
	case "to":
		return kTo
	case "submitter":
		return kSubmitter
	}
	return kNone
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
			switch k := keywordOf([]byte(word)); k {
			case kNone:
				e.Unknown = append(e.Unknown, word)
			case kToDSN:
				dsn, hasDSN = value, true
			case kTo:
				reason = e.addRecipients(value, dsn)
				dsn, hasDSN = "", false
			case kFrom, kChannel:
				reason = e.setSender(k, value)
			case kComment:
				e.addComment(n, value)
			case kSubmitter:
				if n != 2 || e.Octets < 0 || !e.setSubmitter(value) {
					e.Unknown = append(e.Unknown, word)
				}
			default:
				e.set(k, value)
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

// cutKeyword parts a line at its first blank. reason says why it is no envelope
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

// set stores the value of a keyword that has one place.
func (e *Envelope) set(k keyword, value string) {
	switch k {
	case kExternal:
		e.External = true
	case kErrorMsg:
		e.ErrorMsg = true
	default:
		*e.field(k) = value
	}
}

// field is where a keyword's value is held.
func (e *Envelope) field(k keyword) *string {
	switch k {
	case kRcvdFrom:
		return &e.RcvdFrom
	case kBodyType:
		return &e.BodyType
	case kWith:
		return &e.With
	case kIdentInfo:
		return &e.IdentInfo
	case kFullName:
		return &e.FullName
	case kLoginName:
		return &e.LoginName
	case kVia:
		return &e.Via
	case kUser:
		return &e.User
	case kVerbose:
		return &e.Verbose
	case kEnvID:
		return &e.EnvID
	case kNotaryRet:
		return &e.NotaryRet
	}
	panic("envelope: keyword without a field")
}

// setSubmitter reads "submitter UID ID". It counts behind the first line alone: what stands
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
func (e *Envelope) setSender(k keyword, value string) (reason string) {
	sender := ""
	switch {
	case k == kFrom:
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
