package smtpserver

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"zmailer/internal/run/assert"

	gomilter "github.com/emersion/go-milter"
	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/wire/milter/miltertest"
)

// name has n recipients taken, pipelined; a reply that does not begin with want is an error.
func (p *client) name(first, n int, want string) *client {
	p.t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "RCPT TO:<r%d@mx.example.org> NOTIFY=FAILURE ORCPT=rfc822;r%d@example.net\r\n", first+i, first+i)
	}
	p.send(b.String())
	for range n {
		p.expect(want)
	}
	return p
}

// draft returns the size of the one file in public/.
func (r *running) draft() int64 {
	r.t.Helper()
	names := r.names("public")
	if len(names) != 1 {
		r.t.Fatalf("public/ holds %q, want one file", names)
	}
	return assert.Get(os.Stat(filepath.Join(r.dir, "public", names[0])))(r.t).Size()
}

func unlimited(c *Config) { c.Limits.MaxRecipients = 0 }

// Atk1: recipients are written to the message's file as they come, and the message has all of
// them in their order, whatever happens to its content.
func TestAtk1RecipientsAreWrittenAsTheyCome(t *testing.T) {
	_, server := checkstest.Serve(t)
	for how, change := range map[string]func(*Config){
		"written as it comes":    func(*Config) {},
		"checked":                allChecks(server),
		"frozen":                 func(c *Config) { c.Access.Dir = files(t, map[string]string{"access": "freeze from=a@example.net\n"}) },
		"a filter wants no more": with(filter(t, &miltertest.Filter{At: map[string]gomilter.Response{"mail": gomilter.RespAccept}})),
		"little memory":          func(c *Config) { c.Limits.Memory = 1 },
	} {
		for _, n := range []int{maxKept, maxKept + 1, 10*maxKept + 7} {
			t.Run(fmt.Sprintf("%s, %d", how, n), func(t *testing.T) {
				r := start(t, func(c *Config) {
					change(c)
					unlimited(c)
				})
				p := r.greeted().from("a@example.net")
				p.name(0, n, "250")
				if n > maxKept {
					r.draft()
				}
				id := p.id(p.content(plain, "250"))
				dir := "router"
				if how == "frozen" {
					dir = "freezer"
				}
				names := slices.DeleteFunc(r.names(dir), func(name string) bool { return strings.HasPrefix(name, ".") })
				if len(names) == 0 {
					t.Fatalf("nothing in %s/", dir)
				}
				m, err := envelope.Read(strings.NewReader(string(read(t, filepath.Join(r.dir, dir, names[0])))))
				assert.Must(t, err)
				assert.Equal(t, len(m.Recipients), n)
				for i, to := range m.Recipients {
					want := envelope.Recipient{Address: fmt.Sprintf("r%d@mx.example.org", i), DSN: fmt.Sprintf("NOTIFY=FAILURE ORCPT=rfc822;r%d@example.net", i)}
					if to != want {
						t.Fatalf("recipient %d is %+v, want %+v", i, to, want)
					}
				}
				assert.Equal(t, len(r.names("public")), 0)
				if got := r.book().Records[id]; got == nil || int(got.In) != n {
					t.Errorf("the ledger has %+v, want %d recipients", got, n)
				}
				r.log.Expect(t, 1, "msg=accepted", fmt.Sprintf("rcpts=%d ", n))
				// The next message of the session has its own.
				p.from("b@example.net").name(0, 1, "250").say("RSET", "250")
				assert.Equal(t, len(r.names("public")), 0)
			})
		}
	}
}

// Atk1: a message that is given up leaves nothing of its recipients.
func TestAtk1AbandonedRecipientsLeaveNothing(t *testing.T) {
	for name, end := range map[string]func(p *client){
		"RSET":     func(p *client) { p.say("RSET", "250") },
		"EHLO":     func(p *client) { p.say("EHLO again.example.net", "250") },
		"QUIT":     func(p *client) { p.say("QUIT", "221") },
		"lost":     func(p *client) { p.Close() },
		"in DATA":  func(p *client) { p.data().send("Subject: x\r\n"); p.Close() },
		"in chunk": func(p *client) { p.chunk("half\r\n", ""); p.expect("250"); p.say("RSET", "250") },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, unlimited)
			p := r.greeted().from("a@example.net").name(0, 3*maxKept, "250")
			if r.draft() < 2*maxKept {
				t.Error("the file does not hold the recipients")
			}
			end(p)
			logtest.Eventually(t, "an empty public/", func() bool { return len(r.names("public")) == 0 })
			r.nothing()
		})
	}
}

// Atk1, S21: a disk that fails while recipients are written refuses the message for now and
// leaves nothing; the session goes on.
func TestAtk1RecipientsOnAFailingDisk(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Open, faultfs.Write} {
		t.Run(string(op), func(t *testing.T) {
			r := start(t, unlimited)
			p := r.greeted().from("a@example.net").name(0, maxKept, "250")
			fault := r.disk.Fail(op, "*/*", unix.ENOSPC, faultfs.Always)
			p.name(maxKept, 1, "452 4.3.1")
			r.nothing()
			fault.End()
			// Those that were taken before are gone: the message cannot be accepted any more.
			p.name(maxKept, 3, "452 4.3.1").content(plain, "452 4.3.1")
			r.nothing()
			p.from("a@example.net").name(0, 2*maxKept, "250").content(plain, "250")
			r.only()
			r.log.Expect(t, 1, "msg=storage-trouble")
		})
	}
}

// Atk1: what filters have all sessions keep is bounded. Mail to one recipient goes on, a part
// is for our users and LIMITSEXEMPT, and the memory of ended transactions is free again.
func TestAtk1MemoryOfAllSessionsIsBounded(t *testing.T) {
	f := filter(t, &miltertest.Filter{})
	r := start(t, func(c *Config) {
		with(f)(c)
		unlimited(c)
		c.Limits.Memory = 100_000
		c.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	})
	fill := func(p *client) (taken int) {
		for {
			p.send(fmt.Sprintf("RCPT TO:<r%d@mx.example.org>\r\n", taken))
			if said := p.reply(); strings.HasPrefix(said, "452 4.3.1") {
				return taken
			} else if !strings.HasPrefix(said, "250") {
				t.Fatalf("recipient %d: %s", taken, said)
			}
			taken++
		}
	}
	first := r.greeted().from("a@example.net")
	n := fill(first)
	if n < 700 || n > 80_000/recipientCost {
		t.Errorf("%d recipients fit in 80,000 bytes", n)
	}
	second := r.greeted().from("a@example.net")
	assert.Equal(t, fill(second), 1)
	exempt := r.connectFrom(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, r.addrs[0])
	exempt.expect("220")
	exempt.say("EHLO own.example.net", "250")
	exempt.from("a@example.net")
	if more := fill(exempt); more < 150 || more > 20_000/recipientCost {
		t.Errorf("an exempt client named %d recipients", more)
	}
	r.log.Expect(t, 1, "msg=memory-trouble")
	r.log.Expect(t, 0, "msg=memory-recovered")
	first.content(plain, "250")
	exempt.say("RSET", "250")
	r.log.Expect(t, 1, "msg=memory-recovered")
	if got := fill(second); got < n-10 {
		t.Errorf("after that %d recipients fit, %d before", got, n)
	}
	second.Close()
}

// Atk1: so are the addresses whose access rules wait for the content.
func TestAtk1WaitingRecipientsAreBounded(t *testing.T) {
	r := start(t, func(c *Config) {
		unlimited(c)
		c.Limits.Memory = 20_000
		c.Access.Dir = files(t, map[string]string{"access": "reject size>1M\n"})
	})
	p := r.greeted().from("a@example.net").name(0, maxKept, "250")
	n := maxKept
	for ; n < 1000; n++ {
		p.send(fmt.Sprintf("RCPT TO:<r%d@mx.example.org>\r\n", n))
		if said := p.reply(); strings.HasPrefix(said, "452 4.3.1") {
			break
		}
	}
	if n > 16_000/recipientCost {
		t.Errorf("%d recipients fit", n)
	}
	p.content(plain, "250")
	assert.Equal(t, strings.Count(r.only(), "\nto "), n)
}
