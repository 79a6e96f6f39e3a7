package smtpserver

import (
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// usersFrom takes the settings that say who our users are.
func usersFrom(c *config.Config) (u UsersConfig, err error) {
	u.Source, u.Dir = c.String("AUTH", ""), c.Dir
	if u.Source != "" {
		if err := auth.Check(u.Source); err != nil {
			return u, c.Invalid("AUTH", "cannot be used", err)
		}
	}
	u.Plaintext, err = c.Bool("AUTHPLAINTEXT", false)
	return u, err
}

// limitsFrom takes the settings that say what is too much.
func limitsFrom(c *config.Config) (l LimitsConfig, err error) {
	if l.PerAddress, err = c.Int("SMTPPERADDRESS", 50); err != nil {
		return l, err
	}
	if l.Errors, err = c.Int("SMTPERRORS", 20); err != nil {
		return l, err
	}
	if l.MinFree, err = c.Size("MINFREE", 1<<20); err != nil {
		return l, err
	}
	files, err := c.Int("MINFILES", 100)
	if err != nil {
		return l, err
	}
	load, err := c.Int("MAXLOAD", 0)
	if err != nil {
		return l, err
	}
	l.MinFiles, l.MaxLoad = int64(files), float64(load)
	for _, r := range []struct {
		to   *limits.Rate
		text string
		name string
		def  limits.Rate
	}{
		{&l.Failures, c.String("AUTHFAILURES", ""), "AUTHFAILURES", limits.Rate{Count: 20, Per: 10 * time.Minute}},
		{&l.Connections, c.String("SMTPCONNECTRATE", ""), "SMTPCONNECTRATE", limits.Rate{}},
		{&l.Messages, c.String("SMTPMESSAGERATE", ""), "SMTPMESSAGERATE", limits.Rate{}},
		{&l.Recipients, c.String("SMTPRCPTRATE", ""), "SMTPRCPTRATE", limits.Rate{}},
	} {
		if *r.to = r.def; r.text == "" {
			continue
		}
		if *r.to, err = limits.ParseRate(r.text); err != nil {
			return l, c.Invalid(r.name, "cannot be used", err)
		}
	}
	nets := c.List("LIMITSEXEMPT")
	switch {
	case len(nets) == 0:
		nets = []string{"127.0.0.0/8", "::1/128"}
	case len(nets) == 1 && nets[0] == "none":
		nets = nil
	}
	if l.Exempt, err = parseNets(nets); err != nil {
		return l, c.Invalid("LIMITSEXEMPT", "cannot be used", err)
	}
	l.AcceptBareLF = c.String("SMTPBARELF", "reject") == "accept"
	return l, nil
}
