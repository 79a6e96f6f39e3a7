package taproto

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Step is one line of a recorded conversation between a scheduler and an agent.
type Step struct {
	Kind StepKind
	// Said is what one write brought: a line or several, newlines included.
	Said string
	// Opens is the path of a file that the agent opened, from its working directory.
	Opens string
}

// StepKind is which side acted.
type StepKind uint8

const (
	AgentSaid StepKind = iota
	SchedulerSaid
	AgentOpened
)

// Lines are those of Said, without newlines.
func (s Step) Lines() []string {
	return strings.Split(strings.TrimSuffix(s.Said, "\n"), "\n")
}

// ReadTranscript reads a conversation that was recorded with its control characters
// written as \t, \n, \r or in octal. Tests of either side replay it.
func ReadTranscript(r io.Reader) ([]Step, error) {
	var steps []Step
	in := bufio.NewScanner(r)
	in.Buffer(nil, MaxLine)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		var s Step
		var err error
		if said, ok := strings.CutPrefix(line, "TA->SCHED "); ok {
			s.Said, err = unescape(said)
		} else if said, ok := strings.CutPrefix(line, "SCHED->TA "); ok {
			s.Kind = SchedulerSaid
			s.Said, err = unescape(said)
		} else if path, ok := strings.CutPrefix(line, "   opens "); ok {
			s.Kind = AgentOpened
			var quoted string
			if quoted, err = strconv.QuotedPrefix(path); err == nil {
				s.Opens, err = strconv.Unquote(quoted)
			}
		} else {
			err = fmt.Errorf("unknown line %.60q", line)
		}
		if err != nil {
			return nil, fmt.Errorf("transcript line %d: %w", n, err)
		}
		steps = append(steps, s)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("transcript: %w", err)
	}
	return steps, nil
}

// unescape undoes \t, \n, \r, \\ and one to three octal digits.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		octal := i
		for i < len(s) && i < octal+3 && s[i] >= '0' && s[i] <= '7' {
			i++
		}
		if i > octal {
			c, err := strconv.ParseUint(s[octal:i], 8, 8)
			if err != nil {
				return "", fmt.Errorf("escape: %w", err)
			}
			b.WriteByte(byte(c))
			i--
			continue
		}
		at := strings.IndexByte(`tnr\`, s[min(i, len(s)-1)])
		if i == len(s) || at < 0 {
			return "", fmt.Errorf("unknown escape in %.60q", s)
		}
		b.WriteByte("\t\n\r\\"[at])
	}
	return b.String(), nil
}
