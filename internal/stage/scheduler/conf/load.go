package conf

import (
	"errors"
	"os"

	"zmailer/internal/run/config"
)

// Load reads scheduler.conf, the built-in one if there is none, and the texts of reports.
// ${NAME} in a command is a variable of zmailer.conf or of the environment. root reports
// whether agents are started by root, and so may be any user.
func Load(c *config.Config, root bool) (*File, error) {
	text, from, err := c.Read("scheduler.conf")
	if err != nil {
		return nil, err
	}
	f, err := Parse(from, text, func(name string) (string, bool) {
		if v := c.String(name, ""); v != "" {
			return v, true
		}
		return os.LookupEnv(name)
	})
	if err != nil {
		return nil, err
	}
	return f, errors.Join(append(f.CheckIdentities(root), f.Reports.LoadTexts(c)...)...)
}
