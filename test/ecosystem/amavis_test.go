package ecosystem

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/admin/trace"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// amavis is Debian's amavisd with its own configuration, then that of docs/content-filters.md.
type amavis struct {
	page
	dir, addr, back string
}

// scanner is a virus scanner that knows one virus; the rest makes the paths those of the test.
const scanner = `use strict;
$daemon_user = 'amavis'; $daemon_group = 'amavis';
$MYHOME = 'ROOT/home'; $TEMPBASE = 'ROOT/tmp'; $db_home = 'ROOT/db'; $QUARANTINEDIR = 'ROOT/quarantine';
$pid_file = 'ROOT/run/pid'; $lock_file = 'ROOT/run/lock'; $unix_socketname = undef; $enable_db = 0; $enable_global_cache = 0;
$myhostname = 'mx.example.org'; $mydomain = 'example.org';
$inet_socket_bind = '127.0.0.1'; $inet_socket_port = PORT;
$DO_SYSLOG = 0; $log_level = 1; $sa_local_tests_only = 1;
@bypass_spam_checks_maps = (1); @bypass_virus_checks_maps = (); @av_scanners_backup = ();
@av_scanners = (['grep', '/usr/bin/grep', '-rF EICAR-STANDARD-ANTIVIRUS-TEST-FILE {}', [1], [0], qr/(EICAR)/]);
1;
`

func newAmavis(t *testing.T) *amavis {
	t.Helper()
	rig.Needs(t, "/usr/sbin/amavisd")
	a := &amavis{dir: rig.ShortDir(t)}
	var port string
	a.addr, port = freePort(t)
	a.back, _ = freePort(t)
	owner := assert.Get(user.Lookup("amavis"))(t)
	uid, gid := assert.Get(strconv.Atoi(owner.Uid))(t), assert.Get(strconv.Atoi(owner.Gid))(t)
	for _, name := range []string{"home", "tmp", "db", "quarantine", "run"} {
		dir := filepath.Join(a.dir, name)
		assert.Must(t, errors.Join(os.Mkdir(dir, 0o750), os.Chown(dir, uid, gid)))
	}
	_, back, _ := strings.Cut(a.back, ":")
	a.page = readPage(t, "content-filters.md", "[127.0.0.1]:10024", "[127.0.0.1]:"+port, "127.0.0.1:10024", a.addr,
		"[127.0.0.1]:10025", "[127.0.0.1]:"+back, "REINJECTLISTEN=127.0.0.1:10025", "REINJECTLISTEN="+a.back)
	write(t, a.dir+"/60", a.get(t, "/etc/amavis/conf.d/60-zmailer"), 0o644)
	write(t, a.dir+"/70", strings.NewReplacer("ROOT", a.dir, "PORT", port).Replace(scanner), 0o644)
	return a
}

// run starts amavis.
func (a *amavis) run(t *testing.T) {
	t.Helper()
	args := []string{}
	for _, conf := range append(assert.Get(filepath.Glob("/etc/amavis/conf.d/*_*"))(t), a.dir+"/60", a.dir+"/70") {
		args = append(args, "-c", conf)
	}
	rig.Daemon(t, a.addr, exec.Command("/usr/sbin/amavisd", append(args, "foreground")...))
}

// start starts a system with amavis as its content filter.
func (a *amavis) start(t *testing.T, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	return a.page.start(t, "/etc/zmailer/zmailer.conf", func(s *suite.Suite) {
		s.Users = []string{"alice"}
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "\nsmtp/*", "\n"+s.Files["scheduler.conf"]+"smtp/*", 1)
		s.Files["header-rules"] = "external add X-Once: yes\nlocal add X-Once: yes\n"
		change(s)
	})
}

const (
	eicar = `X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*`

	harmless = "From: ann@far.example\nTo: alice@mx.example.org\nSubject: hello\nMessage-ID: <1@far.example>\nDate: Thu, 26 Nov 2026 10:00:00 +0000\n\nHello.\n"

	banned = "From: ann@far.example\nTo: alice@mx.example.org\nSubject: a program\nMIME-Version: 1.0\n" +
		"Content-Type: application/octet-stream; name=\"x.exe\"\nContent-Disposition: attachment; filename=\"x.exe\"\n\nMZ\n"
)

// Mail waits while amavis is away, passes it once when it is there, and rules are applied once.
func TestAmavisFiltersAllMail(t *testing.T) {
	t.Parallel()
	a := newAmavis(t)
	far := &peer.Sink{}
	rig.Sink(t, far)
	s := a.start(t, func(s *suite.Suite) { s.Files["routes"] = "far.example smtp!" + far.RouteHost() + "\n" })
	send(t, s, "ann@far.example", "alice@mx.example.org", harmless)
	rig.Event(t, s, "deferred", "rcpt", "alice@mx.example.org", "channel", "smtpx")
	assert.Equal(t, len(assert.Get(suite.Mail(s.Maildir("alice")))(t)), 0, "mail that is not filtered")
	a.run(t)
	text := mail(t, s.Maildir("alice"), 1)[0]
	assert.Contains(t, text, "\nX-Virus-Scanned: ")
	assert.Contains(t, text, "\n\nHello.\n")
	assert.Equal(t, strings.Count(text, "\nX-Once: yes\n"), 1, "fields of a rule")
	assert.Equal(t, strings.Count(text, "by mx.example.org with ESMTP"), 2, "our Received fields")

	// By XFORWARD both ways the client stays known. That of the test is in 127.0.0.0/8, as the filter is.
	first := rig.Event(t, s, "accepted", "from", "ann@far.example")
	back := rig.Event(t, s, "accepted", "from", "ann@far.example", "orig-id", first.Get("id"))
	assert.Equal(t, back.Get("orig-client"), first.Get("client"))
	assert.Equal(t, back.Get("orig-helo"), first.Get("helo"))

	// A search shows it as one, from its client to alice's mailbox.
	rig.Event(t, s, "delivered", "id", back.Get("id"))
	log := filepath.Join(t.TempDir(), "log")
	write(t, log, s.Log(), 0o600)
	var life trace.Life
	assert.Must(t, json.Unmarshal(assert.Get(s.Command("zmctl", "trace", "--json", "--log", log, "ann@far.example").Output())(t), &life))
	assert.Equal(t, life.ID, first.Get("id"))
	assert.Equal(t, len(life.Caused), 1, "messages after the filter")
	if c := life.Caused[0]; c.ID != back.Get("id") || c.Kind != trace.Filtered || c.Life == nil || c.Life.Recipients[0].State != trace.Delivered {
		t.Errorf("got %+v", c)
	}

	// A user's mail passes it, too.
	sub := s.Command("submit", "-f", "alice@mx.example.org", "bob@far.example")
	sub.Stdin = strings.NewReader("From: alice@mx.example.org\nSubject: out\n\nBye.\n")
	assert.Must(t, sub.Run())
	sent(t, far, "bob@far.example", "X-Virus-Scanned: ")

	// A virus is in the quarantine, and nowhere else.
	send(t, s, "eve@far.example", "alice@mx.example.org", strings.Replace(harmless, "Hello.", eicar, 1))
	rig.Await(t, "quarantined message", func() bool {
		n := 0
		assert.Must(t, filepath.WalkDir(a.dir+"/quarantine", func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				n++
			}
			return nil // amavis may rename it
		}))
		return n > 0
	})

	// What amavis refuses comes back to its sender, as a report that is not filtered.
	send(t, s, "ann@far.example", "alice@mx.example.org", banned)
	rig.Event(t, s, "failed", "rcpt", "alice@mx.example.org", "channel", "smtpx")
	sent(t, far, "ann@far.example", "multipart/report")
	all := mail(t, s.Maildir("alice"), 1)
	assert.Equal(t, len(all), 1, "mail of alice")
}
