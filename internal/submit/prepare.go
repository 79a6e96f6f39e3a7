package submit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zmailer/internal/address"
	"zmailer/internal/config"
	"zmailer/internal/envelope"
	"zmailer/internal/postoffice"
)

// maxEnvID is the longest ENVID before encoding (RFC 3461 §4.4). Bytes.
const maxEnvID = 100

// checkMode looks at -b, of which only m, the default, is for us. done: there is
// nothing to do.
func checkMode(mode string) (done bool, err error) {
	switch mode {
	case "", "m":
		return false, nil
	case "i": // newaliases: the router reads the files when they change
		return true, nil
	case "p":
		return false, &Error{Code: config.ExitUsage, Err: errors.New("-bp: zmctl queue lists the queue")}
	case "s":
		return false, &Error{Code: config.ExitUsage, Err: errors.New("-bs: smtpserver speaks SMTP, on a port of its own")}
	case "d", "D":
		return false, &Error{Code: config.ExitUsage, Err: errors.New("-b" + mode + ": zmctl start starts the daemons")}
	}
	return false, usage(fmt.Errorf("-b %.20q: only -bm is known", mode))
}

// prepare checks the arguments and makes the envelope of them.
func (s *submission) prepare() error {
	if s.HasFrom {
		from, err := parseSender(s.From)
		if err != nil {
			return &Error{Code: exitDataErr, Err: fmt.Errorf("sender (-f): %w", err)}
		}
		s.env.From, s.env.HasFrom = from, true
	}
	s.env.FullName = oneLine(s.FullName)
	var err error
	if s.dsn, err = notify(s.Notify); err != nil {
		return usage(err)
	}
	if s.env.NotaryRet, err = oneWord("-R", s.Return, "FULL", "HDRS"); err != nil {
		return usage(err)
	}
	if s.env.BodyType, err = oneWord("-B", s.BodyType, "7BIT", "8BITMIME"); err != nil {
		return usage(err)
	}
	if s.env.EnvID, err = envelopeID(s.EnvelopeID); err != nil {
		return usage(err)
	}
	if s.dir, err = s.directory(); err != nil {
		return usage(err)
	}
	s.seen = map[string]bool{}
	for _, arg := range s.Recipients {
		if err := s.addRecipients(arg); err != nil {
			return &Error{Code: exitDataErr, Err: fmt.Errorf("recipient: %w", err)}
		}
	}
	return nil
}

// directory is the one that -P asks for. Settings that the router refuses are none here:
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

// addRecipients adds the addresses of a list, each once.
func (s *submission) addRecipients(list string) error {
	addrs, err := parseList(list)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if s.seen[a] {
			continue
		}
		s.seen[a] = true
		s.say("recipient %s", a)
		s.env.Recipients = append(s.env.Recipients, envelope.Recipient{Address: a, DSN: s.dsn})
	}
	return nil
}

// parseSender reads the argument of -f: an address, with a name perhaps, or the null
// sender.
func parseSender(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "<>" {
		return "", nil
	}
	addrs, err := parseList(text)
	if err != nil {
		return "", err
	}
	if len(addrs) != 1 {
		return "", fmt.Errorf("address %.300q: %d addresses where one is wanted", text, len(addrs))
	}
	return addrs[0], nil
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

// oneWord is the upper-case form of an argument that must be one of two words.
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

// oneLine keeps a name on its envelope line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
