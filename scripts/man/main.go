// Command man makes the manual pages: of each program and each zmctl command from what the
// program says of itself, of each file format and of everything else from docs/*.md.
//
//	go run ./scripts/man [-bin bin] [-docs docs] [-date 2026-11-22] [DIR]
//
// writes DIR/man5, DIR/man7 and DIR/man8, by default below bin/man. The programs must have
// been built; nothing of what is written stands in the repository, so that it is always
// what the programs are.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the programs")
	docs := flag.String("docs", "docs", "directory of the documentation")
	date := flag.String("date", "", "date of the pages; without it SOURCE_DATE_EPOCH, else the last commit's")
	flag.Parse()
	dir := filepath.Join("bin", "man")
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if *date == "" {
		*date = lastChange()
	}
	n, err := write(dir, *bin, *docs, *date)
	if err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pages in %s\n", n, dir)
}

// lastChange returns the date that the pages bear: the same for the same source.
func lastChange() string {
	if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		return time.Unix(n, 0).UTC().Format(time.DateOnly)
	}
	out, err := exec.Command("git", "log", "-1", "--format=%cs").Output()
	if err != nil {
		return "" // no repository: a page without a date
	}
	return strings.TrimSpace(string(out))
}

// write makes all pages and puts them below dir; it gives their number.
func write(dir, bin, docs, date string) (int, error) {
	m, err := load(bin, docs)
	if err != nil {
		return 0, err
	}
	pages := m.pages()
	for _, p := range pages {
		file := filepath.Join(dir, fmt.Sprintf("man%d", p.section), p.file())
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return 0, err
		}
		if err := os.WriteFile(file, p.roff(date), 0o644); err != nil {
			return 0, err
		}
		for _, name := range p.also {
			link := filepath.Join(dir, fmt.Sprintf("man%d", p.section), fmt.Sprintf("%s.%d", name, p.section))
			text := fmt.Sprintf(".so man%d/%s\n", p.section, p.file())
			if err := os.WriteFile(link, []byte(text), 0o644); err != nil {
				return 0, err
			}
		}
	}
	return len(pages), nil
}
