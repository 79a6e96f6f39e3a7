package smtpclient

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"zmailer/internal/mail/status"
)

// ends is what came of messages, in short.
func ends(all []sent) []string {
	var list []string
	for _, s := range all {
		text := strings.Join(outcomes(s.results), ", ")
		switch {
		case errors.Is(s.err, ErrStale):
			text = "not begun"
			for _, r := range s.results {
				if r.InDoubt || r.Outcome != status.Deferred {
					text = fmt.Sprintf("not begun, and %+v", r)
				}
			}
		case s.err != nil:
			text = s.err.Error()
		}
		list = append(list, text)
	}
	return list
}

// Del1: each of several messages on a connection has the outcome that is true for it. One
// that finds the connection ended is not begun, to be sent elsewhere at once.
func TestOutcomesOfMessagesOnAConnection(t *testing.T) {
	const (
		taken = "delivered 2.6.0 waiting for the answer to the final dot"
		doubt = "deferred 4.4.2 waiting for the answer to the final dot, in doubt"
	)
	cases := map[string]struct {
		at, answer string // of message 1, of 0 to 2
		want       [3]string
	}{
		"all taken":           {"-", "", [3]string{taken, taken, taken}},
		"message refused":     {".", "554 5.6.0 no", [3]string{taken, "failed 5.6.0 waiting for the answer to the final dot", taken}},
		"RCPT refused":        {"RCPT", "550 5.1.1 no", [3]string{taken, "failed 5.1.1 waiting for the answer to RCPT", taken}},
		"421 to the dot":      {".", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to the final dot", "not begun"}},
		"421, and an answer":  {".", "421 4.3.2 bye\r\n250 2.6.0 taken", [3]string{taken, doubt, "not begun"}},
		"421, and silence":    {".", "421 DEAF", [3]string{taken, doubt, "not begun"}},
		"two answers":         {".", "250 2.6.0 taken\r\n250 2.6.0 taken", [3]string{taken, taken, "not begun"}},
		"two that differ":     {".", "250 2.6.0 taken\r\n554 5.6.0 no", [3]string{taken, doubt, "not begun"}},
		"421 behind it":       {".", "250 2.6.0 taken\r\n421 4.3.2 bye", [3]string{taken, taken, "not begun"}},
		"one and a half":      {".", "250 2.6.0 taken\r\n25", [3]string{taken, doubt, "not begun"}},
		"421 to MAIL":         {"MAIL", "421 4.3.2 bye", [3]string{taken, "not begun", "not begun"}},
		"421 to RCPT":         {"RCPT", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to RCPT", "not begun"}},
		"503 to MAIL":         {"MAIL", "503 5.5.1 nested MAIL", [3]string{taken, "not begun", "not begun"}},
		"354 to MAIL":         {"MAIL", "354 go", [3]string{taken, "not begun", "not begun"}},
		"354 to RCPT":         {"RCPT", "354 go", [3]string{taken, "deferred 4.4.2 waiting for the answer to RCPT", "not begun"}},
		"421 behind the last": {"DATA", "550 5.7.1 no\r\n421 4.7.0 bye", [3]string{taken, "failed 5.7.1 waiting for the answer to DATA", "not begun"}},
		"more than was asked": {"DATA", "550 5.7.1 no\r\n550 5.7.1 no", [3]string{taken, "deferred 4.4.2 waiting for the answer to DATA", "not begun"}},
		"421 to DATA":         {"DATA", "421 4.3.2 bye", [3]string{taken, "deferred 4.3.2 waiting for the answer to DATA", "not begun"}},
		"hangs up at the dot": {".", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"silent at the dot":   {".", "DEAF", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
		"hangs up at DATA":    {"DATA", "HANGUP", [3]string{taken, "deferred 4.4.2 waiting for the answer to DATA", "not begun"}},
		"nonsense at the dot": {".", "done!", [3]string{taken, "deferred 4.4.2 waiting for the answer to the final dot, in doubt", "not begun"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &naive{extensions: pipelining}
				message := -1
				n.answer = func(command string) string {
					verb, _, _ := strings.Cut(command, " ")
					if verb == "MAIL" {
						message++
					}
					if message == 1 && verb == c.at {
						return c.answer
					}
					return ""
				}
				conn, _ := farServer(t, n, Config{})
				if got := ends(sendAll(conn, several(3))); !slices.Equal(got, c.want[:]) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}
