package conf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/thread"
)

// keyword is a setting of a clause; docs/scheduler.conf.md has a row for each.
type keyword struct {
	value string // default, as it is written in the file; "": none
	read  func(p *confParser, value string, has bool) (setting, error)
	idle  bool // a setting of ZMailer that has no effect
}

// keywords returns all settings of a clause by name.
func keywords() map[string]keyword {
	const many = 1_000_000
	return map[string]keyword{
		"command": {read: readCommand},
		"user":    {read: readWord(func(s *Settings) *string { return &s.User }, nil)},
		"group":   {read: readWord(func(s *Settings) *string { return &s.Group }, nil)},
		"nice":    {value: "0", read: readNumber(-20, 19, func(s *Settings) *int { return &s.Nice })},

		"interval":    {value: "1m", read: readTime(minInterval, maxWait, func(s *Settings) *time.Duration { return &s.Interval })},
		"retries":     {value: `"1 1 2 3 4 8 13 21 34"`, read: readList(parseRetries, func(s *Settings) *[]int { return &s.Retries })},
		"jitter":      {value: "12", read: readNumber(0, 100, func(s *Settings) *int { return &s.Jitter })},
		"minage":      {value: "0", read: readTime(0, 0, func(s *Settings) *time.Duration { return &s.MinAge })},
		"notbefore":   {read: readWord(func(s *Settings) *string { return &s.NotBefore }, checkFieldName)},
		"expiry":      {value: "3d", read: readTime(0, 0, func(s *Settings) *time.Duration { return &s.Expiry })},
		"expiry2":     {value: "0", read: readTime(0, 0, func(s *Settings) *time.Duration { return &s.Expiry2 })},
		"onexpiry":    {value: "bounce", read: readOnExpiry},
		"reporttimes": {value: "4h", read: readList(parseTimes, func(s *Settings) *[]time.Duration { return &s.ReportTimes })},

		"maxta":       {value: "100", read: readNumber(0, many, func(s *Settings) *int { return &s.MaxTA })},
		"maxchannel":  {value: "0", read: readNumber(0, many, func(s *Settings) *int { return &s.MaxChannel })},
		"maxring":     {value: "0", read: readNumber(0, many, func(s *Settings) *int { return &s.MaxRing })},
		"maxunproven": {read: readNumber(0, many, func(s *Settings) *int { return &s.unproven })},
		"maxthr":      {value: "1", read: readNumber(0, many, func(s *Settings) *int { return &s.MaxThread })},
		"start":       {read: readNumber(0, many, func(s *Settings) *int { return &s.Start })},
		"rate":        {value: "0", read: readRate(func(s *Settings) *thread.Rate { return &s.Rate })},
		"hostrate":    {value: "0", read: readRate(func(s *Settings) *thread.Rate { return &s.HostRate })},
		"overfeed":    {value: "0", read: readNumber(0, many, func(s *Settings) *int { return &s.Overfeed })},
		"idlemax":     {read: readTime(0, 0, func(s *Settings) *time.Duration { return &s.IdleMax })},
		"answermax":   {value: "12h", read: readTime(0, 0, func(s *Settings) *time.Duration { return &s.AnswerMax })},

		"ageorder":          {value: "no", read: readFlag(func(s *Settings) *bool { return &s.AgeOrder })},
		"bychannel":         {value: "no", read: readFlag(func(s *Settings) *bool { return &s.ByChannel })},
		"queueonly":         {value: "no", read: readFlag(func(s *Settings) *bool { return &s.QueueOnly })},
		"wakeuprestartonly": {value: "no", read: readFlag(func(s *Settings) *bool { return &s.JoinWaiting })},

		"sources": {read: readList(parseSources, func(s *Settings) *[]string { return &s.Sources })},
		"helo":    {read: readWord(func(s *Settings) *string { return &s.Helo }, checkHelo)},

		"tls":  {read: readWord(func(s *Settings) *string { return &s.TLS }, checkTLS)},
		"auth": {read: readWord(func(s *Settings) *string { return &s.Auth }, checkAccount)},

		"skew":         {idle: true, read: readNumber(0, many, nowhere)},
		"priority":     {idle: true, read: readNumber(-20, 19, nowhere)},
		"syspriority":  {idle: true, read: readNumber(-20, 19, nowhere)},
		"sysnice":      {idle: true, read: readNumber(-20, 19, nowhere)},
		"expiryform":   {idle: true, read: readWord(nil, nil)},
		"deliveryform": {idle: true, read: readWord(nil, nil)},
	}
}

// nowhere takes the value of a setting without effect.
func nowhere(*Settings) *int { return new(int) }

const (
	// minInterval and maxWait bound interval, and interval times a retry.
	minInterval = time.Second
	maxWait     = 366 * 24 * time.Hour
)

type reader = func(p *confParser, value string, has bool) (setting, error)

// readList parses a value with parse.
func readList[T any](parse func(string) (T, error), at func(*Settings) *T) reader {
	return func(_ *confParser, value string, _ bool) (setting, error) {
		v, err := parse(value)
		return func(s *Settings) { *at(s) = v }, err
	}
}

func readCommand(p *confParser, value string, _ bool) (setting, error) {
	c, err := parseCommand(value, p.getenv)
	return func(s *Settings) { s.Command = c }, err
}

func readFlag(at func(*Settings) *bool) reader {
	return func(_ *confParser, value string, has bool) (setting, error) {
		v := true
		if has {
			switch strings.ToLower(value) {
			case "yes":
			case "no":
				v = false
			default:
				return nil, errors.New("want yes, no, or no value")
			}
		}
		return func(s *Settings) { *at(s) = v }, nil
	}
}

func readNumber(least, most int, at func(*Settings) *int) reader {
	return readList(func(value string) (int, error) {
		v, err := strconv.Atoi(value)
		if err != nil || v < least || v > most {
			return 0, fmt.Errorf("want a number from %d to %d", least, most)
		}
		return v, nil
	}, at)
}

// readTime parses a duration within bounds; most 0: no upper bound.
func readTime(least, most time.Duration, at func(*Settings) *time.Duration) reader {
	return readList(func(value string) (time.Duration, error) {
		v, err := config.ParseDuration(value)
		if err == nil && (v < least || most > 0 && v > most) {
			err = errors.New("want more than 0 and at most a year")
		}
		return v, err
	}, at)
}

// readWord parses any text that check accepts; nil accepts all. at nil: it has no effect.
func readWord(at func(*Settings) *string, check func(string) error) reader {
	return func(_ *confParser, value string, has bool) (setting, error) {
		if !has || value == "" {
			return nil, errors.New("value missing")
		}
		if check != nil {
			if err := check(value); err != nil {
				return nil, err
			}
		}
		return func(s *Settings) {
			if at != nil {
				*at(s) = value
			}
		}, nil
	}
}

func readOnExpiry(_ *confParser, value string, _ bool) (setting, error) {
	v, ok := map[string]OnExpiry{"bounce": ExpiryBounce, "freeze": ExpiryFreeze, "drop": ExpiryDrop}[strings.ToLower(value)]
	if !ok {
		return nil, errors.New("want bounce, freeze or drop")
	}
	return func(s *Settings) { s.OnExpiry = v }, nil
}

// readRate parses N/s, N/m, N/h, N/d, or N and any time, like 30/10m; 0: no limit.
func readRate(at func(*Settings) *thread.Rate) reader {
	return readList(parseRate, at)
}

func parseRate(value string) (thread.Rate, error) {
	form := errors.New("want a rate like 10/s, 100/m, 1000/h or 30/10m; 0 is no limit")
	if value == "0" {
		return thread.Rate{}, nil
	}
	count, per, ok := strings.Cut(value, "/")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 || n > 1_000_000 {
		return thread.Rate{}, form
	}
	if len(per) == 1 {
		per = "1" + per
	}
	d, err := config.ParseDuration(per)
	if err != nil || d <= 0 || d > maxWait {
		return thread.Rate{}, form
	}
	return thread.Rate{N: n, Per: d}, nil
}

func listFields(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' })
}

// maxRetries bounds the list of waits: a thread's index in it is a byte.
const maxRetries = 200

func parseRetries(value string) ([]int, error) {
	var list []int
	for _, word := range listFields(value) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > 100_000 {
			return nil, errors.New("want numbers from 1 to 100000")
		}
		list = append(list, n)
	}
	if len(list) == 0 || len(list) > maxRetries {
		return nil, fmt.Errorf("want 1 to %d numbers", maxRetries)
	}
	return list, nil
}

func parseTimes(value string) ([]time.Duration, error) {
	var list []time.Duration
	for _, word := range listFields(value) {
		d, err := config.ParseDuration(word)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 && d <= list[len(list)-1] {
			return nil, errors.New("want ascending times")
		}
		list = append(list, d)
	}
	return list, nil
}

func parseSources(value string) ([]string, error) {
	var list []string
	for _, word := range listFields(value) {
		// ADDRESS=NAME: NAME is for EHLO.
		addr, name, named := strings.Cut(word, "=")
		a, err := netip.ParseAddr(addr)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("%s: not an IP address to send from", addr)
		}
		text := a.Unmap().String()
		if named {
			if err := checkHelo(name); err != nil {
				return nil, fmt.Errorf("%s: %w", word, err)
			}
			text += "=" + name
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		return nil, errors.New("no address is given")
	}
	return list, nil
}

// checkFieldName accepts the name of a header field (RFC 5322 section 3.6.8).
func checkFieldName(value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) || len(value) > 77 {
		return errors.New("want the name of a header field, without the colon")
	}
	return nil
}

// checkTLS accepts the levels of a TLS policy (docs/tls.md). The agent parses the rest.
func checkTLS(value string) error {
	level, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(value)), " ")
	if strings.HasPrefix(level, "fingerprint=") || slices.Contains([]string{"none", "may", "encrypt", "verify", "dane", "dane-only", "sts"}, level) {
		return nil
	}
	return errors.New("want none, may, encrypt, verify, fingerprint=, dane, dane-only or sts at the beginning")
}

func checkAccount(value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("want one word, a name= of the file credentials")
	}
	return nil
}

// checkHelo accepts an argument of EHLO (RFC 5321 section 4.1.1.1).
func checkHelo(value string) error {
	bad := errors.New("want a host name, or an address in brackets")
	if inside, ok := strings.CutPrefix(value, "["); ok {
		inside, ok = strings.CutSuffix(inside, "]")
		if _, err := netip.ParseAddr(strings.TrimPrefix(inside, "IPv6:")); err != nil || !ok {
			return bad
		}
		return nil
	}
	if len(value) > 255 {
		return bad
	}
	for label := range strings.SplitSeq(value, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool {
				return r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
			}) {
			return bad
		}
	}
	return nil
}
