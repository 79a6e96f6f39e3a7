package submit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// maxEnvID is the longest ENVID before encoding (RFC 3461 §4.4). Bytes.
const maxEnvID = 100

// prepare checks the arguments and makes the envelope of them. What a program asks for
// about reports and cannot be understood is ignored with a warning, as Postfix's sendmail
// does: the mail matters more.
func (s *submission) prepare() error {
	if s.HasFrom {
		from, err := s.parseSender(s.From)
		if err != nil {
			return &Error{Code: exitDataErr, Err: fmt.Errorf("sender (-f): %w", err)}
		}
		s.env.From, s.env.HasFrom = from, true
	}
	s.env.FullName = human.Blank(strings.ToValidUTF8(s.FullName, "?"))
	var err error
	if s.dsn, err = notify(s.Notify); err != nil {
		s.warn("%v; ignored", err)
	}
	if s.env.NotaryRet, err = oneWord("-R", s.Return, "FULL", "HDRS"); err != nil {
		s.warn("%v; ignored", err)
	}
	if s.env.BodyType, err = oneWord("-B", s.BodyType, "7BIT", "8BITMIME"); err != nil {
		return usage(err)
	}
	if s.env.EnvID, err = envelopeID(s.EnvelopeID); err != nil {
		s.warn("%v; ignored", err)
	}
	if s.dir, err = s.directory(); err != nil {
		return usage(err)
	}
	if s.PerRecipient != "" {
		if err := s.checkVERP(); err != nil {
			return usage(err)
		}
	}
	for _, arg := range s.Recipients {
		s.addRecipients(arg, "recipient")
	}
	return nil
}

// directory returns the one that -P asks for. Settings that the router refuses are none here:
// mail is not refused because it could wait.
func (s *submission) directory() (string, error) {
	if s.Priority == "" {
		return postoffice.Router, nil
	}
	n, err := strconv.Atoi(s.Priority)
	if err != nil || n < 0 {
		return "", fmt.Errorf("-P %.20q: it must be a number: 0 for %s/, 1 for the first of ROUTERDIRS", s.Priority, postoffice.Router)
	}
	dirs, err := postoffice.ParseRouterDirs(s.RouterDirs)
	if err != nil {
		s.say("ROUTERDIRS: %v; it is put into %s/", err, postoffice.Router)
		return postoffice.Router, nil
	}
	return postoffice.PriorityDir(dirs, n), nil
}

// addRecipients adds the addresses of a list, each once. What cannot be read is kept for
// reportBad.
func (s *submission) addRecipients(list, where string) {
	good, bad := readAddresses(list)
	if len(good)+len(bad) == 0 && where == "recipient" {
		bad = append(bad, unreadable(list, "", errors.New("no address")))
	}
	for _, b := range bad {
		b.err = fmt.Errorf("%s: %w", where, b.err)
		s.bad = append(s.bad, b)
	}
	for _, a := range good {
		s.addRecipient(a)
	}
}

func (s *submission) addRecipient(a string) {
	if s.seen[a] {
		return
	}
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[a] = true
	s.say("recipient %s", a)
	s.env.Recipients = append(s.env.Recipients, envelope.Recipient{Address: a, DSN: s.dsn})
}

// reportBad has the sender of a message to others, too, get a report about each address
// that cannot be read, as Postfix does. If there are no others nothing is accepted.
func (s *submission) reportBad(header bool) error {
	if len(s.env.Recipients) == 0 {
		if len(s.bad) == 0 {
			return usage(errNoRecipient(header))
		}
		errs := make([]error, len(s.bad))
		for i, b := range s.bad {
			errs[i] = b.err
		}
		return &Error{Code: exitDataErr, Err: oneLineErrors(errs)}
	}
	for _, b := range s.bad {
		s.warn("%v; the others get the message, and its sender a report about this one", b.err)
		s.addRecipient(reportable(b.text))
	}
	return nil
}

// parseSender reads the argument of -f: an address, with a name perhaps, or the null
// sender. Of several the first counts, as for Postfix's sendmail.
func (s *submission) parseSender(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "<>" {
		return "", nil
	}
	good, bad := readAddresses(text)
	if len(bad) > 0 {
		return "", bad[0].err
	}
	if len(good) == 0 {
		return "", fmt.Errorf("%.300q holds no address", text)
	}
	if len(good) > 1 {
		s.warn("sender (-f) %.300q: %d addresses; %s is the sender", text, len(good), good[0])
	}
	return good[0], nil
}

// notify makes the todsn line from -N (RFC 3461 §4.1).
func notify(list string) (string, error) {
	if list == "" {
		return "", nil
	}
	bad := fmt.Errorf("-N %.100q: it must be never, or some of success,failure,delay", list)
	words := strings.Split(strings.ToUpper(list), ",")
	seen := map[string]bool{}
	for i, w := range words {
		w = strings.TrimSpace(w)
		switch w {
		case "NEVER", "SUCCESS", "FAILURE", "DELAY":
		default:
			return "", bad
		}
		if seen[w] {
			return "", bad
		}
		seen[w], words[i] = true, w
	}
	if seen["NEVER"] && len(words) > 1 {
		return "", bad
	}
	return "NOTIFY=" + strings.Join(words, ","), nil
}

// oneWord returns the upper-case form of an argument that must be one of two words.
func oneWord(flag, text, first, second string) (string, error) {
	up := strings.ToUpper(text)
	if up == "" || up == first || up == second {
		return up, nil
	}
	return "", fmt.Errorf("%s %.100q: it must be %s or %s", flag, text, strings.ToLower(first), strings.ToLower(second))
}

// envelopeID is -V's text as xtext (RFC 3461 §4.4: printable characters).
func envelopeID(text string) (string, error) {
	if len(text) > maxEnvID {
		return "", fmt.Errorf("-V: an envelope ID has at most %d bytes", maxEnvID)
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return "", errors.New("-V: an envelope ID consists of printable ASCII characters")
		}
	}
	return address.EncodeXText(text), nil
}
