package mailbox

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
)

// ConfigFrom takes the stage's settings from zmailer.conf: MAILBOX and its
// quota, LOCALUSERS, HOSTNAME and those of programs. The postoffice is the directory above the working directory, which
// is transport/. Its error joins an *config.Error for each setting that cannot be used.
func ConfigFrom(c *config.Config) (Config, error) {
	s := config.NewReader(c)
	cfg := Config{
		PostOffice: "..",
		Template:   c.String("MAILBOX", "/var/mail/%u"),
		LocalUsers: c.String("LOCALUSERS", "passwd"),
		Hostname:   s.Hostname(),
		FileUser:   c.String("DAEMONUSER", ""),
		Pipe:       pipeFrom(s),
		Lease:      lease.Use(s),
	}
	if _, err := parseTemplate(cfg.Template); err != nil {
		reason := err.Error()
		if bad := (*TemplateError)(nil); errors.As(err, &bad) {
			reason = bad.Reason
		}
		s.Add(c.Invalid("MAILBOX", "cannot be used: "+reason, nil))
	}
	cfg.Quota.Bytes = s.Size("MAILBOXQUOTA", 0)
	switch over := c.String("MAILBOXOVERQUOTA", "defer"); over {
	case "defer":
	case "fail":
		cfg.Quota.Fail = true
	default:
		s.Use("MAILBOXOVERQUOTA", fmt.Errorf("%s is none of defer, fail", over))
	}
	cfg.Virtual.Base = c.String("VIRTUALMAILBOXBASE", "")
	cfg.Virtual.MinimumUID = s.Int("VIRTUALMINIMUMUID", 100)
	return cfg, s.Err()
}

// CheckConfig returns what ConfigFrom does, and users that do not exist.
func CheckConfig(c *config.Config) error {
	s := config.NewReader(c)
	_, err := ConfigFrom(c)
	s.Add(err)
	if name := c.String("PIPEUSER", ""); name != "" {
		if _, err := user.Lookup(name); err != nil {
			s.Use("PIPEUSER", err)
		}
	}
	return c.Locate(s.Err())
}

// pipeFrom takes PIPEUSER, PIPENOBODY, PIPETIMEOUT and PIPEHEAD from zmailer.conf.
func pipeFrom(s *config.Reader) Pipe {
	p := Pipe{User: s.String("PIPEUSER", ""), Nobody: s.Bool("PIPENOBODY", false), Limit: s.Duration("PIPETIMEOUT", defaultPipeLimit)}
	if p.User == "root" {
		s.Use("PIPEUSER", errors.New("mail never runs a program as root"))
	}
	words := strings.Fields(strings.ToLower(s.String("PIPEHEAD", strings.Join(HeadLines(), " "))))
	if slices.Equal(words, []string{"none"}) {
		return p
	}
	for _, w := range words {
		if !slices.Contains(HeadLines(), w) {
			s.Use("PIPEHEAD", fmt.Errorf("%s is none of %s; none alone for no line", w, strings.Join(HeadLines(), ", ")))
		}
	}
	p.Head = words
	return p
}
