package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"zmailer/internal/run/config"
)

// narrow is how wide a table may be that stays one.
const narrow = 74

func defaultText(name string) []byte { return config.Default(name) }

// tableText makes columns of a table that is narrow, else a list: its first column are the
// terms, the others are told by their heads.
func tableText(lines []string) string {
	var rows [][]string
	for i, line := range lines {
		if i != 1 { // |---|---|
			rows = append(rows, cells(line))
		}
	}
	if text, ok := columns(rows); ok {
		return text
	}
	var b strings.Builder
	head := rows[0]
	for _, row := range rows[1:] {
		term := row[0]
		if term == "" {
			term = "(every other)"
		}
		fmt.Fprintf(&b, "%s\n", escapeStart(links(term)))
		var parts []string
		for i, cell := range row[1:] {
			switch {
			case cell == "":
			case len(row) == 2 || head[i+1] == "":
				parts = append(parts, links(cell))
			default:
				parts = append(parts, fmt.Sprintf("*%s*: %s", strings.Trim(head[i+1], "`"), links(cell)))
			}
		}
		if len(parts) == 0 {
			parts = []string{"-"}
		}
		fmt.Fprintf(&b, ": %s\n\n", strings.Join(parts, "  \n"))
	}
	return "\n" + b.String()
}

// cells returns those of a row; a | in a code span or behind a backslash parts nothing.
func cells(line string) []string {
	line = strings.TrimSpace(line)
	line = strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|")
	var list []string
	var cell strings.Builder
	code := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line) && line[i+1] == '|':
			cell.WriteByte('|')
			i++
		case c == '`':
			code = !code
			cell.WriteByte(c)
		case c == '|' && !code:
			list = append(list, strings.TrimSpace(cell.String()))
			cell.Reset()
		default:
			cell.WriteByte(c)
		}
	}
	return append(list, strings.TrimSpace(cell.String()))
}

// columns lays a table out with blanks, false if it is too wide.
func columns(rows [][]string) (string, bool) {
	bare := strings.NewReplacer("`", "", "**", "")
	widths := make([]int, len(rows[0]))
	for r := range rows {
		for i := range rows[r] {
			if i >= len(widths) {
				return "", false
			}
			rows[r][i] = strings.TrimSpace(rows[r][i])
			if w := utf8.RuneCountInString(bare.Replace(links(rows[r][i]))); w > widths[i] {
				widths[i] = w
			}
		}
	}
	sum := 0
	for _, w := range widths {
		sum += w + 2
	}
	if sum > narrow {
		return "", false
	}
	var b strings.Builder
	b.WriteString("\n```\n")
	for r, row := range rows {
		line := ""
		for i, cell := range row {
			cell = strings.ReplaceAll(bare.Replace(links(cell)), "\\", "")
			line += cell + strings.Repeat(" ", widths[i]+2-utf8.RuneCountInString(cell))
		}
		if line = strings.TrimRight(line, " "); line != "" || r > 0 {
			b.WriteString(line + "\n")
		}
	}
	b.WriteString("```\n")
	return b.String(), true
}

// escapeStart keeps a term from being taken for a list or a heading.
func escapeStart(term string) string {
	if strings.IndexAny(term, "-+#>") == 0 || strings.HasPrefix(term, "* ") {
		return "\\" + term
	}
	return term
}
