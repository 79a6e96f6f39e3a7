package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"

	"zmailer/internal/paint"
)

const (
	// bigNumber is from how many messages on progress is shown.
	bigNumber = 200
	// progressEvery is how often it is told where no terminal is.
	progressEvery = 5 * time.Second
)

// progress tells on standard error how far a command is that acts on many messages: as a
// bar on a terminal, else as a line with counts. A nil one tells nothing.
type progress struct {
	what  string
	total int
	n     int
	out   io.Writer
	bar   *progressbar.ProgressBar // nil: no terminal
	told  time.Time
	now   func() time.Time
}

// newProgress is nil if it is not worth it.
func newProgress(c *cli.Context, what string, total int) *progress {
	if total < bigNumber {
		return nil
	}
	p := &progress{what: what, total: total, out: c.App.ErrWriter, now: time.Now}
	p.told = p.now()
	if paint.Terminal(p.out) {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(p.out), progressbar.OptionSetDescription(what),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("messages"),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
	}
	return p
}

// alone tells whether lines about each message would tear the bar.
func (p *progress) alone(stdout io.Writer) bool {
	if p == nil || p.bar == nil {
		return false
	}
	return paint.Terminal(stdout)
}

// step counts a message.
func (p *progress) step() {
	if p == nil {
		return
	}
	p.n++
	switch now := p.now(); {
	case p.bar != nil:
		// What cannot be drawn is not worth an error.
		_ = p.bar.Add(1)
	case now.Sub(p.told) >= progressEvery && p.n < p.total:
		p.told = now
		fmt.Fprintf(p.out, "%s: %d of %d\n", p.what, p.n, p.total)
	}
}

// end takes the bar away.
func (p *progress) end() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}
