package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sides is the directory of the side files, below this package.
const sides = "pages"

// inserted is what a side file has for a page before one of its blocks.
type inserted struct {
	before string // the block's first line; "" is the end of the page
	nth    int    // of the blocks that begin so after the last one that was used, from 1
	text   string
}

// numbered is a line with its number in the page, from 1. Lines of the side file have the
// number of the line that they stand before.
type numbered struct {
	n    int
	text string
}

const beforeLine, endLine = "=== before ", "=== at the end"

// parseSide parses a side file.
func parseSide(text string) ([]inserted, error) {
	var list []inserted
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch key, isBefore := strings.CutPrefix(line, beforeLine); {
		case isBefore:
			nth := 1
			if number, rest, ok := strings.Cut(key, ": "); ok {
				if n, err := strconv.Atoi(number); err == nil {
					nth, key = n, rest
				}
			}
			list = append(list, inserted{before: key, nth: nth})
		case line == endLine:
			list = append(list, inserted{})
		case len(list) == 0:
			return nil, fmt.Errorf("a side file begins with a line %q", beforeLine+"…")
		default:
			list[len(list)-1].text += line + "\n"
		}
	}
	return list, nil
}

// annotate returns the lines of a page with those of its side file between them.
func annotate(text string, side []inserted) ([]numbered, error) {
	var out []numbered
	lines := strings.Split(text, "\n")
	insert := func(n int) {
		for line := range strings.Lines(side[0].text) {
			out = append(out, numbered{n, strings.TrimSuffix(line, "\n")})
		}
		side = side[1:]
	}
	// take inserts what belongs before the block that begins at a line with a text.
	seen := 0
	take := func(n int, first string) {
		if len(side) > 0 && side[0].before == first && first != "" {
			if seen++; seen == side[0].nth {
				seen = 0
				insert(n)
			}
		}
	}
	fence, indented, blank := false, false, true
	for i, line := range lines {
		isFence := strings.HasPrefix(line, "```")
		isIndented := strings.HasPrefix(line, indent) && strings.TrimSpace(line) != ""
		switch {
		case fence:
			fence = !isFence
		case isFence:
			fence, indented = true, false
			if i+1 < len(lines) {
				take(i+1, lines[i+1])
			}
		case isIndented && !indented && blank:
			indented = true
			take(i+1, strings.TrimPrefix(line, indent))
		case strings.TrimSpace(line) != "" && !isIndented:
			indented = false
		}
		blank = strings.TrimSpace(line) == ""
		out = append(out, numbered{i + 1, line})
	}
	if len(side) > 0 && side[0].before == "" {
		insert(len(lines))
	}
	if len(side) > 0 {
		return nil, fmt.Errorf("the page has no block %d that begins with %q here, which its side file names", side[0].nth, side[0].before)
	}
	return out, nil
}

// parsePage parses a page with its side file, which need not exist. Name is the path of the
// page below docs/. The side file of ../README.md is pages/top-README.md.txt.
func parsePage(name, text string) (page, error) {
	lines, err := pageLines(sides, name, text)
	if err != nil {
		return page{}, err
	}
	return parseLines(lines)
}

// pageLines returns the lines of a page with those of its side file in a directory.
func pageLines(directory, name, text string) ([]numbered, error) {
	name = strings.ReplaceAll(name, "../", "top-") + ".txt"
	b, err := os.ReadFile(filepath.Join(directory, name))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	side, err := parseSide(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	lines, err := annotate(text, side)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return lines, nil
}
