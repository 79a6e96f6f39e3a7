package scheduler

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// PrintExpiry reads lines "CHANNEL HOST" and writes for each "CHANNEL HOST TIME": how
// long mail for it is tried before it is given up, 0s if without end. Threads that no
// clause serves have no line. For programs that look at a postoffice without
// scheduling it.
func (c *Conf) PrintExpiry(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		channel, host, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			continue
		}
		settings := c.Match(channel, host)
		if settings == nil {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s %s %v\n", channel, host, settings.giveUp()); err != nil {
			return fmt.Errorf("print expiry: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("print expiry: read threads: %w", err)
	}
	return nil
}

// giveUp is the shorter of expiry and expiry2, 0 if there is neither.
func (s *Settings) giveUp() time.Duration {
	if s.Expiry2 > 0 && (s.Expiry == 0 || s.Expiry2 < s.Expiry) {
		return s.Expiry2
	}
	return s.Expiry
}
