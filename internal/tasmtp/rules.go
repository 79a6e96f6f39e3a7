package tasmtp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"zmailer/internal/agent"
	"zmailer/internal/config"
	"zmailer/internal/smtpclient"
	"zmailer/internal/status"
	"zmailer/internal/tasmtp/replies"
	"zmailer/internal/workspec"
)

// rules is the file of rules on replies, as it was when it could be read last.
type rules struct {
	path  string        // "": there is none
	every time.Duration // the file is looked at again, at most
	log   *slog.Logger

	mu     sync.Mutex
	looked time.Time // when the file was looked at
	seen   fs.FileInfo
	table  *replies.Table
	told   string // what is wrong with the file
}

// rulesEvery is how often the file is looked at, at most.
const rulesEvery = time.Second

// now gives the rules as they are. A file that cannot be used is refused, and what was
// read before stays.
func (r *rules) now() *replies.Table {
	if r.path == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < r.every {
		return r.table
	}
	r.looked = time.Now()
	info, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		r.seen, r.table, r.told = nil, nil, ""
		return nil
	}
	if err == nil && r.seen != nil && os.SameFile(info, r.seen) && info.ModTime().Equal(r.seen.ModTime()) && info.Size() == r.seen.Size() {
		return r.table
	}
	table, err := readRules(r.path)
	if err != nil {
		if why := err.Error(); why != r.told {
			r.told = why
			r.log.Error("rules-refused", "file", r.path, "reason", err, "advice", "mend the lines; until then the rules that were read before count, none if there were none")
		}
		return r.table
	}
	r.seen, r.table, r.told = info, table, ""
	return table
}

func readRules(path string) (*replies.Table, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &config.Error{File: path, Reason: "cannot be read", Err: err}
	}
	return replies.Parse(path, text)
}

// otherSource ends the reply of a recipient that a rule gives another source. The
// scheduler writes it into the history, where later attempts find it.
const otherSource = "; the next attempt comes from another source"

// judge applies the rules to a result. Only what a server said is judged, and never
// what may have been delivered.
func (r *Relay) judge(d *agent.Delivery, key poolKey, rcpt *agent.Recipient, res agent.Result) agent.Result {
	if res.Outcome == status.Delivered || !isReply(res.Reply) {
		return res
	}
	rule := r.rules.now().Match(key.channel, key.host, res.Reply)
	if rule == nil {
		return res
	}
	r.log.Info("reply-rule", "id", d.ID, "rcpt", rcpt.Address, "channel", key.channel, "host", key.host,
		"rule", rule.Where(), "action", rule.Action.String(), "reply", res.Reply)
	return apply(rule, res)
}

// apply makes of a result what a rule says.
func apply(rule *replies.Rule, res agent.Result) agent.Result {
	res.Outcome, res.Host, res.After = status.Deferred, false, 0
	switch rule.Action {
	case replies.Fail:
		res.Outcome = status.Failed
	case replies.Slow:
		res.Host, res.After = true, rule.Wait
	case replies.Source:
		res.Reply += otherSource
	case replies.Host:
		res.Host = true
	}
	return res
}

// isReply tells a line that begins with the code of a server's refusal.
func isReply(s string) bool {
	return len(s) > 3 && (s[0] == '4' || s[0] == '5') && '0' <= s[1] && s[1] <= '9' && '0' <= s[2] && s[2] <= '9' && s[3] == ' '
}

// moves counts how often a rule has given one of the recipients another source.
func moves(d *agent.Delivery, rcpts []*agent.Recipient) int {
	most := 0
	for _, rcpt := range rcpts {
		n := 0
		for i := range d.Spec.History {
			h := &d.Spec.History[i]
			if h.Recipient == rcpt.Offset && h.Event == workspec.EventDeferred && strings.HasSuffix(h.Text, otherSource) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestReply says what the rules make of a reply of a channel/host. The error is a
// *config.Error.
func TestReply(c *config.Config, where, reply string, out io.Writer) error {
	channel, host, ok := strings.Cut(where, "/")
	if !ok || !isReply(reply) {
		return &config.Error{File: "command line", Reason: "want channel/host and a reply of 4xx or 5xx, like smtp/example.com '450 4.7.1 Greylisted'"}
	}
	text, from, err := c.Read("replies")
	if err != nil {
		return err
	}
	table, err := replies.Parse(from, text)
	if err != nil {
		return err
	}
	rule := table.Match(channel, host, reply)
	if rule == nil {
		plain := smtpclient.Reply{Code: int(reply[0]-'0') * 100}
		effect := "the recipient waits"
		if plain.Class() == 5 {
			effect = "the recipient fails"
		}
		_, err = fmt.Fprintf(out, "no rule matches: %s, as the code says\n", effect)
	} else {
		_, err = fmt.Fprintf(out, "%s: %s\n%s: %s\n", rule.Where(), rule, rule.Action, rule.Effect())
	}
	if err != nil {
		return fmt.Errorf("test reply: %w", err)
	}
	return nil
}
