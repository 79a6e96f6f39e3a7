package scheduler

import (
	"fmt"
	"io"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
)

// CheckConfig writes what is wrong with the configuration, and what is allowed and hardly
// meant, a line each with file, line and column. policy checks a clause's tls=, as its
// agent will. It reports whether the configuration can be used.
func CheckConfig(c *config.Config, policy func(string) error, out io.Writer) bool {
	cfg, err := ConfigFrom(c)
	errs := conf.Errors(err)
	if err == nil {
		var warnings []error
		errs, warnings = cfg.Conf.Check(c, policy)
		for _, w := range warnings {
			fmt.Fprintln(out, w)
		}
	}
	for _, err := range errs {
		fmt.Fprintln(out, err)
	}
	if len(errs) > 0 {
		return false
	}
	fmt.Fprintf(out, "%s: %d clauses; the configuration can be used\n", cfg.Conf.Name, cfg.Conf.Clauses())
	return true
}
