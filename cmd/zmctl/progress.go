package main

import (
	"github.com/urfave/cli/v2"

	"zmailer/internal/ui/text"
)

// newProgress is for so many messages; nil if it is not worth it, or --quiet is given.
func newProgress(c *cli.Context, what string, total int) *text.Progress {
	if total < text.BigNumber || c.Bool("quiet") {
		return nil
	}
	p := text.NewProgress(c.App.ErrWriter, what, "messages", total)
	p.Show()
	return p
}

// newCounter is for a total that is not known; nil if --quiet is given.
func newCounter(c *cli.Context, what, of string) *text.Progress {
	if c.Bool("quiet") {
		return nil
	}
	return text.NewProgress(c.App.ErrWriter, what, of, text.UnknownTotal)
}
