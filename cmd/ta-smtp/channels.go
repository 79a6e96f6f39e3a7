package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
)

// channels are those that are served: the arguments, or all.
func channels(names []string) ([]string, error) {
	for _, name := range names {
		if !strings.HasPrefix(name, "smtp") && !strings.HasPrefix(name, "lmtp") {
			return nil, cli.Exit("no channel of this agent: "+name+"; --help tells them", config.ExitUsage)
		}
	}
	if len(names) == 0 {
		return []string{"smtp", "smtpx", "lmtp"}, nil
	}
	return names, nil
}
