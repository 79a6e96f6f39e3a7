package e2e

import (
	"bytes"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // makes what the program lookup reads

	"zmailer/internal/wire/socketmap"
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
	must(t, err)
	// \bob is bob's mailbox: no further source is asked for bob.
	_, err = db.Exec(`CREATE TABLE users (name TEXT PRIMARY KEY, value TEXT); INSERT INTO users VALUES ('viasql', '\bob')`)
	must(t, errors.Join(err, db.Close(), os.Chmod(k.sqlite, 0o644)))
	zmctl(t, k.s, "newdb", "aliases")
	return k
}

// serve starts the server, which knows viasocket.
func (k *sources) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", k.socket)
	must(t, err)
	must(t, os.Chmod(k.socket, 0o777))
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
	must(t, os.Rename(k.sqlite, k.sqlite+"~"))
	k.s.Forget()
	deferred("viasql", "no such file")
	must(t, os.Rename(k.sqlite+"~", k.sqlite))
	resubmitted(t, k.s)
	awaitMail(t, k.s, "bob", 3)

	// The helper process that reads it is killed: mail goes on.
	for _, p := range processes(t, k.s) {
		if p.Name == "lookup" {
			must(t, p.Kill())
		}
	}
	send("viasql")
	awaitMail(t, k.s, "bob", 4)

	// The compiled table is cut short.
	db := filepath.Join(filepath.Dir(k.s.Config()), "aliases.db")
	must(t, os.Truncate(db, 5000))
	k.s.Forget()
	deferred("viadb", "aliases.db")
	must(t, os.Remove(db))
	zmctl(t, k.s, "newdb", "aliases")
	resubmitted(t, k.s)
	awaitMail(t, k.s, "alice", 3)
	awaitEmpty(t, k.s)
}
