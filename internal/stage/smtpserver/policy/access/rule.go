package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// kind is a rule's action; accept has two more forms.
type kind uint8

const (
	kindAccept kind = iota
	kindRelay       // accept, whatever the domain of the recipient
	kindReject
	kindDefer
	kindFreeze
	kindETRN // who may start a queue; it decides on no mail
	kindGreylist
	kindTest // a restriction of Postfix
)

func kindOf(word string) (kind, bool) {
	for k, w := range []string{"accept", "relay", "reject", "defer", "freeze", "etrn", "greylist"} {
		if strings.EqualFold(word, w) {
			return kind(k), true
		}
	}
	return 0, false
}

// rule is one line of the file.
type rule struct {
	line    int
	text    string // as written
	kind    kind
	conds   []condition
	verdict Verdict
	test    *restriction // nil: the action decides
	warn    bool         // warn_if_reject: it refuses nothing
	state   string       // protocol state in which it is looked at; "": RCPT
}

// answer is a condition's result for facts.
type answer uint8

const (
	no answer = iota
	yes
	later // not known before the content
)

// condition is key=value.
type condition struct {
	key    string
	negate bool
	to     set // of to=, which a recipient may be named by
	match  func(ctx context.Context, f *Facts) (answer, error)
}

// holds reports whether all conditions are met. One that is not decides, whatever the
// others wait for.
func (r *rule) holds(ctx context.Context, f *Facts) (answer, error) {
	all := yes
	for i := range r.conds {
		c := &r.conds[i]
		a, err := c.match(ctx, f)
		if err != nil {
			return no, fmt.Errorf("%s=: %w", c.key, err)
		}
		switch {
		case a == later:
			all = later
		case (a == yes) == c.negate:
			return no, nil
		}
	}
	return all, nil
}

// ruleset is the parsed file.
type ruleset struct {
	name  string
	rules []*rule
}

// parse reads the file. open makes a set of a source that a value names.
func parse(name string, text []byte, src *sources) (*ruleset, error) {
	rs := &ruleset{name: name}
	number, start := 0, 0
	pending := ""
	var wrong config.Mistakes
	add := func() (enough bool) {
		if pending == "" {
			return false
		}
		r, err := parseRule(pending, src)
		if err != nil {
			pending = ""
			return wrong.Add(&config.Error{File: name, Line: start, Reason: err.Error()})
		}
		r.line, r.verdict.By = start, "access:"+strconv.Itoa(start)
		rs.rules, pending = append(rs.rules, r), ""
		return false
	}
	for line := range strings.Lines(string(text)) {
		number++
		// A line that begins with a blank continues the rule above it.
		more := line[0] == ' ' || line[0] == '\t'
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case more && pending != "":
			pending += "\n" + line
			continue
		case more:
			wrong.Add(&config.Error{File: name, Line: number, Reason: "continuation of no rule: a rule begins at the beginning of the line"})
			continue
		}
		if add() {
			break
		}
		pending, start = line, number
	}
	add()
	return rs, wrong.Err()
}

// parseRule reads "action key=value ... : text".
func parseRule(line string, src *sources) (*rule, error) {
	words, text, err := splitRule(line)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, errors.New("a rule begins with an action")
	}
	r := &rule{text: strings.Join(strings.Fields(line), " ")}
	if r.warn = words[0] == "warn_if_reject"; r.warn {
		if words = words[1:]; len(words) == 0 {
			return nil, errors.New("warn_if_reject needs a rule behind it")
		}
	}
	k, ok := kindOf(words[0])
	build, named := restrictions()[words[0]]
	switch {
	case ok:
	case named:
		k = kindTest
	default:
		return nil, unknownAction(words)
	}
	if k == kindGreylist && src.o.Greylist == nil {
		return nil, errors.New("greylist needs GREYLIST=rules or GREYLIST=yes in zmailer.conf")
	}
	r.kind = k
	rest, arg := words[1:], ""
	if build.arg != "" {
		if len(rest) == 0 {
			return nil, fmt.Errorf("%s needs %s", words[0], build.arg)
		}
		arg, rest = rest[0], rest[1:]
	}
	var o ruleOptions
	who := false
	for _, word := range rest {
		if option, _, _ := strings.Cut(word, "="); slices.Contains(build.options, option) {
			if err := o.take(word); err != nil {
				return nil, err
			}
			continue
		}
		if value, is := strings.CutPrefix(word, "cause="); is {
			if k != kindFreeze || value == "" {
				return nil, fmt.Errorf("cause= is only valid with freeze")
			}
			r.verdict.Cause = value
			continue
		}
		c, err := parseCondition(word, src)
		if err != nil {
			return nil, err
		}
		r.conds = append(r.conds, c)
		who = who || c.limitsClients(word)
	}
	switch {
	case (k == kindRelay || k == kindETRN) && !who:
		return nil, fmt.Errorf("%s needs client=, user= or cert=: without one it would apply to everyone", words[0])
	case k == kindETRN && text != "":
		return nil, fmt.Errorf("etrn has no text")
	}
	if named && !ok {
		var err error
		if r.test, err = build.make(src, arg, &o); err != nil {
			return nil, err
		}
		r.state = o.state
		return r, r.verdict.setReply(text)
	}
	return r, r.decideAs(text, src)
}

// take takes a word that is an option of a restriction.
func (o *ruleOptions) take(word string) (err error) {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "timeout":
		o.timeout, err = config.ParseDuration(value)
		if err == nil && o.timeout <= 0 {
			err = errors.New("want more than 0")
		}
	case "default_action":
		o.action = value
	case "policy_context":
		o.context = value
	case "protocol_state":
		o.state = strings.ToUpper(value)
		switch o.state {
		case StateRCPT:
			o.state = ""
		case StateDATA, StateEnd:
		default:
			err = errors.New("want RCPT, DATA or END-OF-MESSAGE")
		}
	case "reject_code":
		o.rejectCode, err = parseCode(value)
	case "defer_code":
		if o.deferCode, err = parseCode(value); err == nil && o.deferCode >= 500 {
			err = errors.New("want a code from 400 to 499: nothing is known of the address")
		}
	case "tempfail_action":
		if o.tempfail = value; value != "defer" && value != "defer_if_permit" {
			err = errors.New("want defer or defer_if_permit")
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", word, err)
	}
	return err
}

// parseCode reads the code of a reply that refuses.
func parseCode(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 400 || n > 599 {
		return 0, errors.New("want a code from 400 to 599")
	}
	return n, nil
}

// limitsClients reports whether a condition limits a rule to certain clients.
func (c *condition) limitsClients(word string) bool {
	if c.negate {
		return false
	}
	_, values, _ := strings.Cut(word, "=")
	for _, v := range strings.Split(values, ",") {
		switch c.key {
		case "user":
			if v == "-" {
				return false
			}
		case "client":
			if v == "*" || strings.HasSuffix(v, "/0") {
				return false
			}
		case "cert":
			if v == "*" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// names reports whether a rule names the recipient or its domain.
func (r *rule) names(ctx context.Context, f *Facts) (bool, error) {
	for i := range r.conds {
		c := &r.conds[i]
		if c.to == nil || c.negate {
			continue
		}
		if a, err := c.to.names(ctx, f.To); a == yes || err != nil {
			return a == yes, err
		}
	}
	return false, nil
}

// decideAs fills in the verdict.
func (r *rule) decideAs(text string, src *sources) error {
	v := &r.verdict
	switch r.kind {
	case kindGreylist:
		r.test = &restriction{once: true, check: func(ctx context.Context, f *Facts) (outcome, error) {
			v, err := src.o.Greylist(ctx, f)
			return outcome{verdict: v}, err
		}}
		return v.setReply(text)
	case kindReject:
		v.Action = Reject
	case kindDefer:
		v.Action = Defer
	case kindFreeze:
		v.Action = Freeze
		if v.Cause == "" {
			v.Cause = "access"
		}
	default:
		v.Action = Accept
	}
	return v.setText(text)
}
