package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// rowOf reports whether a row of the page's tables has a command of Postfix in its first cell and
// one of ours in its second.
func rowOf(page, theirs, ours string) bool {
	for line := range strings.Lines(page) {
		cells := strings.Split(line, " | ")
		if len(cells) > 1 && strings.Contains(cells[0], theirs) && strings.Contains(cells[1], "`"+ours) {
			return true
		}
	}
	return false
}

// Each command that an operator of Postfix types has a row in the page, and ours in it works on a
// message that waits.
func TestCommandsOfPostfixHaveCounterparts(t *testing.T) {
	t.Parallel()
	page := string(assert.Get(os.ReadFile("../../docs/coming-from-postfix.md"))(t))
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	other, _ := waits(t, s)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	for _, c := range []struct{ theirs, row, run, says string }{
		{"mailq`", "zmctl queue`", "zmctl queue", "one@sink.example"},
		{"`postqueue -p`", "zmctl queue`", "zmctl queue", "451 4.2.1"},
		{"`postqueue -j`", "zmctl queue --json`", "zmctl queue --json", "one@sink.example"},
		{"`sendmail -bp`", "submit -bp`", "submit -bp", "one@sink.example"},
		{"`sendmail -bv ADDRESS`", "submit -bv ADDRESS`", "submit -bv alice@mta.example", "alice@mta.example"},
		{"`qshape deferred`", "zmctl queue --ages`", "zmctl queue --ages", ""},
		{"`postcat -q ID`", "zmctl show ID`", "zmctl show ID", "Subject: x"},
		{"`postconf -n`", "grep -v '^#' /etc/zmailer/zmailer.conf`", "grep -v ^# CONFIG", "POSTOFFICE="},
		{"`postfix check`", "zmctl check-config`", "zmctl check-config", ""},
		{"`postfix check`", "zmctl check`", "zmctl check", ""},
		{"`postmap -q KEY hash:table`", "zmctl route ADDRESS`", "zmctl route alice@mta.example", "alice"},
		{"`postfix reload`", "zmctl reload`", "zmctl reload", ""},
		{"`postsuper -h ID`", "zmctl hold ID`", "zmctl hold --yes ID", ""},
		{"`postsuper -H ID`", "zmctl release ID`", "zmctl release --yes ID", ""},
		{"`postqueue -i ID`", "zmctl retry ID`", "zmctl retry --yes ID", ""},
		{"`postqueue -s SITE`", "zmctl flush HOST`", "zmctl flush --yes HOST", ""},
		{"`postqueue -f`", "zmctl retry --all --yes`", "zmctl retry --all --yes", ""},
		{"`sendmail -q`", "zmctl retry --all --yes`", "submit -q", ""},
		{"`postsuper -r ID`", "zmctl reroute ID`", "zmctl reroute --yes ID", ""},
		{"`postsuper -d ID`", "zmctl remove ID`", "zmctl remove --yes OTHER", ""},
	} {
		if !rowOf(page, c.theirs, c.row) {
			t.Errorf("no row has %s and %s", c.theirs, c.row)
		}
		args := strings.Fields(strings.NewReplacer(" ID", " "+id, " OTHER", " "+other, " HOST", " "+host, " CONFIG", " "+s.Config()).Replace(c.run))
		if args[0] == "grep" {
			wantIn(t, string(assert.Get(exec.Command(args[0], args[1:]...).Output())(t)), c.says)
			continue
		}
		wantIn(t, exits(t, s, 0, args[0], args[1:]...), c.says)
	}
	// sendmail -bs: the protocol on standard input.
	if !rowOf(page, "`sendmail -bs`", "submit -bs`") {
		t.Error("no row has sendmail -bs")
	}
	bs := s.Command("submit", "-bs")
	bs.Stdin = strings.NewReader("EHLO x\r\nMAIL FROM:<alice@mta.example>\r\nRCPT TO:<bob@mta.example>\r\nDATA\r\nSubject: bs\r\n\r\nx\r\n.\r\nQUIT\r\n")
	assert.Must(t, bs.Run())
	awaitMail(t, s, "bob", 1)
	if !rowOf(page, "`postfix start`, `stop`", "zmctl stop`") {
		t.Error("no row has postfix stop")
	}
}
