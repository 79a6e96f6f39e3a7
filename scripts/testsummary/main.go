// Testsummary runs go test with the given arguments and prints what a reader needs:
// a line for each package, the output of what failed, the reason of what was
// skipped, and at the end "N passed, N failed, N skipped". It exits with 1 if
// anything failed.
//
//	go run ./scripts/testsummary -race -shuffle=on ./internal/...
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	counts, err := run(os.Args[1:], os.Stdout)
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
func run(args []string, out io.Writer) (counts, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return counts{}, err
	}
	if err := cmd.Start(); err != nil {
		return counts{}, err
	}
	c, err := summarise(events, out)
	if err != nil {
		return c, fmt.Errorf("read the events of go test: %w", err)
	}
	if err := cmd.Wait(); err != nil && c.failed == 0 {
		return c, fmt.Errorf("go test: %w", err)
	}
	return c, nil
}
