package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

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
	exits(t, s, 0, "zmctl", "newdb", "--kind", "aliases", confFile(s, "more"), confFile(s, "more.db"))
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
	must(t, os.Chmod(confFile(s, "forward/alice"), 0o664))
	submit(t, s, "Subject: hers\n\nx\n", "-f", "bob@mta.example", "alice@mta.example")
	event(t, s, "forward-ignored", "user", "alice")
	awaitMail(t, s, "alice", 2)
	stop(t, s)
	if mail, err := suite.Mail(s.Maildir("bob")); err != nil || len(mail) != 1 {
		t.Errorf("bob: got %d messages, %v, want the one of before", len(mail), err)
	}
}
