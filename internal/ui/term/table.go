package term

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// Table is text in columns, as text/tabwriter makes them with two blanks between: cells end
// with tabs, and a column is as wide as its cells in lines that follow one another. Colours
// count for nothing. It is written at Flush.
type Table struct {
	// Width is where lines are cut; 0: nowhere.
	Width int

	w    io.Writer
	text bytes.Buffer
}

// NewTable makes a table that goes to a writer.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

func (t *Table) Write(b []byte) (int, error) { return t.text.Write(b) }

// gap is between two columns.
const gap = 2

// Flush writes the lines so far, and begins a new table.
func (t *Table) Flush() error {
	var rows [][]string
	for line := range strings.Lines(t.text.String()) {
		rows = append(rows, strings.Split(line, "\t"))
	}
	t.text.Reset()
	widths := columns(rows)
	var b strings.Builder
	for r, cells := range rows {
		var line strings.Builder
		for i, cell := range cells {
			line.WriteString(cell)
			if i < len(cells)-1 {
				line.WriteString(strings.Repeat(" ", widths[r][i]-length(cell)))
			}
		}
		text, ended := strings.CutSuffix(line.String(), "\n")
		if t.Width > 0 {
			text = Clip(text, t.Width)
		}
		b.WriteString(text)
		if ended {
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// columns returns the width of each cell that ends with a tab: that of the widest among the
// lines around it that have such a cell.
func columns(rows [][]string) [][]int {
	widths := make([][]int, len(rows))
	for r := range rows {
		widths[r] = make([]int, len(rows[r])-1)
	}
	for column, some := 0, true; some; column++ {
		some = false
		for r := 0; r < len(rows); r++ {
			end, width := r, 0
			for ; end < len(rows) && len(rows[end]) > column+1; end++ {
				width = max(width, length(rows[end][column])+gap)
			}
			for ; r < end; r++ {
				some = true
				widths[r][column] = width
			}
		}
	}
	return widths
}

// length returns how many columns text takes on a terminal, without its colours.
func length(text string) (n int) {
	for {
		from := strings.IndexByte(text, escape)
		if from < 0 {
			return n + columnsOf(text)
		}
		n += columnsOf(text[:from])
		end := strings.IndexByte(text[from:], 'm')
		if end < 0 {
			return n
		}
		text = text[from+end+1:]
	}
}

// columnsOf is length of text without colours: a letter with its accents takes one column,
// a Chinese one two.
func columnsOf(text string) int {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return uniseg.StringWidth(text)
		}
	}
	return len(text)
}

// escape begins a colour; every one ends with an m.
const escape = 0x1b

// Clip cuts a line after so many columns (0: nowhere), and marks that with three dots; colours
// are ended.
func Clip(line string, width int) string {
	if length(line) <= width || width <= len(dots) {
		return line
	}
	left, coloured := width-len(dots), false
	for rest := line; rest != ""; {
		if rest[0] == escape {
			coloured = true
			end := strings.IndexByte(rest, 'm')
			if end < 0 {
				break
			}
			rest = rest[end+1:]
			continue
		}
		// What is seen as one is not cut.
		_, after, columns, _ := uniseg.FirstGraphemeClusterInString(rest, -1)
		if left -= columns; left < 0 {
			line = line[:len(line)-len(rest)] + dots
			if coloured {
				line += "\x1b[0m"
			}
			return line
		}
		rest = after
	}
	return line
}

const dots = "..."
