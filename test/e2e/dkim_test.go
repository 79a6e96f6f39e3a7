package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// newkey makes a key by zmctl, adds it to the file dkim and gives its record.
func newkey(t *testing.T, s *suite.Suite, domain, selector, kind string) string {
	t.Helper()
	out, err := s.Command("zmctl", "dkim", "newkey", "--type", kind, domain, selector).CombinedOutput()
	if err != nil {
		t.Fatalf("newkey: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	f, err := os.OpenFile(filepath.Join(filepath.Dir(s.Config()), "dkim"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	must(t, err)
	_, err = fmt.Fprintln(f, lines[len(lines)-1])
	must(t, errors.Join(err, f.Close()))
	record := ""
	for _, m := range regexp.MustCompile(`"([^"]*)"`).FindAllSubmatch(out, -1) {
		record += string(m[1])
	}
	return record
}

// The whole way with the real programs: zmctl makes the keys, mail of every shape that is
// submitted, or comes from our networks, is signed with both, and both verify at the
// other end; mail of another domain, and what only passes through, is not signed.
func TestMailIsSignedOnItsWayOut(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) { s.Settings = map[string]string{"SIGNNETS": "192.0.2.0/24"} })
	records := map[string]string{
		"r1._domainkey.signed.example": newkey(t, s, "signed.example", "r1", "rsa"),
		"e1._domainkey.signed.example": newkey(t, s, "signed.example", "e1", "ed25519"),
	}
	begin(t, s)
	keys := &signer{records: records}
	check := func(name string, m *peer.Message, want int) {
		t.Helper()
		if got, err := keys.valid(m.Data); got != want || err != nil {
			t.Errorf("%s: %d signatures verify, want %d: %v\n%s", name, got, want, err, abbreviate(string(m.Data)))
		}
	}
	n := 0
	for name, text := range signedMessages {
		submit(t, s, text, "-f", "bob@signed.example", "far@sink.example")
		check(name, arrived(t, sink, n), 2)
		n++
	}
	submit(t, s, "From: bob@elsewhere.example\nSubject: x\n\nbody\n", "-f", "bob@signed.example", "far@sink.example")
	check("another domain", arrived(t, sink, n), 0)
	n++
	sendSMTP(t, s, "bob@signed.example", "far@sink.example", "From: bob@signed.example\nSubject: x\n\nbody\n")
	check("a client that is in RELAYNETS, and not in SIGNNETS", arrived(t, sink, n), 0)
	awaitEmpty(t, s)
	exits(t, s, 0, "zmctl", "check-config")
	must(t, os.Remove(filepath.Join(filepath.Dir(s.Config()), "keys", "e1.signed.example.pem")))
	exits(t, s, 78, "zmctl", "check-config")
}
