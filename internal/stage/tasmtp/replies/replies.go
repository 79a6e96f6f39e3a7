// Package replies is the table of rules on replies of other hosts: by channel, host and a
// regular expression over the reply, the action to take instead of the one that its code
// implies. It handles bytes and values; package tasmtp reads the file.
//
// Nothing here survives a crash, nor needs to.
//
// Diagnostics: Parse's error holds a *config.Error for every line that cannot be used,
// with file, line and column.
package replies

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"zmailer/internal/run/glob"
)

// Action is what a rule has done with a reply.
type Action uint8

// Actions.
const (
	Defer  Action = iota // try the recipient again later
	Fail                 // give the recipient up
	Slow                 // try no recipient of the host for a time
	Source               // try the recipient again later, from the next source
	Host                 // the trouble is the host's: its thread waits
)

func (a Action) String() string {
	return [...]string{"defer", "fail", "slow", "source", "host"}[a]
}

// Rule is one line of the table.
type Rule struct {
	File   string
	Line   int
	Action Action
	Wait   time.Duration // of Slow

	channel string // patterns
	host    string // in lower case
	expr    *regexp.Regexp
	text    string // the line
}

// Where returns the place of the rule, for logs.
func (r *Rule) Where() string { return fmt.Sprintf("%s:%d", r.File, r.Line) }

// String returns the rule's line.
func (r *Rule) String() string { return r.text }

// Effect describes in words what the rule does.
func (r *Rule) Effect() string {
	switch r.Action {
	case Fail:
		return "the recipient fails"
	case Slow:
		return fmt.Sprintf("the recipient waits, and nothing is sent to the host for %v", r.Wait)
	case Source:
		return "the recipient waits and is tried again from the next source of its zone"
	case Host:
		return "the recipient waits, and the whole host with it until a probe is answered"
	}
	return "the recipient waits; the host's other mail goes on"
}

// Table is rules in the order of the file.
type Table struct{ rules []Rule }

// Len returns how many rules there are.
func (t *Table) Len() int { return len(t.rules) }

// Match returns the first rule that matches a reply, nil if none does. The reply is one
// line: code, enhanced code, text.
func (t *Table) Match(channel, host, reply string) *Rule {
	if t == nil || len(t.rules) == 0 {
		return nil
	}
	host = strings.ToLower(host)
	for i := range t.rules {
		r := &t.rules[i]
		if glob.Match(r.channel, channel) && glob.Match(r.host, host) && r.expr.MatchString(reply) {
			return r
		}
	}
	return nil
}
