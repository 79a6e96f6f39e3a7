package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"

	"zmailer/internal/ui/term"
)

const (
	// bigNumber is from how many on progress is shown.
	bigNumber = 200
	// progressEvery is how often it is told where no terminal is.
	progressEvery = 5 * time.Second
	// unknownTotal is the total of what is counted as it is met.
	unknownTotal = -1
)

// progress tells on standard error how far a command is that goes through much: as a bar
// on a terminal, else as a line with counts. A nil one tells nothing.
type progress struct {
	what  string
	of    string // messages, files
	total int
	n     int
	out   io.Writer
	bar   *progressbar.ProgressBar // nil: no terminal
	shown bool                     // it is worth it
	told  time.Time
	now   func() time.Time
}

// newProgress is for so many messages; nil if it is not worth it, or --quiet is given.
func newProgress(c *cli.Context, what string, total int) *progress {
	if total < bigNumber || c.Bool("quiet") {
		return nil
	}
	p := progressOf(c, what, "messages", total)
	p.shown = true
	return p
}

// newCounter is for what is counted as it is met; nil if --quiet is given.
func newCounter(c *cli.Context, what, of string) *progress {
	if c.Bool("quiet") {
		return nil
	}
	return progressOf(c, what, of, unknownTotal)
}

func progressOf(c *cli.Context, what, of string, total int) *progress {
	p := &progress{what: what, of: of, total: total, out: c.App.ErrWriter, now: time.Now}
	p.told = p.now()
	if term.Terminal(p.out) {
		options := []progressbar.Option{progressbar.OptionSetWriter(p.out), progressbar.OptionSetDescription(p.what), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30)}
		if total == unknownTotal {
			// It is drawn when it goes on, not by itself; begun late it knows no rate.
			options = append(options, progressbar.OptionSetDescription(what+": "+of), progressbar.OptionSetSpinnerChangeInterval(0))
		} else {
			options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString(of))
		}
		p.bar = progressbar.NewOptions(total, options...)
	}
	return p
}

// alone tells whether lines about each message would tear the bar.
func (p *progress) alone(stdout io.Writer) bool {
	return p != nil && p.bar != nil && p.shown && term.Terminal(stdout)
}

// begins tells that the next step shows the bar: what is to stand above it is written now.
func (p *progress) begins() bool { return p != nil && !p.shown && p.n == bigNumber-1 }

// step counts one.
func (p *progress) step() {
	if p == nil {
		return
	}
	p.n++
	n := 1
	if p.n == bigNumber && !p.shown {
		p.shown, n = true, p.n
	}
	switch now := p.now(); {
	case p.bar != nil && p.shown:
		// What cannot be drawn is not worth an error.
		_ = p.bar.Add(n)
	case now.Sub(p.told) < progressEvery:
	case p.total == unknownTotal:
		p.told = now
		fmt.Fprintf(p.out, "%s: %d %s\n", p.what, p.n, p.of)
	case p.n < p.total:
		p.told = now
		fmt.Fprintf(p.out, "%s: %d of %d\n", p.what, p.n, p.total)
	}
}

// end takes the bar away.
func (p *progress) end() {
	if p != nil && p.bar != nil && p.shown {
		_ = p.bar.Clear()
	}
}
