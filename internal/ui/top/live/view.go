package live

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/lipgloss"

	"zmailer/internal/run/human"
	"zmailer/internal/ui/top"
	"zmailer/internal/wire/mailq"
)

// look is how parts of the screen look. Without colours the text has the same information.
type look struct{ title, faint, bad, soon, good, chosen lipgloss.Style }

func newLook() look {
	colour := func(light, dark string) lipgloss.Style {
		return lipgloss.NewStyle().Foreground(lipgloss.AdaptiveColor{Light: light, Dark: dark})
	}
	return look{title: lipgloss.NewStyle().Bold(true), faint: lipgloss.NewStyle().Faint(true),
		bad: colour("124", "203"), soon: colour("130", "214"), good: colour("28", "114"), chosen: lipgloss.NewStyle().Reverse(true)}
}

// View draws the screen.
func (m *Model) View() string {
	l := newLook()
	lines := m.head(&l)
	switch {
	case m.help:
		lines = append(lines, helpLines()...)
	case m.sample == nil:
		lines = append(lines, "taking the first sample ...")
	case m.inside != nil:
		lines = append(lines, m.insideLines(&l)...)
	default:
		lines = append(lines, m.upper(&l)...)
		lines = append(lines, m.alarmLines(&l)...)
		lines = append(lines, m.threadLines(&l, m.height-len(lines)-1)...)
	}
	lines = lines[:min(len(lines), max(m.height-1, 0))]
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, m.foot(&l))
	fit := lipgloss.NewStyle().MaxWidth(m.width)
	for i, line := range lines {
		lines[i] = fit.Render(line)
	}
	return strings.Join(lines, "\n")
}

func (m *Model) head(l *look) []string {
	if m.sample == nil {
		return []string{l.title.Render("zmailer"), ""}
	}
	x := m.sample
	first := l.title.Render(x.Time.Local().Format(time.DateTime) + "  " + human.Clean(x.PostOffice))
	if m.paused {
		first += "  " + l.soon.Render("paused")
	}
	second := x.Head()
	if !x.Router || x.Scheduler == nil {
		second = l.bad.Render(second)
	}
	if m.err != nil {
		second = l.bad.Render(human.Clean(m.err.Error()))
	}
	return []string{first, second, ""}
}

// Widths of the upper part's columns.
const (
	stageName, stageCount, stageAge = 10, 10, 8
	rateName, rateValue, rateMost   = 11, 8, 40
)

// upper has the stages at the left, the rates at the right.
func (m *Model) upper(l *look) []string {
	left := []string{l.faint.Render(pad("STAGE", stageName) + right("MESSAGES", stageCount) + right("OLDEST", stageAge))}
	for i := range m.sample.Stages {
		t := &m.sample.Stages[i]
		c := t.Cells()
		line := pad(c[0], stageName) + right(c[1], stageCount) + right(c[2], stageAge)
		if t.Problem != "" { // shown below: here it would push the rates aside
			line = l.bad.Render(pad(c[0], stageName) + right("?", stageCount) + right("?", stageAge))
		}
		left = append(left, line)
	}
	room := min(max(m.width-stageName-stageCount-stageAge-4-rateName-rateValue-2, 0), rateMost)
	rates := []string{l.faint.Render(pad("A SECOND", rateName) + right("NOW", rateValue))}
	for _, r := range m.sample.Rates.Named() {
		line := pad(r.Name, rateName) + right(top.PerSecond(r.Value), rateValue)
		if h := m.rates[r.Name]; h != nil && room > 0 {
			spark := h.Spark(room)
			switch r.Name {
			case "failed":
				spark = l.bad.Render(spark)
			case "deferred":
				spark = l.soon.Render(spark)
			default:
				spark = l.good.Render(spark)
			}
			line += "  " + spark
		}
		rates = append(rates, line)
	}
	both := lipgloss.JoinHorizontal(lipgloss.Top, strings.Join(left, "\n"), "    ", strings.Join(rates, "\n"))
	return append(strings.Split(both, "\n"), "")
}

// shownAlarms is how many alarms have a line of their own.
const shownAlarms = 3

func (m *Model) alarmLines(l *look) (lines []string) {
	for i := range m.sample.Stages {
		if t := &m.sample.Stages[i]; t.Problem != "" {
			lines = append(lines, l.bad.Render(t.Name+": "+human.Clean(t.Problem)))
		}
	}
	list := m.sample.Alarms
	for i, a := range list {
		if i == shownAlarms {
			lines = append(lines, l.bad.Render(fmt.Sprintf("and %d alarms more: zmctl status", len(list)-i)))
			break
		}
		lines = append(lines, l.bad.Render(fmt.Sprintf("%s %s: %s", a.Kind, human.Clean(a.Subject), human.Clean(strings.TrimSpace(a.Text)))))
	}
	if lines != nil {
		lines = append(lines, "")
	}
	return lines
}

// threadLines are so many lines of the table of threads, with the cursor among them.
func (m *Model) threadLines(l *look, room int) []string {
	list := m.threads()
	m.cursor = max(min(m.cursor, len(list)-1), 0)
	rows := [][]string{top.Columns()}
	shown := max(room-1, 1)
	first := max(m.cursor-shown+1, 0)
	end := min(first+shown, len(list))
	for i := first; i < end; i++ {
		rows = append(rows, list[i].Cells())
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], lipgloss.Width(cell))
		}
	}
	widths[0] = min(widths[0], max(m.width/3, 20))
	lines := make([]string, 0, len(rows))
	for k, row := range rows {
		lines = append(lines, m.threadLine(l, row, widths, k, first+k-1))
	}
	if len(list) == 0 {
		lines = append(lines, l.faint.Render("no threads"))
	}
	return lines
}

// threadLine is row k of the table; i is its thread's place.
func (m *Model) threadLine(l *look, row []string, widths []int, k, i int) string {
	line := "  "
	if k > 0 && i == m.cursor {
		line = "> "
	}
	for c, cell := range row {
		switch {
		case c == 0 || c == 1:
			line += pad(human.Cut(cell, widths[c]), widths[c]) + "  "
		case c == len(row)-1:
			line += cell
		default:
			line += right(cell, widths[c]) + "  "
		}
	}
	switch {
	case k == 0:
		return l.faint.Render(line)
	case i == m.cursor:
		return l.chosen.Render(line)
	case row[1] == "trouble":
		return l.bad.Render(line)
	case row[1] == "probing" || row[1] == "throttled" || row[1] == "paused" || row[1] == "no-place":
		return l.soon.Render(line)
	case row[1] == "active":
		return l.good.Render(line)
	}
	return line
}

func (m *Model) insideLines(l *look) []string {
	in := m.inside
	lines := []string{l.title.Render(human.Clean(in.channel + "/" + in.host))}
	switch {
	case in.err != nil:
		return append(lines, l.bad.Render(human.Clean(in.err.Error())))
	case !in.loaded:
		return append(lines, "asking the scheduler ...")
	case len(in.list) == 0:
		return append(lines, "nothing waits here any more")
	}
	now := m.sample.Time
	for i := range in.list {
		if i >= in.top {
			lines = append(lines, waitingLine(&in.list[i], now))
			if a := in.list[i].Answer; a != "" {
				lines = append(lines, l.faint.Render("    "+human.Clean(strings.Join(strings.Fields(a), " "))))
			}
		}
	}
	if len(in.list) == mostWaiting {
		lines = append(lines, "and more: zmctl thread "+human.Clean(in.channel+"/"+in.host))
	}
	return lines
}

func waitingLine(w *mailq.WaitingInfo, now time.Time) string {
	words := []string{w.ID, top.Span(int64(now.Sub(w.Accepted) / time.Second)), human.Clean(w.Rcpt), w.State}
	if w.Attempts > 0 {
		words = append(words, fmt.Sprintf("tried %d times", w.Attempts))
	}
	if w.Next.After(now) {
		words = append(words, "next in "+top.Span(int64(w.Next.Sub(now)/time.Second)))
	}
	return strings.Join(words, "  ")
}

func (m *Model) foot(l *look) string {
	switch {
	case m.filtering:
		return "threads with: " + m.filter + "_"
	case m.help:
		return l.faint.Render("? back   q leave")
	case m.inside != nil:
		return l.faint.Render("esc back   up, down   q leave")
	}
	text := fmt.Sprintf("? help   q leave   enter look into   / filter   s sort: %s   every %v", m.order, m.every)
	if m.filter != "" {
		text += "   only: " + m.filter
	}
	return l.faint.Render(text)
}

func helpLines() []string {
	return strings.Split(`up, down, pgup, pgdn   choose a thread
enter                  its recipients; esc: back
s                      sort by need, recipients, age, rate, name
/                      only threads with a text in their names or states; esc: all
space                  pause, go on
+ -                    look more often, less often
q                      leave

N messages, R recipients, RUN deliveries under way of those allowed,
TRIED attempts, /S attempts in a second, WAIT until the next one.
zmctl why ID shows why a message waits, zmctl trace ID its life.`, "\n")
}

func pad(s string, n int) string   { return s + strings.Repeat(" ", max(n-lipgloss.Width(s), 0)) }
func right(s string, n int) string { return strings.Repeat(" ", max(n-lipgloss.Width(s), 0)) + s }
