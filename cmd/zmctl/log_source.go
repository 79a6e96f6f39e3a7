package main

import (
	"io"
	"os"

	"github.com/urfave/cli/v2"
)

// reader is standard input.
func reader(c *cli.Context) io.Reader {
	if c.App.Reader != nil {
		return c.App.Reader
	}
	return os.Stdin
}
