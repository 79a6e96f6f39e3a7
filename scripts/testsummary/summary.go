package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action      string
	ImportPath  string // of build-output
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// counts are of tests without subtests: of TestX/a and TestX/b, not TestX too. A
// package that fails without a failed test counts as one.
type counts struct{ passed, failed, skipped int }

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// test is a test that runs.
type test struct {
	output strings.Builder
	parent bool // it has subtests
}

// reader turns events into lines and counts.
type reader struct {
	out    io.Writer
	counts counts
	tests  map[[2]string]*test // by package and name; "" is the package
	builds map[string]*strings.Builder
	failed map[string]int // failed tests by package
	faults []string       // what failed tests said, for the end
	names  [][2]string    // of the failed tests that are counted, with their packages
}

// summarise returns the counts and the failed tests by package and name.
func summarise(events io.Reader, out io.Writer) (counts, [][2]string, error) {
	r := &reader{out: out, tests: map[[2]string]*test{}, builds: map[string]*strings.Builder{}, failed: map[string]int{}}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s\n", strings.TrimSuffix(string(line), "\n")) // a word of go itself
			} else {
				r.event(e)
			}
		}
		if err == io.EOF {
			r.repeat()
			return r.counts, r.names, nil
		}
		if err != nil {
			return r.counts, r.names, err
		}
	}
}

func (r *reader) test(pkg, name string) *test {
	key := [2]string{pkg, name}
	if r.tests[key] == nil {
		r.tests[key] = new(test)
	}
	return r.tests[key]
}

func (r *reader) event(e event) {
	switch e.Action {
	case "build-output":
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = new(strings.Builder)
		}
		r.builds[e.ImportPath].WriteString(e.Output)
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i >= 0 {
			r.test(e.Package, e.Test[:i]).parent = true
		}
	case "output":
		r.test(e.Package, e.Test).output.WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnd(e)
		} else {
			r.testEnd(e)
		}
	}
}

func (r *reader) testEnd(e event) {
	t := r.test(e.Package, e.Test)
	delete(r.tests, [2]string{e.Package, e.Test})
	switch e.Action {
	case "fail":
		r.failed[e.Package]++
		fmt.Fprint(r.out, t.output.String())
		r.faults = append(r.faults, faults(e, t.output.String())...)
	case "skip":
		fmt.Fprintf(r.out, "skipped %s.%s: %s\n", e.Package, e.Test, reason(t.output.String()))
	}
	if t.parent {
		return
	}
	switch e.Action {
	case "pass":
		r.counts.passed++
	case "fail":
		r.counts.failed++
		r.names = append(r.names, [2]string{e.Package, e.Test})
	case "skip":
		r.counts.skipped++
	}
}

func (r *reader) packageEnd(e event) {
	t := r.test(e.Package, "")
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok\t%s\t%.1fs\n", e.Package, e.Elapsed)
	case "skip":
		fmt.Fprintf(r.out, "-\t%s\tno tests\n", e.Package)
	case "fail":
		if b := r.builds[e.FailedBuild]; e.FailedBuild != "" && b != nil {
			fmt.Fprint(r.out, b.String())
		}
		if r.failed[e.Package] == 0 {
			// It panicked, ran out of time or did not build: whatever ran says why.
			r.counts.failed++
			for key, left := range r.tests {
				if key[0] == e.Package && key[1] != "" {
					fmt.Fprint(r.out, left.output.String())
				}
			}
		}
		fmt.Fprint(r.out, t.output.String())
	}
	for key := range r.tests {
		if key[0] == e.Package {
			delete(r.tests, key)
		}
	}
}

// longestFault is how much of a line is said again. Bytes.
const longestFault = 300

// faults returns the lines that a failed test itself said: "file_test.go:12: text".
func faults(e event, output string) []string {
	list := []string{"FAILED " + e.Package + "." + e.Test}
	for line := range strings.Lines(output) {
		if line = strings.TrimRight(line, "\n"); strings.Contains(line, "_test.go:") {
			list = append(list, line[:min(len(line), longestFault)])
		}
	}
	return list
}

// repeat says at the end, where it is seen, what failed.
func (r *reader) repeat() {
	for _, line := range r.faults {
		fmt.Fprintln(r.out, line)
	}
}

// reason returns what a skipped test said: its last line that is not go test's own.
func reason(output string) string {
	why := "no reason"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		why = line
		// "file_test.go:12: text"
		if _, text, ok := strings.Cut(line, ": "); ok {
			why = text
		}
	}
	return why
}
