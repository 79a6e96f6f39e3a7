package e2e

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // makes what the program lookup reads

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/socketmap"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// sources are the tables of a system: a compiled one, a SQLite file and a server.
type sources struct {
	s      *suite.Suite
	sqlite string // path
	socket string // path
}

// prepareSources makes a system whose aliases are in three sources. The server is not
// there yet.
func prepareSources(t *testing.T) *sources {
	t.Helper()
	k := &sources{}
	k.s = prepare(t, nil, func(s *suite.Suite) {
		k.sqlite, k.socket = filepath.Join(s.Dir, "users.sqlite"), filepath.Join(s.Dir, "map")
		s.Settings = map[string]string{
			"ALIASES":    `"db:aliases.db sqlite:aliases.sqlite socket:unix:` + k.socket + `:users"`,
			"LOOKUPKEEP": "0",
		}
		s.Files["aliases"] = "viadb: alice\n"
		s.Files["aliases.sqlite"] = "database = " + k.sqlite + "\nquery = SELECT value FROM users WHERE name = :key\n"
	})
	db, err := sql.Open("sqlite", k.sqlite)
	assert.Must(t, err)
	// \bob is bob's mailbox: no further source is asked for bob.
	_, err = db.Exec(`CREATE TABLE users (name TEXT PRIMARY KEY, value TEXT); INSERT INTO users VALUES ('viasql', '\bob')`)
	assert.Must(t, errors.Join(err, db.Close(), os.Chmod(k.sqlite, 0o644)))
	zmctl(t, k.s, "newdb", "aliases")
	return k
}

// serve starts the server, which knows viasocket.
func (k *sources) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", k.socket)
	assert.Must(t, err)
	assert.Must(t, os.Chmod(k.socket, 0o777))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = socketmap.Serve(c, c, func(name, key string) socketmap.Reply { // it ends when the client does
					if name == "users" && key == "viasocket" {
						return socketmap.Reply{Status: socketmap.OK, Text: "alice, bob"}
					}
					return socketmap.Reply{Status: socketmap.NotFound}
				})
			}()
		}
	}()
}

// M47: aliases from a compiled table, a SQLite file and a server, asked in this order; a
// compiled table that is replaced is used at once.
func TestAliasesComeFromEverySource(t *testing.T) {
	t.Parallel()
	k := prepareSources(t)
	k.serve(t)
	begin(t, k.s)
	send := func(to string) { submit(t, k.s, "Subject: "+to+"\n\n", "-f", "alice@mta.example", to+"@mta.example") }
	send("viadb")
	send("viasql")
	awaitMail(t, k.s, "alice", 1)
	awaitMail(t, k.s, "bob", 1)
	send("viasocket")
	awaitMail(t, k.s, "alice", 2)
	awaitMail(t, k.s, "bob", 2)
	// A name that no source has is reported to the sender.
	send("nobody")
	wantIn(t, string(bytes.Join(awaitMail(t, k.s, "alice", 3), nil)), "nobody@mta.example", "5.1.1")
	write(t, filepath.Join(filepath.Dir(k.s.Config()), "aliases"), "viadb: bob\nnew: bob\n")
	zmctl(t, k.s, "newdb", "aliases")
	send("viadb")
	send("new")
	awaitMail(t, k.s, "bob", 4)
	awaitEmpty(t, k.s)
}

// M10, M47: mail is deferred while a source fails that it needs, also for unknown names; when the
// source works again, the mail is delivered.
func TestSourceThatFailsDefersUntilItIsMended(t *testing.T) {
	t.Parallel()
	k := prepareSources(t)
	begin(t, k.s)
	send := func(to string) { submit(t, k.s, "Subject: "+to+"\n\n", "-f", "alice@mta.example", to+"@mta.example") }
	deferred := func(to, reason string) {
		t.Helper()
		send(to)
		e := event(t, k.s, "deferred", "program", "router", "name", ".aliases", "reason", reason)
		wantIn(t, zmctl(t, k.s, "queue"), e.Get("id"))
		k.s.Forget()
	}
	// The server is not there; names that the sources before it have are not its concern.
	deferred("viasocket", k.socket)
	deferred("nobody", k.socket)
	send("viasql")
	awaitMail(t, k.s, "bob", 1)
	k.serve(t)
	resubmitted(t, k.s)
	awaitMail(t, k.s, "bob", 2)
	wantIn(t, string(bytes.Join(awaitMail(t, k.s, "alice", 2), nil)), "nobody@mta.example", "5.1.1")

	// The database is away.
	assert.Must(t, os.Rename(k.sqlite, k.sqlite+"~"))
	k.s.Forget()
	deferred("viasql", "no such file")
	assert.Must(t, os.Rename(k.sqlite+"~", k.sqlite))
	resubmitted(t, k.s)
	awaitMail(t, k.s, "bob", 3)

	// The helper process that reads it is killed: mail goes on.
	for _, p := range processes(t, k.s) {
		if p.Name == "lookup" {
			assert.Must(t, p.Kill())
		}
	}
	send("viasql")
	awaitMail(t, k.s, "bob", 4)

	// The compiled table is cut short.
	db := filepath.Join(filepath.Dir(k.s.Config()), "aliases.db")
	assert.Must(t, os.Truncate(db, 5000))
	k.s.Forget()
	deferred("viadb", "aliases.db")
	assert.Must(t, os.Remove(db))
	zmctl(t, k.s, "newdb", "aliases")
	resubmitted(t, k.s)
	awaitMail(t, k.s, "alice", 3)
	awaitEmpty(t, k.s)
}

// members returns a list's file.
func members(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "user%d@h%d.example\n", i, i%10)
	}
	return b.String()
}

// A message to two lists of 100,000 members in all, half of which are on both: each member gets it
// once, there is one body, and the router's memory does not grow with the lists.
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
	awaitFor(t, s, 3*patience, "an empty postoffice", func() (bool, error) {
		left, err := s.Left()
		return len(left) == 0, err
	})
	got := map[string]int{}
	senders := map[string]int{}
	for _, m := range sink.Messages() {
		for _, r := range m.Recipients {
			got[r]++
			senders[m.From]++
		}
	}
	assert.Equal(t, len(got), all)
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

// Failures of a list's members are reported to its owner, not to the author, who gets one report
// that the list has the message. With VERP each report comes to the owner at an address that
// contains the member.
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
			t.Errorf("the author's DSN parameters were passed on: %s", c)
		}
	}
	// What another host sends back finds the owner.
	submit(t, s, "Subject: report\n\nyou are gone\n", "-f", "<>", list[0].From)
	back := awaitMail(t, s, "alice", 2)
	if all := string(back[0]) + string(back[1]); !strings.Contains(all, "you are gone") {
		t.Errorf("the owner has\n%s", all)
	}
	assert.Equal(t, len(awaitMail(t, s, "bob", 1)), 1)
}
