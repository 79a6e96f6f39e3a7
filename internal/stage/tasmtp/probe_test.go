package tasmtp

import (
	"context"
	"strings"
	"testing"

	"zmailer/internal/stage/tasmtp/tasmtptest"
)

// What a host replies about one recipient says nothing about the others there: a client that
// knows a mailbox that is full would keep all of them from being verified.
func TestProbeTellsAnswersAboutTheHostFromThoseAboutARecipient(t *testing.T) {
	for name, tt := range map[string]struct{ command, reply, want string }{
		"accepted":            {"RCPT", "250 2.1.5 Ok", "deliverable 2.1.5"},
		"refused":             {"RCPT", "550 5.1.1 no", "undeliverable 5.1.1"},
		"no space for it":     {"RCPT", "452 4.3.1 full", "unknown 4.3.1"},
		"looked up elsewhere": {"RCPT", "451 4.4.3 directory", "unknown 4.4.3"},
		"closing":             {"RCPT", "421 4.3.2 bye", "away 4.3.2"},
		"gone":                {"RCPT", "HANGUP", "away 4.4.2"},
		"the null sender":     {"MAIL", "550 5.7.1 not you", "away 4.7.1"},
		"no service":          {"GREETING", "554 5.3.2 no", "away 4.3.2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := newPair(t, &tasmtptest.Sink{Answer: func(command string) string {
				if strings.HasPrefix(command, tt.command) {
					return tt.reply
				}
				return ""
			}})
			if got := s.relay.Probe(context.Background(), "smtp", "[127.0.0.1]", "bob@there.test").String(); !strings.HasPrefix(got, tt.want+" ") {
				t.Errorf("got %q, want %s", got, tt.want)
			}
		})
	}
}
