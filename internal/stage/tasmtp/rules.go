package tasmtp

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/agent"
	"zmailer/internal/stage/tasmtp/replies"
	"zmailer/internal/wire/smtpclient"
	"zmailer/internal/workspec"
)

// openRules reads the file of rules on replies, or the table of EHLO keywords. One that
// cannot be used at the start stops no mail: there are no rules until it is mended. nil:
// there is no file to have some in.
func openRules[T any](path string, parse func(file string, text []byte) (T, error), what string, now func() time.Time, keeper config.Keeper, log *slog.Logger) *config.File[T] {
	if path == "" {
		return nil
	}
	f, err := config.OpenFile(path, parse, config.FileOptions{Keeper: keeper, Now: now, Log: log})
	if err != nil {
		log.Error("table-refused", "file", path, "reason", err, "kept", "no "+what+" until the lines are mended")
	}
	return f
}

// applyRules applies the rules to a result. They apply to replies of a server only, and
// never to a delivery in doubt.
func (r *Relay) applyRules(d *agent.Delivery, key poolKey, rcpt *agent.Recipient, res agent.Result) agent.Result {
	if r.rules == nil || res.Outcome == status.Delivered || !isReply(res.Reply) {
		return res
	}
	rule := r.rules.Current().Match(key.channel, key.host, res.Reply)
	if rule == nil {
		return res
	}
	r.log.Info("reply-rule", "id", d.ID(), "rcpt", rcpt.Address, "channel", key.channel, "host", key.host,
		"rule", rule.Where(), "action", rule.Action.String(), "reply", res.Reply)
	return applyRule(rule, res)
}

// applyRule changes a result as a rule requires.
func applyRule(rule *replies.Rule, res agent.Result) agent.Result {
	res.Outcome, res.Host, res.After = status.Deferred, false, 0
	switch rule.Action {
	case replies.Fail:
		res.Outcome = status.Failed
	case replies.Slow:
		res.Host, res.After = true, rule.Wait
	case replies.Source:
		res.Reply += workspec.OtherSource
	case replies.Host:
		res.Host = true
	}
	return res
}

// isReply reports whether a line begins with the code of a server's refusal.
func isReply(s string) bool {
	return len(s) > 3 && (s[0] == '4' || s[0] == '5') && '0' <= s[1] && s[1] <= '9' && '0' <= s[2] && s[2] <= '9' && s[3] == ' '
}

// moves returns how often a rule has given one of the recipients another source.
func moves(d *agent.Delivery, rcpts []*agent.Recipient) int {
	of := d.Spec.SourceMoves()
	most := 0
	for _, rcpt := range rcpts {
		most = max(most, of[rcpt.Offset])
	}
	return most
}

// TestReply prints what the rules make of a reply of a channel/host. The error is a
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
		_, err = fmt.Fprintf(out, "no rule matches: %s, by its code\n", effect)
	} else {
		_, err = fmt.Fprintf(out, "%s: %s\n%s: %s\n", rule.Where(), rule, rule.Action, rule.Effect())
	}
	if err != nil {
		return fmt.Errorf("test reply: %w", err)
	}
	return nil
}
