package text

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"zmailer/internal/ui/term"
)

const (
	// bigNumber is from how many on progress is shown.
	BigNumber = 200
	// progressEvery is how often a line is written where there is no terminal.
	progressEvery = 5 * time.Second
	// unknownTotal is the total of things that are counted as they are found.
	UnknownTotal = -1
)

// Progress shows how far a long command is: a bar on a terminal, else lines with counts. A
// nil one shows nothing.
type Progress struct {
	What  string
	Of    string // messages, files
	Total int
	n     int
	Out   io.Writer
	bar   *progressbar.ProgressBar // nil: no terminal
	shown bool                     // it is worth it
	Told  time.Time
	Now   func() time.Time
}

func NewProgress(out io.Writer, what, of string, total int) *Progress {
	p := &Progress{What: what, Of: of, Total: total, Out: out, Now: time.Now}
	p.Told = p.Now()
	if term.Terminal(p.Out) {
		options := []progressbar.Option{progressbar.OptionSetWriter(p.Out), progressbar.OptionSetDescription(p.What), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30)}
		if total == UnknownTotal {
			// It is drawn when it goes on, not by itself; begun late it knows no rate.
			options = append(options, progressbar.OptionSetDescription(what+": "+of), progressbar.OptionSetSpinnerChangeInterval(0))
		} else {
			options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString(of))
		}
		p.bar = progressbar.NewOptions(total, options...)
	}
	return p
}

// Alone reports whether lines about each message would tear the bar.
func (p *Progress) Alone(stdout io.Writer) bool {
	return p != nil && p.bar != nil && p.shown && term.Terminal(stdout)
}

// Begins reports whether the next step shows the bar: output above it must be written now.
func (p *Progress) Begins() bool { return p != nil && !p.shown && p.n == BigNumber-1 }

// Show shows the progress from the first step on.
func (p *Progress) Show() { p.shown = true }

// Step counts one.
func (p *Progress) Step() {
	if p == nil {
		return
	}
	p.n++
	n := 1
	if p.n == BigNumber && !p.shown {
		p.shown, n = true, p.n
	}
	switch now := p.Now(); {
	case p.bar != nil && p.shown:
		// What cannot be drawn is not worth an error.
		_ = p.bar.Add(n)
	case now.Sub(p.Told) < progressEvery:
	case p.Total == UnknownTotal:
		p.Told = now
		fmt.Fprintf(p.Out, "%s: %d %s\n", p.What, p.n, p.Of)
	case p.n < p.Total:
		p.Told = now
		fmt.Fprintf(p.Out, "%s: %d of %d\n", p.What, p.n, p.Total)
	}
}

// End removes the bar.
func (p *Progress) End() {
	if p != nil && p.bar != nil && p.shown {
		_ = p.bar.Clear()
	}
}

// PhaseBar prints the progress of a large table to standard error: a bar on a terminal,
// otherwise a line every few seconds.
type PhaseBar struct {
	out   io.Writer
	shown time.Time
	phase string
	bar   *progressbar.ProgressBar
}

// NewPhaseBar makes one that is not shown yet.
func NewPhaseBar(out io.Writer) *PhaseBar { return &PhaseBar{out: out, shown: time.Now()} }

// Step reports that done of the work is finished.
func (b *PhaseBar) Step(phase string, done, of int64) {
	if phase != b.phase {
		b.End()
		b.phase = phase
		if f, ok := b.out.(*os.File); ok && term.Terminal(f) {
			b.bar = progressbar.NewOptions64(of, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(phase),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
		}
	}
	switch now := time.Now(); {
	case b.bar != nil:
		// A bar that cannot be drawn is no error.
		_ = b.bar.Set64(done)
	case now.Sub(b.shown) >= 5*time.Second && done < of:
		b.shown = now
		fmt.Fprintf(b.out, "%s: %d%%\n", phase, 100*done/of)
	}
}

// End removes the bar.
func (b *PhaseBar) End() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	b.bar = nil
}
