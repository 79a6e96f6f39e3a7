package main

import (
	"fmt"
	"html"
	"strings"
)

// Measures of a plot, in its units.
const (
	plotWidth  = 720
	barLeft    = 110
	barRight   = 560
	barHeight  = 18
	barStep    = 26
	panelAbove = 34
)

// plot draws a scenario: for each figure that is to be plotted a bar for each system, as
// long as its median, with a line from the lowest run to the highest.
func plot(m *measured) string {
	var b strings.Builder
	y := 30
	fmt.Fprintf(&b, "<text class=\"t\" x=\"10\" y=\"20\">%s</text>\n", html.EscapeString(m.Title+": "+m.What))
	for _, f := range m.Figures {
		if f.Plot {
			y = m.panel(&b, f, y)
		}
	}
	// Colours are readable on white and on black; whoever prefers dark gets light letters.
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n", plotWidth, y+10, plotWidth, y+10) +
		"<style>text{font:13px sans-serif;fill:#333}.t{font-size:12px}.f{font-weight:bold}.o{fill:#2f81c7}.p{fill:#909090}.r{stroke:#d2691e;stroke-width:2}" +
		"@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>\n" +
		"<title>" + html.EscapeString(m.Title) + "</title>\n" + b.String() + "</svg>\n"
}

func (m *measured) panel(b *strings.Builder, f figure, y int) int {
	most := 0.0
	for _, name := range m.Systems {
		most = max(most, m.spread(name, f.Key).High)
	}
	if most <= 0 {
		return y
	}
	title := f.Title
	if u := strings.TrimSpace(f.unit()); u != "" {
		title += ", " + u
	}
	better := "less is better"
	if f.More {
		better = "more is better"
	}
	fmt.Fprintf(b, "<text x=\"10\" y=\"%d\"><tspan class=\"f\">%s</tspan> (%s)</text>\n", y+panelAbove-12, html.EscapeString(title), better)
	y += panelAbove
	x := func(v float64) float64 { return barLeft + max(v, 0)/most*(barRight-barLeft) }
	for _, name := range m.Systems {
		s := m.spread(name, f.Key)
		if !s.ok {
			continue
		}
		class := "p"
		if name == "zmailer" {
			class = "o"
		}
		middle := y + barHeight/2
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", barLeft-8, middle+5, html.EscapeString(name))
		fmt.Fprintf(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>", class, barLeft, y, max(1, x(s.Median)-barLeft), barHeight)
		if s.High > s.Low {
			fmt.Fprintf(b, "<path class=\"r\" d=\"M%.1f %dH%.1fM%.1f %dv8M%.1f %dv8\"/>", x(s.Low), middle, x(s.High), x(s.Low), middle-4, x(s.High), middle-4)
		}
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x(s.High)+8, middle+5, short(s.Median))
		y += barStep
	}
	return y
}
