package smtpserver

import (
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/wire/milter"
)

// Filters say who looks at messages before they are taken (docs/filters.md).
type Filters struct {
	Checks  checks.Config // Host is HOSTNAME, whatever it says
	Milters []milter.Config
	// TroubleAccepts: mail is taken while a filter does not answer; else the client is
	// told to try again.
	TroubleAccepts bool
}

// filtersFrom takes these settings from zmailer.conf.
func filtersFrom(c *config.Config) (f Filters, err error) {
	k := &f.Checks
	if k.SPF, k.DKIM, k.DMARC, err = checks.ParseNames(c.List("CHECKS")); err != nil {
		return f, c.Invalid("CHECKS", "cannot be used", err)
	}
	k.Server = c.String("RESOLVER", "")
	if k.Timeout, err = c.Duration("CHECKTIME", 20*time.Second); err != nil {
		return f, err
	}
	step, err := c.Duration("MILTERTIME", 30*time.Second)
	if err != nil {
		return f, err
	}
	content, err := c.Duration("MILTERCONTENTTIME", 5*time.Minute)
	if err != nil {
		return f, err
	}
	for _, text := range c.List("MILTERS") {
		m, err := milter.Parse(text)
		if err != nil {
			return f, c.Invalid("MILTERS", "cannot be used", err)
		}
		m.Timeout, m.ContentTimeout = step, content
		f.Milters = append(f.Milters, m)
	}
	f.TroubleAccepts = c.String("MILTERTROUBLE", "defer") == "accept"
	return f, nil
}

// openFilters prepares what looks at messages. Nobody is asked yet.
func (s *server) openFilters() {
	k := s.Filters.Checks
	k.Host = s.Hostname
	s.checks = checks.New(k)
	for _, m := range s.Filters.Milters {
		s.filters = append(s.filters, &door{cfg: m})
	}
}
