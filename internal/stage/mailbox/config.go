package mailbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// ConfigFrom takes the stage's settings from zmailer.conf: MAILBOX and its
// quota, LOCALUSERS, HOSTNAME and those of programs. The postoffice is the directory above the working directory, which
// is transport/.
func ConfigFrom(c *config.Config) (Config, error) {
	host, err := c.Hostname()
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		PostOffice: "..",
		Template:   c.String("MAILBOX", "/var/mail/%u"),
		LocalUsers: c.String("LOCALUSERS", "passwd"),
		Hostname:   host,
		FileUser:   c.String("DAEMONUSER", ""),
	}
	if _, err := parseTemplate(cfg.Template); err != nil {
		reason := err.Error()
		if bad := (*TemplateError)(nil); errors.As(err, &bad) {
			reason = bad.Reason
		}
		return Config{}, c.Invalid("MAILBOX", "cannot be used: "+reason, nil)
	}
	if cfg.Quota.Bytes, err = c.Size("MAILBOXQUOTA", 0); err != nil {
		return Config{}, err
	}
	switch over := c.String("MAILBOXOVERQUOTA", "defer"); over {
	case "defer":
	case "fail":
		cfg.Quota.Fail = true
	default:
		return Config{}, c.Invalid("MAILBOXOVERQUOTA", "cannot be used", fmt.Errorf("%s is none of defer, fail", over))
	}
	cfg.Virtual.Base = c.String("VIRTUALMAILBOXBASE", "")
	if cfg.Virtual.MinimumUID, err = c.Int("VIRTUALMINIMUMUID", 100); err != nil {
		return Config{}, err
	}
	if cfg.Pipe, err = pipeFrom(c); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// pipeFrom takes PIPEUSER, PIPENOBODY, PIPETIMEOUT and PIPEHEAD from zmailer.conf.
func pipeFrom(c *config.Config) (p Pipe, err error) {
	p.User = c.String("PIPEUSER", "")
	if p.User == "root" {
		return p, c.Invalid("PIPEUSER", "cannot be used", errors.New("mail never runs a program as root"))
	}
	if p.Nobody, err = c.Bool("PIPENOBODY", false); err != nil {
		return p, err
	}
	if p.Limit, err = c.Duration("PIPETIMEOUT", defaultPipeLimit); err != nil {
		return p, err
	}
	words := strings.Fields(strings.ToLower(c.String("PIPEHEAD", strings.Join(HeadLines(), " "))))
	if slices.Equal(words, []string{"none"}) {
		return p, nil
	}
	for _, w := range words {
		if !slices.Contains(HeadLines(), w) {
			return p, c.Invalid("PIPEHEAD", "cannot be used", fmt.Errorf("%s is none of %s; none alone for no line", w, strings.Join(HeadLines(), ", ")))
		}
	}
	p.Head = words
	return p, nil
}
