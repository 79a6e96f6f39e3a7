// Package ecosystem runs the real programs beside those that a mail server has around it:
// mailbox servers, list managers, certbot. The configuration is that of the
// documentation: each page's blocks, with the paths and ports of the test.
package ecosystem

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

var bin string

func TestMain(m *testing.M) {
	suite.AtOnce(4)
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// page is what a page of the documentation has as configuration: the text of each fenced block
// that begins with "# NAME", by that name. Replacements are pairs, as of strings.NewReplacer.
type page map[string]string

func readPage(t *testing.T, name string, replacements ...string) page {
	t.Helper()
	text := string(assert.Get(os.ReadFile(filepath.Join("../../docs", name)))(t))
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("docs/%s does not have %q, which the test replaces", name, replacements[i])
		}
	}
	p := page{}
	for i, block := range strings.Split(text, "\n```") {
		_, block, _ = strings.Cut(block, "\n") // the language behind the fence
		title, body, found := strings.Cut(block, "\n")
		if name, ok := strings.CutPrefix(title, "# /"); i%2 == 1 && ok && found {
			p["/"+name] = strings.NewReplacer(replacements...).Replace(body) + "\n"
		}
	}
	return p
}

// get returns a block.
func (p page) get(t *testing.T, name string) string {
	t.Helper()
	text, ok := p[name]
	if !ok {
		t.Fatalf("the page has no block %q", name)
	}
	return text
}

// settings returns the block of a zmailer.conf as the suite wants it.
func (p page) settings(t *testing.T, name string) map[string]string {
	t.Helper()
	set := map[string]string{}
	for line := range strings.Lines(p.get(t, name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			set[key] = value
		}
	}
	return set
}

// start starts a system with the files beside zmailer.conf that the page shows.
func (p page) start(t *testing.T, conf string, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	s := &suite.Suite{Bin: bin, Dir: rig.ShortDir(t), Settings: p.settings(t, conf), Files: map[string]string{"scheduler.conf": schedulerConf}}
	s.Hostname = s.Settings["HOSTNAME"]
	for name, text := range p {
		if rest, ok := strings.CutPrefix(name, "/etc/zmailer/"); ok && !strings.HasPrefix(rest, "zmailer.conf") {
			s.Files[rest] = text
		}
	}
	change(s)
	assert.Must(t, s.Init())
	if out, err := s.Command("zmctl", "check-config").CombinedOutput(); err != nil {
		t.Fatalf("check-config: %v\n%s", err, out)
	}
	rig.Start(t, s)
	return s
}

// schedulerConf is the default one with short waits.
const schedulerConf = `*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*
smtpx/*
lmtp/*
	command="ta-smtp --slots=20 $channel"
local/*
virtual/*
file/*
	command="ta-mailbox --slots=4 $channel"
pipe/*
	maxthr=4 command="ta-mailbox --slots=2 $channel"
`

// send sends a message by SMTP.
func send(t *testing.T, s *suite.Suite, from, to, text string) {
	t.Helper()
	src := &peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: from, To: func(int) string { return to },
		Body: func(int) []byte { return []byte(strings.ReplaceAll(text, "\n", "\r\n")) }}
	assert.Must(t, src.Run(context.Background()))
}

// sent waits for the message to a recipient that has a text.
func sent(t *testing.T, far *peer.Sink, rcpt, text string) (found string) {
	t.Helper()
	rig.Await(t, fmt.Sprintf("message to %s with %q", rcpt, text), func() bool {
		for _, m := range far.Messages() {
			if slices.Contains(m.Recipients, rcpt) && strings.Contains(string(m.Data), text) {
				found = string(m.Data)
			}
		}
		return found != ""
	})
	return found
}

// accepts reports whether a recipient is accepted; 550 is the only other answer.
func accepts(t *testing.T, s *suite.Suite, rcpt string) bool {
	t.Helper()
	c := assert.Get(smtp.Dial(s.SMTPAddr))(t)
	defer c.Close()
	assert.Must(t, c.Mail("ann@far.example"))
	err := c.Rcpt(rcpt)
	if err != nil && !strings.HasPrefix(err.Error(), "550") {
		t.Fatalf("RCPT %s: %v", rcpt, err)
	}
	return err == nil
}

// mail waits for n messages of a local user.
func mail(t *testing.T, maildir string, n int) (list []string) {
	t.Helper()
	rig.Await(t, fmt.Sprintf("%d messages in %s", n, maildir), func() bool {
		all := assert.Get(suite.Mail(maildir))(t)
		list = nil
		for _, m := range all {
			list = append(list, strings.ReplaceAll(string(m), "\r\n", "\n"))
		}
		return len(list) >= n
	})
	return list
}

// write writes a file, and its directory.
func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), mode), os.Chmod(name, mode)))
	return name
}

// freePort returns an address of loopback and its port.
func freePort(t *testing.T) (addr, port string) {
	t.Helper()
	addr = rig.FreeAddr(t)
	_, port, _ = net.SplitHostPort(addr)
	return addr, port
}
