package ecosystem

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// slow is set by make ecosystem.
var slow = flag.Bool("slow", false, "also run programs that take long to start, such as Mailman")

// mailman is Mailman 3 with a directory of its own.
type mailman struct {
	page
	dir, lmtp string
	as        *syscall.Credential
}

// paths are the parts of Mailman's configuration that the page leaves as Debian has them.
const paths = `
[mailman]
site_owner: boss@mx.example.org
layout: test
[paths.test]
var_dir: ROOT
queue_dir: $var_dir/queue
bin_dir: /usr/lib/mailman3/bin
list_data_dir: $var_dir/lists
log_dir: $var_dir/logs
lock_dir: $var_dir/locks
data_dir: $var_dir/data
cache_dir: $var_dir/cache
etc_dir: $var_dir/etc
ext_dir: $var_dir/ext
messages_dir: $var_dir/messages
archive_dir: $var_dir/archives
template_dir: $var_dir/templates
pid_file: $var_dir/master.pid
lock_file: $var_dir/master.lck
[database]
class: mailman.database.sqlite.SQLiteDatabase
url: sqlite:///ROOT/mailman.db
[webservice]
hostname: 127.0.0.1
port: REST
admin_user: restadmin
admin_pass: restpass
RUNNERS`

// runners are those that have nothing to do here, which do not start, and those that work; these
// look into their queues every tenth of a second: a message passes through five.
func runners() string {
	var conf strings.Builder
	for _, name := range []string{"archive", "bounces", "digest", "nntp", "rest", "retry", "shunt", "task"} {
		fmt.Fprintf(&conf, "[runner.%s]\nstart: no\n", name)
	}
	for _, name := range []string{"command", "in", "lmtp", "out", "pipeline", "virgin"} {
		fmt.Fprintf(&conf, "[runner.%s]\nsleep_time: 0.1s\n", name)
	}
	return conf.String()
}

// newMailman prepares Mailman, which sends to a port of this machine.
func newMailman(t *testing.T, smtp string) *mailman {
	t.Helper()
	rig.Needs(t, "/usr/lib/mailman3/bin/master")
	if !*slow {
		t.Skip("make ecosystem runs it: Mailman takes long to start")
	}
	m := &mailman{dir: rig.ShortDir(t)}
	var port string
	m.lmtp, port = freePort(t)
	_, rest := freePort(t)
	owner := assert.Get(user.Lookup("list"))(t)
	uid, gid := assert.Get(strconv.Atoi(owner.Uid))(t), assert.Get(strconv.Atoi(owner.Gid))(t)
	m.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	assert.Must(t, os.Chown(m.dir, uid, gid))
	m.page = readPage(t, "mailing-list-managers.md", "127.0.0.1:8024", m.lmtp, "lmtp_port: 8024", "lmtp_port: "+port, "smtp_port: 25", "smtp_port: "+smtp,
		"/var/lib/mailman3", m.dir, "/etc/mailman3/postfix-mailman.cfg\nlmtp", m.dir+"/postfix.cfg\nlmtp")
	write(t, m.dir+"/postfix.cfg", m.get(t, "/etc/mailman3/postfix-mailman.cfg"), 0o644)
	write(t, m.dir+"/mailman.cfg", m.get(t, "/etc/mailman3/mailman.cfg")+strings.NewReplacer("ROOT", m.dir, "REST", rest, "RUNNERS", runners()).Replace(paths), 0o644)
	return m
}

// command is a command of Mailman's, run as its user.
func (m *mailman) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/usr/lib/mailman3/bin/"+name, append([]string{"-C", m.dir + "/mailman.cfg"}, args...)...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "HOME="+m.dir)
	return cmd
}

// do runs a command that ends.
func (m *mailman) do(t *testing.T, args ...string) string {
	t.Helper()
	cmd := m.command("mailman", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: m.as}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("mailman %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// detector prints the temporary and the permanent failures that Mailman's library finds in a
// message of its queue.
const detector = `import email, pickle, sys
from flufl.bounce import all_failures
m = pickle.load(open(sys.argv[1], "rb"))
print(*all_failures(email.message_from_bytes(m) if isinstance(m, bytes) else m))
`

var token = regexp.MustCompile(`news-confirm\+[^@ >]+@lists\.example`)

// Members subscribe by mail and confirm it, get what is posted, a bounce reaches Mailman under the
// member's own address, and a list that is made while all runs is known at once.
func TestMailmanRunsAMailingList(t *testing.T) {
	t.Parallel()
	addr, port := freePort(t)
	m := newMailman(t, port)
	far := &peer.Sink{Rcpt: func(address string, _ int) string {
		if strings.HasPrefix(address, "gone@") {
			return "550 5.1.1 no such user"
		}
		return ""
	}}
	rig.Sink(t, far)
	m.do(t, "create", "--owner", "boss@mx.example.org", "news@lists.example")
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := filepath.Glob(m.dir + "/logs/*")
			for _, name := range logs {
				text, rerr := os.ReadFile(name)
				t.Logf("%s: %s %v", name, text[max(0, len(text)-3000):], errors.Join(err, rerr))
			}
		}
	})
	s := m.start(t, "/etc/zmailer/zmailer.conf, Mailman 3", func(s *suite.Suite) {
		s.SMTPAddr, s.Users = addr, []string{"boss"}
		s.Files["routes"] += "far.example smtp!" + far.RouteHost() + "\n"
		delete(s.Files, "aliases-mlmmj")
	})
	// Each of its processes takes a second of the processor to start.
	rig.DaemonAs(t, m.as, m.lmtp, m.command("master"), 3*rig.Patience)
	for _, member := range []string{"ann@far.example", "zoe@far.example"} {
		send(t, s, member, "news-join@lists.example", "From: "+member+"\nTo: news-join@lists.example\nSubject: join\nMessage-ID: <join-"+member+">\n\n\n")
		address := token.FindString(sent(t, far, member, "news-confirm"))
		if address == "" {
			t.Fatal("no address to confirm")
		}
		send(t, s, member, address, "From: "+member+"\nTo: "+address+"\nSubject: Re: confirm\nMessage-ID: <confirm-"+member+">\n\n\n")
		sent(t, far, member, "Welcome to the")
	}
	list := write(t, m.dir+"/members", "gone@far.example\n", 0o644)
	m.do(t, "addmembers", "--no-welcome-msg", list, "news@lists.example")
	send(t, s, "ann@far.example", "news@lists.example", "From: ann@far.example\nTo: news@lists.example\nSubject: a post\nMessage-ID: <1@far.example>\n\nHello, list.\n")
	sent(t, far, "zoe@far.example", "Hello, list.")
	sent(t, far, "ann@far.example", "Hello, list.")
	rig.Event(t, s, "failed", "rcpt", "gone@far.example")
	rig.Event(t, s, "delivered", "rcpt", "news-bounces+gone=far.example@lists.example", "channel", "lmtp")
	// The report waits for Mailman's bounce runner, which does not run here; its own detector
	// finds the member in it, as a permanent failure.
	var found string
	rig.Await(t, "bounce in Mailman's queue", func() bool {
		files, err := filepath.Glob(m.dir + "/queue/bounces/*.pck")
		if err != nil || len(files) == 0 {
			return false
		}
		out, err := exec.Command("/usr/bin/python3", "-c", detector, files[0]).CombinedOutput()
		found = string(out)
		return err == nil
	})
	assert.Equal(t, found, "set() {b'gone@far.example'}\n")
	// Mail for a list goes to Mailman as soon as the list is made, and nowhere before.
	send(t, s, "eve@far.example", "news-owner@lists.example", "From: eve@far.example\nTo: news-owner@lists.example\nSubject: question\nMessage-ID: <2@far.example>\n\nMay I?\n")
	assert.Contains(t, mail(t, s.Maildir("boss"), 1)[0], "May I?")
	assert.Equal(t, ours(t, s.Config(), "talk@lists.example"), "rejected", "before the list is made")
	m.do(t, "create", "talk@lists.example")
	rig.Await(t, "recipient of a new list", func() bool { return ours(t, s.Config(), "talk@lists.example") == m.lmtp+" talk@lists.example" })
}
