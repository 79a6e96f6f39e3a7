// Testsummary runs go test with the given arguments and prints what a reader needs:
// a line for each package, the output of what failed, the reason of what was
// skipped, and at the end "N passed, N failed, N skipped". It exits with 1 if
// anything failed.
//
//	go run ./scripts/testsummary -race -shuffle=on ./internal/...
//
// With RETRY=n in the environment up to n failed tests are run again, each alone, and one that
// passes then counts as passed and is named as flaky: .ci/run does so, because a machine that
// is busy with something else for a moment must not stop a change.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

func main() {
	counts, names, err := run(os.Args[1:], os.Stdout)
	if most, _ := strconv.Atoi(os.Getenv("RETRY")); err == nil && counts.failed == len(names) && len(names) <= most {
		counts = again(counts, names, os.Args[1:], os.Stdout)
	}
	fmt.Println(counts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	if err != nil || counts.failed > 0 {
		os.Exit(1)
	}
}

// run starts go test and reads its events. go test's own exit code adds nothing to
// them, but for a failure that made no event.
func run(args []string, out io.Writer) (counts, [][2]string, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return counts{}, nil, err
	}
	if err := cmd.Start(); err != nil {
		return counts{}, nil, err
	}
	c, names, err := summarise(events, out)
	if err != nil {
		return c, names, fmt.Errorf("read the events of go test: %w", err)
	}
	if err := cmd.Wait(); err != nil && c.failed == 0 {
		return c, names, fmt.Errorf("go test: %w", err)
	}
	return c, names, nil
}

// again runs failed tests once more, each alone, and returns the counts with those that pass.
func again(c counts, names [][2]string, args []string, out io.Writer) counts {
	var flags []string
	for _, flag := range []string{"-race", "-short"} {
		if slices.Contains(args, flag) {
			flags = append(flags, flag)
		}
	}
	for _, name := range names {
		top, _, _ := strings.Cut(name[1], "/")
		fmt.Fprintf(out, "again, alone: %s.%s\n", name[0], top)
		second, _, err := run(append(flags, "-count=1", "-run", "^"+top+"$", name[0]), out)
		if err == nil && second.failed == 0 && second.passed > 0 {
			fmt.Fprintf(out, "FLAKY %s.%s: it failed once and passed alone\n", name[0], name[1])
			c.failed--
			c.passed++
		}
	}
	return c
}
