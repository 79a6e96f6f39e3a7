package main

import (
	"encoding/json"
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

// quoteJSON is a text as JSON has it.
func quoteJSON(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`) // no text fails
	}
	return b
}
