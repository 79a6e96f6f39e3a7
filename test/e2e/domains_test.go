package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// domainMaps are the tables of a machine with domains of all classes, as Postfix writes them.
var domainMaps = map[string]string{
	"aliases": "sales games\nboth games, news\nfar x@out.example\nring ring2\nring2 ring\n",
	"virtual": `info@valias.example games@local.example
team@valias.example games@local.example, carol@vbox.example
away@valias.example someone@out.example
viaalias@valias.example sales@local.example
tag@valias.example games@local.example
tag+a@valias.example news@local.example
lists@valias.example both@local.example
@catch.example news@local.example
named@catch.example games@local.example
fwd@vbox.example carol@vbox.example, y@out.example
moved@relay.example games@local.example
vip@local.example news@local.example
chain1@valias.example chain2@valias.example
chain2@valias.example chain3@valias.example
chain3@valias.example dave@vbox.example
`,
	"aliasdomains":   "valias.example x\ncatch.example x\n",
	"mailboxdomains": "vbox.example x\nvcatch.example x\nx--a.example x\n",
	"mailboxes": `carol@vbox.example vbox.example/carol/
dave@vbox.example vbox.example/dave
erin+work@vbox.example vbox.example/erin-work/
erin@vbox.example vbox.example/erin/
games@vbox.example vbox.example/other-games/
known@vcatch.example vcatch.example/known/
@vcatch.example vcatch.example/all/
o'hara@vbox.example vbox.example/ohara/
`,
	"relaydomains": "relay.example x\nrelayall.example x\n.below.example x\n",
	"relayrecipients": `known@relay.example x
Mixed@Relay.example x
@relayall.example x
sub@one.below.example x
`,
}

// domainAddresses are what is asked; the two systems have to agree about each of them.
var domainAddresses = []string{
	// local
	"games@local.example", "GAMES@Local.Example", "news@local.example", "games+tag@local.example", "sales@local.example",
	"sales+x@local.example", "both@local.example", "far@local.example", "vip@local.example", "vip+x@local.example",
	"nosuchuser@local.example", "nosuchuser+games@local.example", "carol@local.example", "info@local.example",
	// virtual alias
	"info@valias.example", "INFO@VALIAS.example", "info+x@valias.example", "team@valias.example", "away@valias.example",
	"viaalias@valias.example", "tag@valias.example", "tag+a@valias.example", "tag+b@valias.example", "lists@valias.example",
	"games@valias.example", "news@valias.example", "sales@valias.example", "root@valias.example", "nobody@valias.example",
	"any@catch.example", "named@catch.example", "named+x@catch.example", "games@catch.example", "chain1@valias.example",
	// virtual mailbox
	"carol@vbox.example", "Carol@VBOX.example", "carol+x@vbox.example", "dave@vbox.example", "erin@vbox.example",
	"erin+work@vbox.example", "erin+play@vbox.example", "games@vbox.example", "news@vbox.example", "root@vbox.example",
	"nobody@vbox.example", "fwd@vbox.example", "known@vcatch.example", "known+x@vcatch.example", "else@vcatch.example",
	"games@vcatch.example", "o'hara@vbox.example", "carol@x--a.example", "sales@vbox.example",
	// relay
	"known@relay.example", "KNOWN@relay.example", "known+x@relay.example", "mixed@relay.example", "nobody@relay.example",
	"games@relay.example", "moved@relay.example", "any@relayall.example", "games@relayall.example", "sub@one.below.example",
	"other@one.below.example", "known@sub.relay.example",
	// none of ours
	"x@out.example", "x@far.example", "games@out.example", "carol@sub.vbox.example",
}

var enhancedCode = regexp.MustCompile(`^(\d)\d\d[ -](\d\.\d+\.\d+)`)

// askRecipients sends a message to each address by itself, and returns what RCPT was answered.
func askRecipients(t *testing.T, addr string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for i := 0; i < len(domainAddresses); i += 5 { // a connection bears only so many errors
		k := connect(t, addr)
		for _, to := range domainAddresses[i:min(i+5, len(domainAddresses))] {
			k.say("MAIL FROM:<s@sender.example>", "250")
			m := enhancedCode.FindStringSubmatch(k.say("RCPT TO:<"+to+">", ""))
			if m == nil {
				t.Fatalf("%s: no code in the reply", to)
			}
			out[to] = m[2]
			if m[1] == "2" {
				k.say("DATA", "354")
				k.say("Subject: ask "+to+"\r\n\r\nx\r\n.", "250")
			} else {
				k.say("RSET", "250")
			}
		}
		k.say("QUIT", "221")
	}
	return out
}

var askedSubject = regexp.MustCompile(`(?m)^Subject: ask (\S+?)\r?$`)

// places returns where the message to each address is, below dir and at the next hop.
func places(t *testing.T, dir string, sink *peer.Sink) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	note := func(text []byte, place string) {
		for _, m := range askedSubject.FindAllSubmatch(text, -1) {
			out[string(m[1])] = append(out[string(m[1])], place)
		}
	}
	assert.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, rerr := filepath.Rel(dir, path)
		if i := strings.Index(rel, "/new/"); i >= 0 {
			rel = rel[:i+1]
		}
		note(text, rel)
		return errors.Join(err, rerr)
	}))
	for _, m := range sink.Messages() {
		for _, to := range m.Recipients {
			note(m.Data, "next hop "+strings.ToLower(to))
		}
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// withColons writes a table of Postfix's in the form of our aliases.
func withColons(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, " ")
		b.WriteString(key + ": " + value)
	}
	return b.String()
}

// storeRoot makes the directories of mailboxes: local users' and virtual ones.
func storeRoot(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	for name, mode := range map[string]fs.FileMode{"mail": 0o1777, "vmail": 0o755} {
		assert.Must(t, errors.Join(os.Mkdir(filepath.Join(dir, name), 0o755), os.Chmod(filepath.Join(dir, name), mode)))
	}
	// Postfix makes no directory for an mbox file.
	box := filepath.Join(dir, "vmail", "vbox.example")
	assert.Must(t, errors.Join(os.Mkdir(box, 0o755), os.Chown(filepath.Dir(box), 5000, 5000), os.Chown(box, 5000, 5000)))
	return dir
}

// Op8: a Postfix with the same tables accepts and refuses the same recipients, and their mail
// goes to the same places. Local users' names mean nothing in virtual domains.
func TestDomainClassesAreThoseOfPostfix(t *testing.T) {
	need(t, peer.PostfixMaster)
	needRoot(t)
	next, ours := &peer.Sink{}, &peer.Sink{}
	for _, s := range []*peer.Sink{next, ours} {
		assert.Must(t, s.Start())
		t.Cleanup(s.Close)
	}
	theirs := storeRoot(t)
	tables := openDir(t)
	table := func(name string) string {
		path := filepath.Join(tables, name)
		assert.Must(t, os.WriteFile(path, []byte(domainMaps[name]), 0o644))
		return "texthash:" + path
	}
	p := startPostfix(t, next.RouteHost(),
		"mydestination = local.example", "alias_maps = "+table("aliases"), "local_recipient_maps = unix:passwd.byname $alias_maps",
		"mail_spool_directory = "+theirs+"/mail/", "recipient_delimiter = +", "parent_domain_matches_subdomains =",
		"smtpd_relay_restrictions = reject_unauth_destination", "append_dot_mydomain = no", "forward_path =", "myorigin = local.example",
		"virtual_alias_domains = "+table("aliasdomains"), "virtual_alias_maps = "+table("virtual"),
		"virtual_mailbox_domains = "+table("mailboxdomains"), "virtual_mailbox_maps = "+table("mailboxes"),
		"virtual_mailbox_base = "+theirs+"/vmail", "virtual_uid_maps = static:5000", "virtual_gid_maps = static:5000",
		"relay_domains = "+table("relaydomains"), "relay_recipient_maps = "+table("relayrecipients"))
	stores := storeRoot(t)
	s := prepare(t, ours, func(s *suite.Suite) {
		s.Hostname = "mx.local.example"
		s.Settings = map[string]string{
			"RELAYNETS": "192.0.2.1", "LOCALUSERS": "passwd", "MAILBOX": stores + "/mail/%u/", "FORWARD": "off",
			"VIRTUALALIASDOMAINS": "aliasdomains", "VIRTUALMAILBOXDOMAINS": "mailboxdomains", "VIRTUALMAILBOXMAPS": "mailboxes",
			"VIRTUALMAILBOXBASE": stores + "/vmail", "VIRTUALUIDMAPS": "static:5000", "VIRTUALGIDMAPS": "5000",
			"RELAYDOMAINS": "relaydomains", "RELAYRECIPIENTMAPS": "relayrecipients",
		}
		maps.Copy(s.Files, domainMaps)
		s.Files["aliases"], s.Files["fqdnaliases"] = withColons(domainMaps["aliases"]), withColons(domainMaps["virtual"])
		delete(s.Files, "virtual")
		s.Files["localnames"] = "local.example\n"
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "local/*\n", "local/*\nvirtual/*\n", 1)
	})
	begin(t, s)
	want, got := askRecipients(t, p.Listen), askRecipients(t, s.SMTPAddr)
	for _, to := range domainAddresses {
		if got[to] != want[to] {
			t.Errorf("RCPT TO:<%s>: got %s, Postfix answers %s", to, got[to], want[to])
		}
	}
	awaitEmpty(t, s)
	awaitFor(t, s, 4*patience, "an empty queue of Postfix", func() (bool, error) {
		for _, dir := range []string{"maildrop", "incoming", "active"} {
			entries, err := os.ReadDir(filepath.Join(p.Queue(), dir))
			if err != nil || len(entries) > 0 {
				return false, err
			}
		}
		return true, nil
	})
	there, here := places(t, theirs, next), places(t, stores, ours)
	for _, to := range domainAddresses {
		if a, b := fmt.Sprint(here[to]), fmt.Sprint(there[to]); a != b {
			t.Errorf("<%s>: its mail went to %s, Postfix's to %s", to, a, b)
		}
	}
	if n := len(here); n < 35 {
		t.Errorf("the mail of %d addresses arrived, want more", n)
	}
}

// emptyMap serves a socketmap that has no key, until the returned function is called.
func emptyMap(t *testing.T, path string) (away func()) {
	t.Helper()
	l := assert.Get(net.Listen("unix", path))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { c.Close() })
			serving.Go(func() {
				for in := bufio.NewReader(c); ; {
					if _, err := in.ReadString(','); err != nil {
						return
					}
					if _, err := c.Write([]byte("9:NOTFOUND ,")); err != nil {
						return
					}
				}
			})
		}
	})
	away = sync.OnceFunc(func() {
		l.Close()
		cancel()
		serving.Wait()
	})
	t.Cleanup(away)
	return away
}

// Op9: what RCPT answers follows the tables and router.star within seconds, although answers are
// kept for ten minutes, and a table that cannot be asked is 451.
func TestRecipientCheckFollowsTheTables(t *testing.T) {
	socket := filepath.Join(openDir(t), "map")
	away := emptyMap(t, socket)
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{
			"RELAYNETS": "192.0.2.1", "SMTPERRORS": "0", "RCPTCHECKTIME": "30s", "LOOKUPKEEP": "0",
			"VIRTUALMAILBOXDOMAINS": "boxes", "VIRTUALMAILBOXBASE": "/var/vmail",
			"VIRTUALUIDMAPS": "5000", "VIRTUALGIDMAPS": "5000", "RELAYDOMAINS": "relay",
		}
		s.Settings["VIRTUALMAILBOXMAPS"] = `"mailboxes socket:unix:` + socket + `"`
		s.Files["boxes"], s.Files["mailboxes"], s.Files["relay"] = "box.example\n", "carol@box.example carol/\n", "relay.example\n"
	})
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<s@sender.example>", "250")
	rcpt := func(to, want string) {
		t.Helper()
		await(t, s, to+": "+want, func() (bool, error) {
			return strings.HasPrefix(k.say("RCPT TO:<"+to+">", ""), want), nil
		})
	}
	change := func(name, text string) {
		write(t, filepath.Join(filepath.Dir(s.Config()), name), text)
	}
	rcpt("carol@box.example", "250")
	rcpt("dave@box.example", "550 5.1.1")
	away()
	rcpt("erin@box.example", "451") // the second source might know her
	rcpt("alice@mta.example", "250")
	rcpt("x@relay.example", "250")
	rcpt("x@else.example", "550 5.7.1")
	change("mailboxes", "dave@box.example dave/\n")
	rcpt("dave@box.example", "250")
	rcpt("carol@box.example", "451")
	change("users", "bob\n")
	rcpt("alice@mta.example", "550 5.1.1")
	change("router.star", "def recipient(m, r):\n    if r.address.startswith(\"bob\"):\n        return reject(\"5.7.9\", \"not from \" + m.sender)\n")
	rcpt("bob@mta.example", "550 5.7.9")
	rcpt("x@relay.example", "250")
}

// Op9: recipients of relay domains and of a mailbox host by LMTP are verified at the next hop. What
// it refuses is 550, while it is away 451, and answers are kept over a restart.
func TestNextHopsVerifyRecipients(t *testing.T) {
	var away atomic.Bool
	answer := func(to string, _ int) string {
		switch {
		case away.Load():
			return "450 4.3.0 not now"
		case strings.HasPrefix(to, "no"):
			return "550 5.1.1 no such mailbox"
		}
		return ""
	}
	hop, store := &peer.Sink{Rcpt: answer}, &peer.Sink{Rcpt: answer, LMTP: true, Listen: "unix:" + filepath.Join(openDir(t), "lmtp")}
	for _, s := range []*peer.Sink{hop, store} {
		assert.Must(t, s.Start())
		t.Cleanup(s.Close)
	}
	s := start(t, hop, func(s *suite.Suite) {
		s.Settings = map[string]string{
			"RELAYNETS": "192.0.2.1", "SMTPERRORS": "0", "RCPTCHECKTIME": "30s", "ADDRESSVERIFYTIME": "30s",
			"RELAYDOMAINS": "relay", "RELAYRECIPIENTMAPS": "recipients", "VIRTUALMAILBOXDOMAINS": "boxes",
			"VIRTUALTRANSPORT": "lmtp!" + store.Listen, "ADDRESSVERIFY": `"relay virtual"`,
			"ADDRESSVERIFYNEGATIVEREFRESH": "30d", "ADDRESSVERIFYNEGATIVEEXPIRE": "30d",
		}
		s.Files["relay"], s.Files["boxes"] = "relay.example\nblind.example verify=no\n", "box.example\n"
		s.Files["recipients"] = "listed@relay.example\nnolisted@relay.example\n@relay.example\n@blind.example\n"
	})
	ask := func(to, want string) {
		t.Helper()
		k := connect(t, s.SMTPAddr)
		k.say("MAIL FROM:<s@sender.example>", "250")
		k.say("RCPT TO:<"+to+">", want)
		k.say("QUIT", "221")
	}
	ask("alice@relay.example", "250")
	ask("nobody@relay.example", "550 5.1.1")
	ask("bob@box.example", "250")
	ask("nobody@box.example", "550 5.1.1")
	ask("nolisted@relay.example", "250") // the table has it
	ask("nobody@blind.example", "250")   // not to be asked
	away.Store(true)
	ask("alice@relay.example", "250")
	ask("nobody@box.example", "550 5.1.1")
	ask("other@relay.example", "451")
	stop(t, s)
	hop.Close()
	restart(t, s)
	ask("alice@relay.example", "250")
	ask("nobody@relay.example", "550 5.1.1")
	ask("third@relay.example", "451")
	if hop.Messages() != nil || store.Messages() != nil {
		t.Error("a next hop got a message")
	}
	out, _ := call(t, s, "zmctl", "verify", "--list")
	for _, want := range []string{"alice@relay.example", "nobody@relay.example", "bob@box.example", "nobody@box.example"} {
		if !strings.Contains(out, "<"+want+">") {
			t.Errorf("verify --list lacks %s: %s", want, out)
		}
	}
	exits(t, s, 0, "zmctl", "verify", "alice@relay.example")
	exits(t, s, 1, "zmctl", "verify", "nobody@relay.example")
	exits(t, s, 75, "zmctl", "verify", "third@relay.example")
	exits(t, s, 0, "zmctl", "verify", "--forget", "@relay.example")
	ask("alice@relay.example", "451")
	away.Store(false)
	ask("nobody@box.example", "550 5.1.1")
}
