package content

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/wire/milter"
)

// Milter is a filter with what becomes of mail while it is in trouble.
type Milter struct {
	milter.Config
	Trouble Trouble
}

// Trouble is what becomes of a message when a filter cannot be asked (MILTERTROUBLE, or the option
// default_action of one filter).
type Trouble uint8

const (
	TroubleDefer      Trouble = iota // 451
	TroubleAccept                    // as if there were no filter
	TroubleReject                    // 550
	TroubleQuarantine                // accepted, and held in freezer/
)

// troubles are Postfix's names (milter_default_action), and ours from before.
var troubles = map[string]Trouble{"tempfail": TroubleDefer, "defer": TroubleDefer, "accept": TroubleAccept,
	"reject": TroubleReject, "quarantine": TroubleQuarantine}

func (t Trouble) String() string {
	switch t {
	case TroubleAccept:
		return "accept"
	case TroubleReject:
		return "reject"
	case TroubleQuarantine:
		return "quarantine"
	}
	return "tempfail"
}

// ParseTrouble reads an action for trouble.
func ParseTrouble(text string) (Trouble, error) {
	t, ok := troubles[text]
	if !ok {
		return 0, fmt.Errorf("%s is not one of accept, reject, tempfail and quarantine", text)
	}
	return t, nil
}

// ParseMilters reads a list of filters as Postfix writes it: addresses, and addresses in braces
// with options, { inet:host:port, connect_timeout=10s, default_action=accept }. What options do
// not set is that of base. The error has all that is wrong.
func ParseMilters(text string, base Milter) (list []Milter, err error) {
	var errs []error
	for {
		text = strings.TrimLeft(text, ", \t")
		if text == "" {
			return list, errors.Join(errs...)
		}
		var item string
		if text[0] == '{' {
			var closed bool
			if item, text, closed = strings.Cut(text[1:], "}"); !closed || strings.Contains(item, "{") {
				return list, errors.Join(append(errs, fmt.Errorf("{%s has no closing brace", item))...)
			}
		} else {
			end := strings.IndexAny(text, ", \t{")
			if end < 0 {
				end = len(text)
			}
			item, text = text[:end], text[end:]
		}
		m, err := parseMilter(config.SplitList(item), base)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, m)
	}
}

// parseMilter reads an address and its options.
func parseMilter(words []string, base Milter) (m Milter, err error) {
	if len(words) == 0 {
		return m, errors.New("{ } has no address, like { inet:127.0.0.1:11332, default_action=accept }")
	}
	m = base
	at, err := milter.Parse(words[0])
	m.Network, m.Address = at.Network, at.Address
	errs := []error{err}
	times := map[string]*time.Duration{"connect_timeout": &m.ConnectTimeout, "command_timeout": &m.Timeout, "content_timeout": &m.ContentTimeout}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch t := times[name]; {
		case seen[name]:
			err = errors.New("it is set twice")
		case t != nil:
			if *t, err = config.ParseDuration(value); err == nil && *t <= 0 {
				err = errors.New("it must be longer than nothing")
			}
		case name == "default_action":
			m.Trouble, err = ParseTrouble(value)
		case name == "protocol":
			err = errors.New("leave it out: the version (2 to 6) is agreed on with the filter")
		default:
			err = errors.New("the options are connect_timeout, command_timeout, content_timeout and default_action, each like NAME=VALUE")
		}
		seen[name] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("%s of %s: %w", word, words[0], err))
		}
	}
	return m, errors.Join(errs...)
}
