package mailbox

import (
	"errors"

	"zmailer/internal/config"
)

// ConfigFrom takes the stage's settings from zmailer.conf: MAILBOX, LOCALUSERS
// and HOSTNAME. The postoffice is the directory above the working directory, which
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
	}
	if _, err := parseTemplate(cfg.Template); err != nil {
		reason := err.Error()
		if bad := (*TemplateError)(nil); errors.As(err, &bad) {
			reason = bad.Reason
		}
		return Config{}, c.Invalid("MAILBOX", "cannot be used: "+reason, nil)
	}
	return cfg, nil
}
