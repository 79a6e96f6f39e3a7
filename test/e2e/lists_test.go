package e2e

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// members is a list's file.
func members(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "user%d@h%d.example\n", i, i%10)
	}
	return b.String()
}

// A message to two lists of 100,000 members in all, half of which are on both: everybody
// gets it once, there is one body, and the router does not grow with it.
func TestMessageToAHundredThousand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	const all, both = 100_000, 50_000
	sink := newSink(t, &peer.Sink{Discard: true})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["lists/news"] = members(0, both+(all-both)/2)
		s.Files["lists/pets"] = members((all-both)/2, all)
	})
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "news@mta.example", "pets@mta.example")
	routed := event(t, s, "routed")
	if got := routed.Get("rcpts"); got != "100000" && got != "1e+05" {
		t.Errorf("%s recipients", got)
	}
	router, scheduler := oneOf(t, s, "router").Peak(), oneOf(t, s, "scheduler")
	awaitEmpty(t, s)
	got := map[string]int{}
	senders := map[string]int{}
	for _, m := range sink.Messages() {
		for _, r := range m.Recipients {
			got[r]++
			senders[m.From]++
		}
	}
	if len(got) != all {
		t.Errorf("%d recipients got it, want %d", len(got), all)
	}
	for r, n := range got {
		if n > 1 {
			t.Errorf("%s got it %d times", r, n)
		}
	}
	if senders["owner-news@mta.example"] != all/2+both/2 || senders["owner-pets@mta.example"] != all-all/2-both/2 {
		t.Errorf("senders %v", senders)
	}
	messages, connections := sink.Count()
	t.Logf("%d transactions on %d connections; the router has had %d MB, the scheduler %d MB", messages, connections, router>>20, scheduler.Peak()>>20)
	if router > 64<<20 {
		t.Errorf("the router has had %d MB", router>>20)
	}
}

// What a list's member does not get is told to the owner, not to the author, who hears
// once that the list has it; and a list with VERP has each report come to the owner under
// an address that names the member.
func TestReportsOfAListGoToItsOwner(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if strings.HasPrefix(address, "gone@") {
			return "550 5.1.1 no such user here"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["lists/pets"] = "#!verp\nann@a.example\ngone@b.example\n"
		s.Files["aliases"] = "owner-pets: alice\n"
	})
	submit(t, s, "From: bob@mta.example\nSubject: cats\n\nbody\n", "-f", "bob@mta.example", "-N", "success,failure", "-V", "QQ1", "-R", "hdrs", "pets@mta.example")
	toOwner := string(awaitMail(t, s, "alice", 1)[0])
	if !strings.Contains(toOwner, "Final-Recipient: rfc822; gone@b.example") && !strings.Contains(toOwner, "Final-Recipient: rfc822;gone@b.example") ||
		!strings.Contains(toOwner, "Action: failed") {
		t.Errorf("the owner's report:\n%s", toOwner)
	}
	for _, secret := range []string{"QQ1", "Original-Recipient"} {
		if strings.Contains(toOwner, secret) {
			t.Errorf("the owner's report has the author's %s", secret)
		}
	}
	toAuthor := string(awaitMail(t, s, "bob", 1)[0])
	if !strings.Contains(toAuthor, "Action: delivered") || !strings.Contains(toAuthor, "pets@mta.example") || !strings.Contains(toAuthor, "QQ1") {
		t.Errorf("the author's report:\n%s", toAuthor)
	}
	for _, member := range []string{"ann@", "gone@", "owner-pets"} {
		if strings.Contains(toAuthor, member) {
			t.Errorf("the author's report names %s", member)
		}
	}
	awaitEmpty(t, s)
	list := sink.Messages()
	if len(list) != 1 || list[0].From != "owner-pets+ann=a.example@mta.example" {
		t.Fatalf("transactions: %+v", list)
	}
	for _, c := range list[0].Commands {
		if strings.Contains(c, "QQ1") || strings.Contains(c, "SUCCESS") || strings.Contains(c, "ORCPT") {
			t.Errorf("the author's wishes went on: %s", c)
		}
	}
	// What another host sends back finds the owner.
	submit(t, s, "Subject: report\n\nyou are gone\n", "-f", "<>", list[0].From)
	back := awaitMail(t, s, "alice", 2)
	if all := string(back[0]) + string(back[1]); !strings.Contains(all, "you are gone") {
		t.Errorf("the owner has\n%s", all)
	}
	if n := len(awaitMail(t, s, "bob", 1)); n != 1 {
		t.Errorf("the author has %d reports, want one", n)
	}
}
