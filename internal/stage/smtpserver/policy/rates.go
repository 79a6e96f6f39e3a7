package policy

import (
	"context"
	"fmt"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// HasRates reports whether RATELIMITS names a table.
func (p *Policy) HasRates() bool { return len(p.rates) > 0 }

// Rates returns the rates that RATELIMITS has for a user and for an envelope sender: the
// first of the sender's keys that is found decides, from=ADDRESS, from=DOMAIN, from=.ABOVE.
// An error means that a table cannot be asked now.
func (p *Policy) Rates(ctx context.Context, user string, from address.Mailbox) (ofUser, ofSender limits.Rates, err error) {
	one := func(key string) (r limits.Rates, ok bool, err error) {
		list, ok, err := p.rates.lookup(ctx, key)
		if ok && err == nil {
			r, err = parseRates(list)
		}
		if err != nil {
			err = fmt.Errorf("RATELIMITS: %s: %w", key, err)
		}
		return r, ok, err
	}
	if user != "" {
		if ofUser, _, err = one("user=" + strings.ToLower(user)); err != nil {
			return ofUser, ofSender, err
		}
	}
	if from.IsNull() {
		return ofUser, ofSender, nil
	}
	for _, key := range senderKeys(from) {
		r, ok, err := one("from=" + key)
		if ok || err != nil {
			return ofUser, r, err
		}
	}
	return ofUser, ofSender, nil
}

// SenderKey returns an envelope sender in the one spelling that is counted; "": the null sender,
// or one without a usable domain.
func SenderKey(from address.Mailbox) string {
	d, err := from.ASCIIDomain()
	if err != nil || from.IsNull() {
		return ""
	}
	return strings.ToLower(from.Local) + "@" + d
}

// parseRates reads "messages=100/1h rcpts=500/1d", or "off" for neither rate.
func parseRates(list []string) (r limits.Rates, err error) {
	for _, word := range list {
		name, text, ok := strings.Cut(word, "=")
		if word == "off" {
			name, text = "", "off"
		} else if !ok {
			return r, fmt.Errorf("%.80q is none of messages=RATE, rcpts=RATE and off", word)
		}
		rate, err := limits.ParseRate(text)
		if err != nil {
			return r, fmt.Errorf("%.80q: %w", word, err)
		}
		switch name {
		case "messages":
			r.Messages = &rate
		case "rcpts":
			r.Recipients = &rate
		case "":
			r.Messages, r.Recipients = &rate, &rate
		default:
			return r, fmt.Errorf("%.80q is none of messages=RATE, rcpts=RATE and off", word)
		}
	}
	return r, nil
}

// parseRateFile reads lines "user=NAME RATES" and "from=SENDER RATES".
func parseRateFile(name string, text []byte) (words, error) {
	return parseWordLines(name, text, func(f []string) (string, error) {
		key, err := rateKey(f[0])
		if err == nil && len(f) == 1 {
			err = fmt.Errorf("no rate follows %s; want messages=100/1h, rcpts=500/1d or off", f[0])
		}
		if err == nil {
			_, err = parseRates(f[1:])
		}
		return key, err
	})
}

func rateKey(word string) (string, error) {
	what, value, _ := strings.Cut(word, "=")
	switch {
	case value == "":
	case what == "user":
		return "user=" + strings.ToLower(value), nil
	case what == "from":
		key, err := senderKey(value)
		return "from=" + key, err
	}
	return "", fmt.Errorf("%.80q is neither user=NAME nor from=ADDRESS, from=DOMAIN or from=.DOMAIN", word)
}
