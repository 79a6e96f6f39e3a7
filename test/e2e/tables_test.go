package e2e

import (
	"bytes"
	"database/sql"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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
	if err != nil {
		t.Fatal(err)
	}
	// \bob is bob's mailbox: no further source is asked for bob.
	_, err = db.Exec(`CREATE TABLE users (name TEXT PRIMARY KEY, value TEXT); INSERT INTO users VALUES ('viasql', '\bob')`)
	if err := errors.Join(err, db.Close(), os.Chmod(k.sqlite, 0o644)); err != nil {
		t.Fatal(err)
	}
	wantIn(t, zmctl(t, k.s, "newdb", "aliases"), "aliases.db: 1 entry")
	return k
}

// serve starts the server, which knows viasocket.
func (k *sources) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", k.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(k.socket, 0o777); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			go func() {
				defer c.Close()
				_ = socketmap.Serve(c, c, func(name, key string) socketmap.Reply {
					if name == "users" && key == "viasocket" {
						return socketmap.Reply{Status: socketmap.OK, Text: "alice, bob"}
					}
					return socketmap.Reply{Status: socketmap.NotFound}
				})
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	})
}

// deliver waits until what was deferred is delivered; it is given back as long as the
// source is left alone for a moment.
func (k *sources) deliver(t *testing.T) {
	t.Helper()
	await(t, k.s, "delivery after resubmit", func() (bool, error) {
		if left, err := k.s.Left(); err != nil || len(left) == 0 {
			return true, err
		}
		_, _ = call(t, k.s, "zmctl", "resubmit", "all")
		return false, nil
	})
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
	// All sources say that there is no such name, which is what its sender hears.
	send("nobody")
	wantIn(t, string(bytes.Join(awaitMail(t, k.s, "alice", 3), nil)), "nobody@mta.example", "5.1.1")
	write(t, filepath.Join(filepath.Dir(k.s.Config()), "aliases"), "viadb: bob\nnew: bob\n")
	zmctl(t, k.s, "newdb", "aliases")
	send("viadb")
	send("new")
	awaitMail(t, k.s, "bob", 4)
	awaitEmpty(t, k.s)
}

// M10, M47: what a source that is down, gone or killed would have to say is deferred,
// also for names that nobody has; when it is mended, the mail is delivered.
func TestSourceThatFailsDefersUntilItIsMended(t *testing.T) {
	t.Parallel()
	k := prepareSources(t)
	begin(t, k.s)
	send := func(to string) { submit(t, k.s, "Subject: "+to+"\n\n", "-f", "alice@mta.example", to+"@mta.example") }
	deferred := func(to, reason string) {
		t.Helper()
		send(to)
		e := event(t, k.s, "deferred", "program", "router", "name", ".aliases", "reason", reason)
		wantIn(t, zmctl(t, k.s, "queue"), e.Get("id"), "deferred: aliases")
		k.s.Forget()
	}
	// The server is not there; names that the sources before it have are not its concern.
	deferred("viasocket", k.socket)
	deferred("nobody", k.socket)
	send("viasql")
	awaitMail(t, k.s, "bob", 1)
	k.serve(t)
	k.deliver(t)
	awaitMail(t, k.s, "bob", 2)
	wantIn(t, string(bytes.Join(awaitMail(t, k.s, "alice", 2), nil)), "nobody@mta.example", "5.1.1")

	// The database is away.
	if err := os.Rename(k.sqlite, k.sqlite+"~"); err != nil {
		t.Fatal(err)
	}
	k.s.Forget()
	deferred("viasql", "no such file")
	if err := os.Rename(k.sqlite+"~", k.sqlite); err != nil {
		t.Fatal(err)
	}
	k.deliver(t)
	awaitMail(t, k.s, "bob", 3)

	// The program that asks it is killed, which nobody notices but the log.
	killed := 0
	for _, p := range processes(t, k.s) {
		if p.Name == "lookup" {
			killed++
			if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	if killed == 0 {
		t.Error("no lookup runs")
	}
	send("viasql")
	awaitMail(t, k.s, "bob", 4)

	// The compiled table is cut short.
	db := filepath.Join(filepath.Dir(k.s.Config()), "aliases.db")
	if err := os.Truncate(db, 5000); err != nil {
		t.Fatal(err)
	}
	k.s.Forget()
	deferred("viadb", "aliases.db")
	if err := os.Remove(db); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	zmctl(t, k.s, "newdb", "aliases")
	k.deliver(t)
	awaitMail(t, k.s, "alice", 3)
	awaitEmpty(t, k.s)
}
