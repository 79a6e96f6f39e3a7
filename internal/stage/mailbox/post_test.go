package mailbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// testTime is when everything is delivered.
var testTime = time.Date(2026, 11, 21, 0, 12, 50, 123456000, time.UTC)

// post is a postoffice and an agent with a Mailbox, all on real files.
type post struct {
	*testing.T
	*Spool
	mail    string // where the template leads
	agent   *agent.Agent
	mailbox *Mailbox
	log     *logtest.Buffer
}

// newPost makes a post; in the template $MAIL is its mail directory. jim and joe are
// its users.
func newPost(t *testing.T, template string) *post {
	t.Helper()
	p := &post{T: t, Spool: NewSpool(t), mail: t.TempDir(), log: &logtest.Buffer{}}
	list := filepath.Join(t.TempDir(), "users")
	p.must(os.WriteFile(list, []byte("# local users\njim\n joe \nnobody-knows\n"), 0o644))
	owner, err := p.PostOffice.Owners.Take("test")
	p.must(err)
	t.Cleanup(func() { owner.Release() })
	log := p.log.Logger()
	p.mailbox, err = New(Config{
		PostOffice: p.Dir,
		Template:   strings.ReplaceAll(template, "$MAIL", p.mail), LocalUsers: list, Hostname: "mta.example.org",
		LockWait: 20 * time.Second, Log: log, Now: func() time.Time { return testTime },
	})
	p.must(err)
	p.agent = &agent.Agent{PostOffice: p.PostOffice, Owner: owner, Name: "mailbox", Channels: Channels(), Log: log, Now: p.mailbox.c.Now, Settles: true}
	return p
}

func (p *post) must(err error) {
	p.Helper()
	assert.Must(p, err)
}

const testEnvelope = "from <s@example.org>\nto <r@example.org>\nenv-end\n"

// ownUID returns the privilege that needs no change of identity.
func ownUID() string { return strconv.Itoa(os.Getuid()) }

// mailTo returns a local recipient's r line as the router writes it.
func mailTo(address string) workspec.Recipient {
	return workspec.Recipient{Channel: "local", Host: address, Address: address, Privilege: ownUID()}
}

// fileTo returns a file's.
func fileTo(path string) workspec.Recipient {
	return workspec.Recipient{Channel: "file", Host: "file." + ownUID(), Address: path, Privilege: ownUID()}
}

// queue writes a message and its specification. The message is header, with its
// empty line if it is to have one, and body; the specification's header block is the
// header below a Received line.
func (p *post) queue(sender, header, body string, rcpts ...workspec.Recipient) string {
	p.Helper()
	name := p.PutMessage(testEnvelope + header + body)
	if sender == "<>" {
		sender = "-"
	}
	m := Message{Sender: sender, Header: "Received: here\n" + strings.TrimSuffix(header, "\n\n"), Rcpts: rcpts}
	p.Specify(name, m, int64(len(testEnvelope)+len(header)))
	return name
}

// do delivers a queued message and returns the report to the scheduler after
// NUMBER/OFFSET, a line for each recipient.
func (p *post) do(name string) []string {
	p.Helper()
	var said []string
	for _, l := range p.agent.Do(p.Context(), taproto.Job{Name: name}, p.mailbox) {
		line := strings.TrimSuffix(string(taproto.AppendLine(nil, &l)), "\n")
		line = strings.ReplaceAll(line, fmt.Sprintf("mailbox[%d]", os.Getpid()), "mailbox[PID]")
		if l.Kind == taproto.LineAnswer {
			_, line, _ = strings.Cut(line, "\t")
		}
		said = append(said, line)
	}
	return said
}

// one wants one answer with a text in it.
func (p *post) one(answers []string, want string) {
	p.Helper()
	if len(answers) != 1 || !strings.Contains(answers[0], want) {
		p.Errorf("got %q, want %q; log:\n%s", answers, want, p.log)
	}
}

// oneLike wants one answer that a pattern matches.
func (p *post) oneLike(answers []string, pattern string) {
	p.Helper()
	if len(answers) != 1 || !regexp.MustCompile(pattern).MatchString(answers[0]) {
		p.Errorf("got %q, want %s; log:\n%s", answers, pattern, p.log)
	}
}

// deliver queues and delivers one message to one recipient and wants it delivered.
func (p *post) deliver(sender, header, body string, r workspec.Recipient) {
	p.Helper()
	p.one(p.do(p.queue(sender, header, body, r)), "\tok3 ")
}

// maildir returns the content of the files in a Maildir's new/, in order of their names.
func (p *post) maildir(dir string) []string {
	p.Helper()
	var files []string
	for _, name := range p.names(filepath.Join(dir, "new")) {
		files = append(files, p.read(filepath.Join(dir, "new", name)))
	}
	if left := p.names(filepath.Join(dir, "tmp")); len(left) > 0 {
		p.Errorf("left in tmp/: %q", left)
	}
	return files
}

func (p *post) names(dir string) []string {
	p.Helper()
	entries, err := os.ReadDir(dir)
	p.must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

func (p *post) read(name string) string {
	p.Helper()
	b, err := os.ReadFile(name)
	p.must(err)
	return string(b)
}

func (p *post) mode(name string) fs.FileMode {
	p.Helper()
	info, err := os.Lstat(name)
	p.must(err)
	return info.Mode().Perm()
}
