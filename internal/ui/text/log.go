package text

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"zmailer/internal/admin/logread"
	"zmailer/internal/run/human"
	"zmailer/internal/run/logging"
	"zmailer/internal/ui/term"
)

// LogPrinter prints the lines that fit.
type LogPrinter struct {
	W      io.Writer
	Filter logread.Filter
	JSON   bool
	Short  bool // shortened for reading
	Paint  term.Paint
	Other  bool // lines of others too
	took   bool // the last of ours
	Last   int  // > 0: the last so many of what comes before end
	kept   [][]byte
	Shown  int
}

// Line takes one line of the log.
func (p *LogPrinter) Line(raw []byte) error {
	l, ours := logging.ParseLine(raw)
	switch {
	case ours:
		p.took = p.Filter.Takes(&l)
	case !p.Other || !p.took && !p.Filter.Since.IsZero():
		return nil // the output of a crash has the time of the line before it
	}
	if ours && !p.took {
		return nil
	}
	var text []byte
	switch {
	case p.JSON && ours:
		b, err := logread.JSON(string(raw), &l)
		if err != nil {
			return err
		}
		text = b
	case p.JSON:
		text = fmt.Appendf(nil, `{"text":%s}`, quoteJSON(string(raw)))
	case p.Short && ours:
		text = p.forPerson(&l)
	case p.Short:
		text = []byte(human.Clean(string(raw)))
	default:
		text = bytes.Clone(raw)
	}
	return p.put(text)
}

// put prints a line, or keeps it as one of the last.
func (p *LogPrinter) put(text []byte) error {
	p.Shown++
	if p.Last > 0 {
		if len(p.kept) == p.Last {
			p.kept = p.kept[1:]
		}
		p.kept = append(p.kept, text)
		return nil
	}
	_, err := p.W.Write(append(text, '\n'))
	return err
}

// End prints the lines that were kept; from here on each is printed at once.
func (p *LogPrinter) End() error {
	kept := p.kept
	p.kept, p.Last = nil, 0
	for _, text := range kept {
		if _, err := p.W.Write(append(text, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// forPerson shows a line shorter: time of day (and day, if it is another), program,
// event, and the keys without those that are of no use to a reader.
func (p *LogPrinter) forPerson(l *logging.Line) []byte {
	at := l.Time.Local()
	form := "15:04:05.000"
	if now := time.Now(); at.YearDay() != now.YearDay() || at.Year() != now.Year() {
		form = "2006-01-02 15:04:05"
	}
	event := fmt.Sprintf("%-12s", human.Clean(l.Event))
	switch {
	case l.Level >= slog.LevelError:
		event = p.Paint.Red(event)
	case l.Level >= slog.LevelWarn:
		event = p.Paint.Yellow(event)
	case l.Event == "delivered":
		event = p.Paint.Green(event)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-10s %s", p.Paint.Faint(at.Format(form)), human.Clean(l.Program), event)
	for _, f := range l.Fields {
		value := human.Clean(f.Value)
		if f.Key == "id" {
			b.WriteString(" " + p.Paint.Bold(value))
			continue
		}
		if value == "" || strings.ContainsAny(value, " =\"") {
			value = `"` + value + `"`
		}
		b.WriteString(" " + p.Paint.Faint(human.Clean(f.Key)+"=") + value)
	}
	return []byte(strings.TrimRight(b.String(), " "))
}

func quoteJSON(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte(`""`) // no text fails
	}
	return b
}
