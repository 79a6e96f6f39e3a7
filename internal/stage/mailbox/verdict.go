package mailbox

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
)

// Exit codes that mean that the program is not as it should be: EX_CONFIG, and a shell's for
// a command that it cannot run.
const (
	exConfig        = 78
	exNotExecutable = 126
	exNotFound      = 127
)

// result says what a program's end means for its recipient.
func (e *ended) result() agent.Result {
	code, how := e.verdict()
	first, _, _ := strings.Cut(strings.TrimSpace(e.output), "\n")
	words := printable(first)
	// A program may say the status in full, of the class that its exit code means.
	if said, rest, _ := strings.Cut(words, " "); said != "" && code.Class != 2 {
		if c, ok := status.Parse(said); ok && c.Class == code.Class {
			code, words = c, rest
		}
	}
	reply := how
	if code.Class != 2 {
		reply = code.String() + " " + how
	}
	if words != "" {
		reply += ": " + words
	}
	return agent.Result{Outcome: code.Outcome(), Code: code, Reply: reply, Text: how + "\n" + printable(e.output)}
}

// verdict is the status of a program's end, and what it was in words.
func (e *ended) verdict() (status.Code, string) {
	exit := e.state.ExitStatus()
	code, permanent := sysexits[exit]
	switch {
	case e.late:
		return status.SystemTrouble, fmt.Sprintf("the program was killed, it had run for %s", e.limit)
	case e.state.Signaled():
		return status.SystemTrouble, "the program was ended by " + unix.SignalName(e.state.Signal())
	case exit == 0:
		return status.OK, "the program took it"
	case permanent:
	case exit == exConfig, exit == exNotExecutable, exit == exNotFound:
		code = configTrouble
	default: // EX_TEMPFAIL with them
		code = status.SystemTrouble
	}
	return code, fmt.Sprintf("the program exited with %d", exit)
}

// printable has a blank for every control character but the newline, and ? for what is
// no UTF-8.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == unicode.ReplacementChar:
			return '?'
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, s))
}
