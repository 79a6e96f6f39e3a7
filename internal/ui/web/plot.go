package web

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Sizes of a plot; a browser scales it.
const (
	plotWidth  = 400
	plotHeight = 190
	plotLeft   = 50
	plotRight  = 8
	plotTop    = 10
	plotBottom = 24
	// labelHalf is half as wide as a time of the day.
	labelHalf = 18
)

// plot is a picture of values over time, ready to be drawn.
type plot struct {
	Name          string
	Width, Height int
	Left, Right   int // ends of the area
	Top, Bottom   int
	Lines         []line
	Rows          []tick // of the vertical axis
	Columns       []tick
	Spots         []spot
	Empty         string // what to say in place of lines
	Caption       string // for who cannot see it
}

// line is one curve; Path is what an SVG path has as d. Where nothing is known it has a gap.
type line struct{ Name, Class, Path string }

type tick struct {
	At      int
	Label   string
	LabelAt int // its position in the picture
}

// spot is a column that shows its values under the mouse.
type spot struct {
	X, Width int
	Text     string
}

// series is a curve before it is scaled. Below zero: not known.
type series struct {
	name, class string
	values      []float64
}

// axis scales values; at is between 0 and 1.
type axis struct {
	at    func(v float64) float64
	ticks []float64
	label func(v float64) string
}

// linear begins at zero; its steps are least, or more.
func linear(most, least float64) axis {
	step := max(stepFor(most), least)
	end := math.Max(step, math.Ceil(most/step)*step)
	a := axis{at: func(v float64) float64 { return v / end }, label: number}
	for v := 0.0; v <= end+step/2; v += step {
		a.ticks = append(a.ticks, v)
	}
	return a
}

// stepFor is 1, 2 or 5 times a power of ten: some four of them make up most.
func stepFor(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if power*m >= most/4 {
			return power * m
		}
	}
	return power * 10
}

// number returns a value without trailing zeros.
func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

// times returns a scale of seconds by powers.
func times(least, most float64) axis {
	marks := []float64{0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 432000}
	if least > most {
		least, most = 0.01, 60 // there is nothing to show
	}
	low, high := 0, len(marks)-1
	for low+1 < len(marks) && marks[low+1] <= least {
		low++
	}
	for high-1 > low && marks[high-1] >= most {
		high--
	}
	bottom, height := math.Log(marks[low]), math.Log(marks[high])-math.Log(marks[low])
	return axis{
		at:    func(v float64) float64 { return (math.Log(math.Max(v, marks[low])) - bottom) / height },
		ticks: marks[low : high+1],
		label: func(v float64) string { return took(time.Duration(v * float64(time.Second))) },
	}
}

func took(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + "ms"
	case d < 10*time.Second && d%time.Second != 0:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// newPlot draws curves; describe returns the text of one column.
func newPlot(name string, all []series, a axis, labels []tick, describe func(i int) string) plot {
	p := plot{Name: name, Width: plotWidth, Height: plotHeight, Left: plotLeft, Right: plotWidth - plotRight, Top: plotTop, Bottom: plotHeight - plotBottom}
	n := 0
	for _, s := range all {
		n = max(n, len(s.values))
	}
	x := func(i float64) float64 { return plotLeft + i/float64(max(n, 1))*float64(p.Right-p.Left) }
	y := func(v float64) float64 { return float64(p.Bottom) - a.at(v)*float64(p.Bottom-p.Top) }
	known := false
	for _, s := range all {
		var b strings.Builder
		pen := false
		for i, v := range s.values {
			if v < 0 {
				pen = false
				continue
			}
			known = true
			if pen {
				fmt.Fprintf(&b, "L%.1f %.1f", x(float64(i)+0.5), y(v))
			} else {
				// A point alone is seen, too.
				fmt.Fprintf(&b, "M%.1f %.1fh2", x(float64(i)+0.5), y(v))
			}
			pen = true
		}
		p.Lines = append(p.Lines, line{s.name, s.class, b.String()})
	}
	for _, v := range a.ticks {
		p.Rows = append(p.Rows, tick{At: int(math.Round(y(v))), Label: a.label(v)})
	}
	for _, l := range labels {
		at := int(math.Round(x(float64(l.At))))
		p.Columns = append(p.Columns, tick{At: at, Label: l.Label, LabelAt: min(at, plotWidth-labelHalf)})
	}
	for i := range n {
		left, right := int(x(float64(i))), int(x(float64(i+1)))
		if text := describe(i); text != "" {
			p.Spots = append(p.Spots, spot{left, right - left, text})
		}
	}
	if !known {
		p.Empty = "Nothing is known of this time."
	}
	return p
}

// span is a range of time that the plots can show.
type span struct {
	Name    string
	n       int // samples
	minutes int // of each
	label   time.Duration
}

func spans() []span {
	return []span{{"1h", 60, 1, 10 * time.Minute}, {"6h", 72, 5, time.Hour}, {"24h", 72, 20, 4 * time.Hour}}
}

func spanOf(name string) span {
	all := spans()
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	return all[1]
}

// plots are throughput, latency and what waited, over a time.
func (s *Samples) plots(now time.Time, of span) []plot {
	list := s.since(now, of.n, of.minutes)
	var labels []tick
	clock := make([]string, len(list))
	for i := range list {
		at := time.Unix(list[i].minute*60, 0)
		clock[i] = at.Format("15:04")
		if at.Unix()%int64(of.label/time.Second) == 0 {
			labels = append(labels, tick{At: i, Label: clock[i]})
		}
	}
	in := series{"messages accepted", "in", nil}
	out := series{"recipients delivered", "out", nil}
	bad := series{"recipients failed", "bad", nil}
	half, most := series{"median", "half", nil}, series{"95th percentile", "most", nil}
	waiting := series{"messages in the queue", "wait", nil}
	top, deep := 0.0, 0.0
	least, longest := math.Inf(1), 0.0
	for i := range list {
		m := &list[i]
		rates := m.rates(now)
		in.values, out.values, bad.values = append(in.values, rates[0]), append(out.values, rates[1]), append(bad.values, rates[2])
		top = max(top, rates[0], rates[1], rates[2])
		h, q := m.quantile(0.5).Seconds(), m.quantile(0.95).Seconds()
		if h == 0 {
			h, q = -1, -1
		} else {
			least, longest = min(least, h), max(longest, q)
		}
		half.values, most.values = append(half.values, h), append(most.values, q)
		waiting.values = append(waiting.values, float64(m.waiting))
		deep = max(deep, float64(m.waiting))
	}
	flow := newPlot("Mail a minute", []series{in, out, bad}, linear(top, 0), labels, func(i int) string {
		if in.values[i] < 0 {
			return clock[i] + ": not counted"
		}
		return fmt.Sprintf("%s: %s accepted, %s delivered, %s failed a minute", clock[i], number(in.values[i]), number(out.values[i]), number(bad.values[i]))
	})
	flow.Caption = fmt.Sprintf("Messages accepted, recipients delivered and failed, a minute, over the last %s; at most %s.", of.Name, number(math.Round(top*10)/10))
	delay := newPlot("From accepted to done", []series{half, most}, times(least, longest), labels, func(i int) string {
		if half.values[i] < 0 {
			return ""
		}
		return fmt.Sprintf("%s: half within %s, 19 of 20 within %s", clock[i], took(list[i].quantile(0.5)), took(list[i].quantile(0.95)))
	})
	delay.Caption = "Time from accepted to the last recipient's end, of messages that were delivered, over the last " + of.Name + "."
	if delay.Empty != "" {
		delay.Rows, delay.Empty = nil, "No message was done in this time."
	}
	depth := newPlot("Messages in the queue", []series{waiting}, linear(deep, 1), labels, func(i int) string {
		if waiting.values[i] < 0 {
			return ""
		}
		return fmt.Sprintf("%s: %s in the queue", clock[i], number(waiting.values[i]))
	})
	depth.Caption = "Messages in the queue over the last " + of.Name + ", as the scheduler counts them."
	return []plot{flow, delay, depth}
}

// rates returns what came, was delivered and failed in a minute; below zero: not counted.
func (s *sample) rates(now time.Time) []float64 {
	if s.known == 0 {
		return []float64{-1, -1, -1}
	}
	per := float64(s.known)
	// The last minute is still running.
	if last := now.UnixMilli() / 60000; s.last == last {
		per += max(float64(now.UnixMilli()-last*60000)/60000, 1.0/6) - 1
	}
	return []float64{float64(s.accepted) / per, float64(s.delivered) / per, float64(s.failed) / per}
}

// barsWidth is how wide the longest bar is; a browser stretches it.
const barsWidth = 1000

// bars is the queue by host and age as a picture.
type bars struct {
	Width   int
	Rows    []bar
	Caption string
}

type bar struct {
	Name  string
	Link  string
	N     int
	Parts []part
	Says  string // for who cannot see it
}

type part struct {
	X, Width int
	Age      int
	Text     string
}

// newBars draws the fullest hosts.
func newBars(hosts []HostCount) bars {
	b := bars{Width: barsWidth}
	most := 1
	for _, h := range hosts {
		most = max(most, h.N)
	}
	for _, h := range hosts {
		row := bar{Name: clean(h.Name), N: h.N}
		if h.Channel != "" {
			row.Link = queueLink(h.Channel, h.Host)
		}
		x := 0.0
		var says []string
		for age, n := range h.Ages {
			if n == 0 {
				continue
			}
			left := int(math.Round(x))
			x += float64(n) / float64(most) * barsWidth
			text := fmt.Sprintf("%d %s", n, AgeName(age))
			says = append(says, text)
			row.Parts = append(row.Parts, part{left, max(2, int(math.Round(x))-left), age, row.Name + ": " + text})
		}
		row.Says = strings.Join(says, ", ")
		b.Rows = append(b.Rows, row)
	}
	b.Caption = fmt.Sprintf("Open recipients of the %d fullest hosts, by the age of their messages", len(hosts))
	return b
}
