package smtpserver

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/session"
)

// M2, S21, and the trap "a local fault answered with 5xx": a fault of ours keeps the
// message with the client and leaves nothing here; when it is over the same connection
// goes on. K12: the trouble is logged once, and once that it is over.
func TestStorageErrorIsAnsweredTemporarily(t *testing.T) {
	_, server := checkstest.Serve(t)
	const lines = 30_000 // more than is held in memory
	for how, change := range map[string]func(*Config){
		"written as it comes": nil,
		"held for checks":     allChecks(server),
		"frozen":              func(c *Config) { c.Access.Dir = files(t, map[string]string{"access": "freeze from=a@example.net\n"}) },
	} {
		for _, op := range []faultfs.Op{faultfs.Open, faultfs.Write, faultfs.WriteAt, faultfs.Chmod, faultfs.Sync, faultfs.Rename} {
			for errno, want := range map[unix.Errno]string{
				unix.ENOSPC: "452 4.3.1", unix.EDQUOT: "452 4.3.1", unix.EIO: "451 4.3.0",
				unix.EMFILE: "451 4.3.0", unix.EEXIST: "451 4.3.0",
			} {
				if how != "written as it comes" && errno != unix.ENOSPC {
					continue
				}
				t.Run(how+", "+string(op)+" "+errno.Error(), func(t *testing.T) {
					r := start(t, change)
					body := plain + strings.Repeat("0123456789\n", lines)
					p := r.greeted()
					fault := r.disk.Fail(op, "*/*", errno, faultfs.Always)
					for range 2 {
						p.begin().content(body, want)
						r.nothing()
					}
					p.begin().chunk(strings.ReplaceAll(body, "\n", "\r\n"), " LAST")
					p.expect(want)
					r.nothing()
					fault.End()
					p.begin().content(body, "250 2.0.0")
					if how != "frozen" && !strings.HasSuffix(r.content(), body) {
						t.Error("the content is another one")
					}
					r.log.Expect(t, 1, "msg=storage-trouble")
					r.log.Expect(t, 1, "msg=storage-recovered")
				})
			}
		}
	}
}

// S21: the chunk in whose time the trouble came is answered with it; those that were sent
// behind it are refused and skipped, whatever is in them.
func TestChunksBehindATroubleAreSkipped(t *testing.T) {
	r := start(t, nil)
	r.disk.Fail(faultfs.Write, "*/*", unix.ENOSPC, faultfs.Always)
	p := r.greeted().begin()
	for _, last := range []string{"", "", " LAST"} {
		p.chunk(strings.Repeat("RSET\r\n", 20<<10), last)
	}
	p.send("NOOP\r\n")
	p.expect("452 4.3.1", "503", "503", "250 2.0.0")
	r.nothing()
}

// S21 with sync=strict: a message in an unsynced directory is not accepted.
func TestUnsyncedDirectoryIsNoAcceptance(t *testing.T) {
	r := start(t, func(c *Config) { c.Strict = true })
	r.disk.Fail(faultfs.SyncDir, "*", unix.EIO, faultfs.Always)
	r.greeted().begin().content(plain, "451")
	r.nothing()
}

// A18: the ledger has exactly the messages that clients got 250 for, before they get it. It
// never stops mail.
func TestLedgerHasTheAcceptedMessages(t *testing.T) {
	r := start(t, nil)
	p := r.greeted()
	id := p.id(p.begin().to("c@example.org").content(plain, "250"))
	book := r.book()
	if got := book.Records[id]; len(book.Records) != 1 || got == nil || got.In != 2 || !got.Open() {
		t.Errorf("got %+v", book.Records)
	}
	full := r.disk.Fail(faultfs.Rename, "*/*", unix.ENOSPC, faultfs.Always)
	p.begin().content(plain, "452")
	full.End()
	if book = r.book(); len(book.Records) != 1 {
		t.Errorf("after a refusal: %+v", book.Records)
	}
	r = start(t, nil)
	r.disk.Fail(faultfs.Any, postoffice.Ledger+"/*", unix.EIO, faultfs.Always)
	p = r.greeted()
	for range 3 {
		p.begin().content(plain, "250")
	}
	r.log.Expect(t, 1, "msg=ledger-trouble")
}

// M2: an incomplete message leaves nothing.
func TestDroppedConnectionLeavesNothing(t *testing.T) {
	large := strings.Repeat("0123456789abcde\r\n", 60_000)
	for name, said := range map[string]string{
		"in DATA":               "DATA\r\nSubject: x\r\n\r\nha",
		"in DATA, large":        "DATA\r\n" + large,
		"before the last CRLF":  "DATA\r\nSubject: x\r\n\r\nhalf\r\n.",
		"between chunks":        "BDAT 6\r\nhalf\r\n",
		"in a chunk":            "BDAT 60\r\nhalf",
		"in the last chunk":     "BDAT 60 LAST\r\nhalf",
		"in a large last chunk": "BDAT 2000000 LAST\r\n" + large,
		"after an empty chunk":  "BDAT 0\r\n",
		"before the last":       "BDAT 4\r\nhalfBDAT 4 LAST\r\nhal",
	} {
		for _, held := range []bool{false, true} {
			r := start(t, func(c *Config) {
				if held {
					allChecks("127.0.0.1:1")(c)
				}
			})
			p := r.greeted().begin()
			p.send(said)
			assert.Must(t, p.Conn.(*net.TCPConn).CloseWrite())
			if rest, err := io.ReadAll(p.r); err != nil || accepted.Match(rest) {
				t.Errorf("%s: the server says %q, %v", name, rest, err)
			}
			r.ended()
			r.nothing()
		}
	}
}

// K15: a silent client gets 421 and is closed; nothing of it stays.
func TestSilentClientIsCutOff(t *testing.T) {
	const mail = "EHLO c\r\nMAIL FROM:<a@b>\r\n"
	for name, said := range map[string]string{
		"after the greeting": "",
		"in a command":       "NOO",
		"in a transaction":   mail,
		"in DATA":            mail + "RCPT TO:<c@d>\r\nDATA\r\nhalf",
		"in a chunk":         mail + "RCPT TO:<c@d>\r\nBDAT 9 LAST\r\nhalf",
	} {
		r := start(t, func(c *Config) { c.ReadTimeout = 50 * time.Millisecond })
		p := r.dial()
		p.send(said)
		all := assert.Get(io.ReadAll(p.r))(t)
		lines := strings.SplitAfter(string(all), "\r\n")
		if last := lines[len(lines)-2]; !strings.HasPrefix(last, "421 4.4.2") || strings.Count(string(all), "\n421") > 1 {
			t.Errorf("%s: the server says %q", name, all)
		}
		r.ended()
		r.nothing()
	}
}

// A17: a stop takes no new message, ends idle connections, and lets the running transactions
// finish, by TCP, in TLS and by a Unix socket.
func TestStopLetsTransactionsFinish(t *testing.T) {
	users := accounts(t)
	r := startSecured(t, func(c *Config) {
		c.Users.Source, c.Listen[session.RoleLMTP] = "file:"+users, []string{t.TempDir() + "/lmtp"}
	})
	handshake := r.connect(2)
	idle := []*client{r.dial(), r.implicit(), r.lmtp()}
	mail, data, chunks, secure, lmtp := r.greeted(), r.greeted(), r.greeted(), r.implicit(), r.lmtp()
	mail.from("mail@b")
	data.begin().data().send("Subject: x\r\n\r\nha")
	chunks.begin().chunk("ha", "")
	chunks.expect("250")
	secure.say("EHLO c", "250")
	secure.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	secure.begin().data()
	lmtp.say("LHLO c", "250")
	lmtp.begin().data()
	r.stop()
	for _, p := range idle {
		p.end("421 4.3.2")
	}
	handshake.end()
	if c, err := net.Dial("tcp", r.addr); err == nil {
		c.Close()
		t.Error("a new connection is accepted")
	}
	mail.to(toUs).content("x\n", "250")
	chunks.chunk("lf", " LAST")
	chunks.expect("250")
	for _, p := range []*client{data, secure, lmtp} {
		p.say("lf\r\n.", "250")
	}
	for _, p := range []*client{mail, data, chunks, secure, lmtp} {
		p.end("421 4.3.2")
	}
	r.ended()
	assert.Equal(t, len(r.names("router")), 5)
}

// A17: the deadline. Clients that have not finished get 421.
func TestStopCutsWhatDoesNotFinish(t *testing.T) {
	r := start(t, func(c *Config) { c.StopTimeout = 20 * time.Millisecond })
	data, chunks, mail := r.greeted().begin().data(), r.greeted().begin(), r.greeted().begin()
	data.send("half")
	chunks.chunk("ha\r\n", "")
	chunks.expect("250")
	r.ended()
	for _, p := range []*client{data, chunks, mail} {
		p.end("421 4.3.2")
	}
	r.nothing()
	r.log.Expect(t, 1, "msg=cut")
}
