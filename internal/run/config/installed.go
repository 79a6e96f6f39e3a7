package config

import (
	"os"

	"github.com/urfave/cli/v2"
)

// installed is the machine's zmailer.conf; "": these programs were not installed. The
// linker sets it: make install.
var installed string

// chosen returns the path of the zmailer.conf that holds; "": the built-in one. An empty
// --config or ZCONFIG has the same effect.
func chosen(c *cli.Context) string {
	if c.IsSet("config") || installed == "" {
		return c.String("config")
	}
	// One that is there and cannot be read is an error, not a reason to go by defaults.
	if _, err := os.Lstat(installed); os.IsNotExist(err) {
		return ""
	}
	return installed
}
