package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// confFile is a file beside zmailer.conf.
func confFile(s *suite.Suite, name string) string {
	return filepath.Join(filepath.Dir(s.Config()), name)
}

// M47: a compiled table, a text table and lists, by the programs.
func TestMailGoesByTablesListsAndTags(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := prepare(t, sink, func(s *suite.Suite) {
		s.Users = append(s.Users, "lena")
		s.Settings = map[string]string{"ALIASES": `"aliases db:more.db"`, "SUBADDRESS": "+"}
		s.Files["aliases"] = "sales: bob\nowner-news: lena\n"
		s.Files["more"] = "shop: sales+shop\nsales: alice\n"
		s.Files["lists/news"] = "#!verp\nann@away.example\nben@away.example\n"
	})
	if said, code := call(t, s, "zmctl", "newdb", "--kind", "aliases", confFile(s, "more"), confFile(s, "more.db")); code != 0 {
		t.Fatalf("newdb: %d: %s", code, said)
	}
	begin(t, s)
	submit(t, s, "Subject: tables\n\nx\n", "-f", "alice@mta.example", "shop@mta.example", "bob+tag@mta.example")
	event(t, s, "delivered", "rcpt", "bob@mta.example")
	event(t, s, "delivered", "rcpt", "bob+tag@mta.example")
	awaitMail(t, s, "bob", 1) // one copy: a tag changes nothing

	// A list: its members' mail is from its owner, whom the answers reach.
	submit(t, s, "Subject: list\n\nx\n", "-f", "alice@mta.example", "news@mta.example")
	await(t, s, "both members' mail", func() (bool, error) { return len(sink.Messages()) >= 2, nil })
	for _, m := range sink.Messages() {
		if !strings.HasPrefix(m.From, "owner-news+") || !strings.HasSuffix(m.From, "=away.example@mta.example") {
			t.Errorf("sender of a member's mail: got %s, want owner-news+member=away.example@mta.example", m.From)
		}
		submit(t, s, "Subject: bounce\n\nx\n", "-f", "", m.From)
	}
	submit(t, s, "Subject: help\n\nx\n", "-f", "alice@mta.example", "news-request@mta.example")
	awaitMail(t, s, "lena", 3)
	stop(t, s)
}

// A loop's chain is in the report, with file and line.
func TestReportOnALoopNamesItsChain(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Files["aliases"] = "# a ring\nring: \"round\"\nround: ring\n"
	})
	submit(t, s, "Subject: loop\n\nx\n", "-f", "alice@mta.example", "ring@mta.example")
	mail := awaitMail(t, s, "alice", 1)
	aliases := confFile(s, "aliases")
	chain := fmt.Sprintf("ring@mta.example (%s:2) -> round (%s:3) -> ring", aliases, aliases)
	text := strings.ReplaceAll(string(mail[0]), "\n ", " ")
	wantIn(t, strings.ReplaceAll(text, "\n\t", " "), "5.4.6", chain)
	stop(t, s)
}

// M48: what everybody may write has no programs run; the rest of the list goes on.
func TestProgramOfAListThatEverybodyWritesIsRefused(t *testing.T) {
	t.Parallel()
	made := ""
	s := prepare(t, nil, func(s *suite.Suite) {
		made = filepath.Join(s.Dir, "made")
		s.Files["lists/open"] = "bob\n\"|touch " + made + "\"\n/" + strings.TrimPrefix(filepath.Join(s.Dir, "file"), "/") + "\n"
		s.Files["aliases"] = "owner-open: alice\n"
	})
	if err := os.Chmod(confFile(s, "lists/open"), 0o666); err != nil {
		t.Fatal(err)
	}
	begin(t, s)
	submit(t, s, "Subject: open\n\nx\n", "-f", "bob@mta.example", "open@mta.example")
	awaitMail(t, s, "bob", 1)
	mail := awaitMail(t, s, "alice", 1) // whom the list belongs to gets the report
	text := strings.ReplaceAll(string(mail[0]), "\n ", " ")
	wantIn(t, strings.ReplaceAll(text, "\n\t", " "), "5.7.1", "|touch "+made, confFile(s, "lists/open")+" may be written by everybody")
	event(t, s, "target-refused", "where", confFile(s, "lists/open")+":2")
	stop(t, s)
	for _, name := range []string{made, filepath.Join(s.Dir, "file")} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s was made", name)
		}
	}
}

// A source that cannot be asked is no reason to refuse mail.
func TestSourceThatIsDownDefersMail(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"ALIASES": "\"aliases socket:unix:" + filepath.Join(s.Dir, "users.sock") + "\""}
		s.Files["aliases"] = "sales: bob@mta.example\n"
	})
	submit(t, s, "Subject: waits\n\nx\n", "-f", "alice@mta.example", "sales@mta.example")
	event(t, s, "deferred")
	left := only(t, s, "deferred")
	if !strings.HasSuffix(left, ".aliases") {
		t.Errorf("deferred/: got %s, want a name that ends in .aliases", left)
	}
	// The administrator does without it.
	configure(t, s, "zmailer.conf", strings.ReplaceAll(read(t, s.Config()), "ALIASES=", "#ALIASES="))
	stop(t, s)
	restart(t, s)
	zmctl(t, s, "resubmit", "all")
	awaitMail(t, s, "bob", 1)
	stop(t, s)
}

// A user's own aliases: a copy for him, the mail for another; one that is not safe is
// passed over, and the mail is in his mailbox.
func TestForwardIsFollowedUnlessOthersMayWriteIt(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"FORWARD": filepath.Join(s.Dir, "conf", "forward", "%u")}
		s.Files["forward/alice"] = "\\alice, bob\n"
	})
	submit(t, s, "Subject: both\n\nx\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	awaitMail(t, s, "bob", 1)
	if err := os.Chmod(confFile(s, "forward/alice"), 0o664); err != nil {
		t.Fatal(err)
	}
	submit(t, s, "Subject: hers\n\nx\n", "-f", "bob@mta.example", "alice@mta.example")
	event(t, s, "forward-ignored", "user", "alice")
	awaitMail(t, s, "alice", 2)
	stop(t, s)
	if mail, err := suite.Mail(s.Maildir("bob")); err != nil || len(mail) != 1 {
		t.Errorf("bob: got %d messages, %v, want the one of before", len(mail), err)
	}
}
