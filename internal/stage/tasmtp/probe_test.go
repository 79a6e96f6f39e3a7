package tasmtp

import (
	"context"
	"strings"
	"testing"

	"zmailer/internal/stage/tasmtp/tasmtptest"
)

// Op10: only the reply that there is no such mailbox makes a recipient unknown.
// What a host replies about one recipient says nothing about the others there: a client that
// knows a mailbox that is full would keep all of them from being verified.
func TestProbeTellsAnswersAboutTheHostFromThoseAboutARecipient(t *testing.T) {
	for name, tt := range map[string]struct{ command, reply, want string }{
		"accepted":            {"RCPT", "250 2.1.5 Ok", "deliverable 2.1.5"},
		"refused":             {"RCPT", "550 5.1.1 no", "undeliverable 5.1.1"},
		"disabled":            {"RCPT", "550 5.2.1 closed", "undeliverable 5.2.1"},
		"no enhanced code":    {"RCPT", "550 who is that", "undeliverable 5.0.0"},
		"takes no mail":       {"RCPT", "556 5.1.10 never", "undeliverable 5.1.10"},
		"Exchange Online":     {"RCPT", "550 5.4.1 access denied", "undeliverable 5.4.1"},
		"refused by policy":   {"RCPT", "550 5.7.1 blocked", "unknown 4.7.1"},
		"relaying denied":     {"RCPT", "554 5.7.1 relay access denied", "unknown 4.7.1"},
		"transaction failed":  {"RCPT", "554 no", "unknown 4.0.0"},
		"mailbox full":        {"RCPT", "552 5.2.2 over quota", "unknown 4.2.2"},
		"about the sender":    {"RCPT", "550 5.1.8 bad sender", "unknown 4.1.8"},
		"wants a login":       {"RCPT", "530 5.7.0 authenticate", "unknown 4.7.0"},
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
