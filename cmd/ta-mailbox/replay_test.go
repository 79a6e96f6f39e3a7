package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// said is a line of a recorded conversation.
type said struct {
	scheduler bool
	line      string // without its newline
}

// transcript reads a recorded conversation: what was said stands with its control
// characters as \t, \r, \n and in octal.
func transcript(t *testing.T, name string) []said {
	t.Helper()
	f, err := os.Open(name)
	assert.Must(t, err)
	defer f.Close()
	var all []said
	in := bufio.NewScanner(f)
	for in.Scan() {
		who, text, _ := strings.Cut(in.Text(), " ")
		if who != "TA->SCHED" && who != "SCHED->TA" {
			continue // what the agent opened
		}
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			t.Fatalf("%s: %v", in.Text(), err)
		}
		for line := range strings.Lines(text) {
			all = append(all, said{who == "SCHED->TA", strings.TrimSuffix(line, "\n")})
		}
	}
	if err := in.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%s: %d lines, %v", name, len(all), err)
	}
	return all
}

// What ZMailer's own mailbox agent and its scheduler said to each other: ours says
// the same, but for the text of an answer.
func TestRecordedConversationIsReplayed(t *testing.T) { // M32
	all := transcript(t, filepath.Join("testdata", "mailbox-1202.txt"))
	s := newSpool(t, "$MAIL/%u")
	s.plant(all)
	p := s.start()
	for i, step := range all {
		if step.scheduler {
			p.say(step.line + "\n")
		} else if got := p.hear(); fixed(got) != fixed(step.line) {
			t.Errorf("line %d: got %q, want %q", i, got, step.line)
		}
	}
	assert.Equal(t, p.end(), 0, "exit code; standard error: %s", p.stderr.String())
	// Two messages for root, one of them as ZMailer wrote it; three for a file.
	for name, want := range map[string]int{"root": 2, "archive": 3} {
		b, err := os.ReadFile(filepath.Join(s.mail, name))
		s.must(err)
		assert.Equal(t, strings.Count("\n"+string(b), "\nFrom s"), want, "%s messages %s", name, b)
	}
}

// fixed is a line without the free text of an answer.
func fixed(line string) string {
	if i := strings.Index(line, "\tok3 "); i >= 0 {
		return line[:i+len("\tok3 ")]
	}
	return line
}

// plant writes a message and a specification for each delivery of a conversation,
// with the recipient at the offset that the answer names.
func (s *spool) plant(all []said) {
	s.Helper()
	var name, host string
	for _, step := range all {
		switch {
		case step.scheduler && step.line != "#idle":
			name, host, _ = strings.Cut(step.line, "\t")
		case !step.scheduler && step.line != "#hungry":
			var number, offset int
			if _, err := fmt.Sscanf(step.line, "%d/%d\t", &number, &offset); err != nil || filepath.Base(name) != strconv.Itoa(number) {
				s.Fatalf("got line %q for %q", step.line, name)
			}
			s.plantOne(name, host, offset)
		}
	}
}

func (s *spool) plantOne(name, host string, offset int) {
	s.Helper()
	number, address := filepath.Base(name), host
	if host == "file.nobody" {
		address = filepath.Join(s.mail, "archive")
	}
	message := []byte(testEnvelope + testHeader + "body\n")
	spec := specification(number, host, address, offset)
	if number == "10117779" {
		// This one is there as ZMailer wrote it.
		var err1, err2 error
		message, err1 = os.ReadFile(filepath.Join("testdata", "02-multi", "router-file"))
		spec, err2 = os.ReadFile(filepath.Join("testdata", "02-multi", "transport-before"))
		s.must(err1)
		s.must(err2)
	}
	if !strings.HasPrefix(string(spec[offset:]), "r  ") {
		s.Fatalf("%s: no recipient at offset %d", name, offset)
	}
	for dir, b := range map[string][]byte{"queue": message, "transport": spec} {
		s.must(os.MkdirAll(filepath.Join(s.dir, dir, filepath.Dir(name)), 0o755))
		s.must(os.WriteFile(filepath.Join(s.dir, dir, name), b, 0o600))
	}
}
