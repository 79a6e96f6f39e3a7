package ecosystem

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// lister is the user that runs mlmmj.
const lister = 5001

var confirm = regexp.MustCompile(`news\+confsub-[^@ ]+@lists\.example`)

// Members subscribe by mail and confirm it, get what is posted, and bounces and mail for the owner
// reach mlmmj: the configuration is that of docs/mailing-list-managers.md.
func TestMlmmjRunsAMailingList(t *testing.T) {
	t.Parallel()
	rig.Needs(t, "/usr/bin/mlmmj-receive")
	spool := rig.ShortDir(t)
	list := filepath.Join(spool, "news")
	far := &peer.Sink{Rcpt: func(address string, _ int) string {
		if strings.HasPrefix(address, "gone@") {
			return "550 5.1.1 no such user"
		}
		return ""
	}}
	rig.Sink(t, far)
	made := exec.Command("/usr/bin/mlmmj-make-ml", "-L", "news", "-s", spool)
	made.Stdin = strings.NewReader("lists.example\nboss@mx.example.org\nen\n")
	out, err := made.CombinedOutput()
	if err != nil {
		t.Fatalf("mlmmj-make-ml: %v\n%s", err, out)
	}
	own := func() {
		assert.Must(t, filepath.WalkDir(spool, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, lister, lister))
		}))
	}
	p := readPage(t, "mailing-list-managers.md", "/var/spool/mlmmj", spool)
	s := p.start(t, "/etc/zmailer/zmailer.conf", func(s *suite.Suite) {
		addr, port := freePort(t)
		s.SMTPAddr, s.Users = addr, []string{"boss"}
		s.Files["routes"] = "far.example smtp!" + far.RouteHost() + "\n"
		write(t, filepath.Join(list, "control", "smtpport"), port+"\n", 0o644)
		write(t, filepath.Join(list, "control", "relayhost"), "127.0.0.1\n", 0o644)
		own()
		aliases := write(t, filepath.Join(filepath.Dir(s.Config()), "aliases-mlmmj"), s.Files["aliases-mlmmj"], 0o644)
		assert.Must(t, os.Chown(aliases, lister, lister))
		delete(s.Files, "aliases-mlmmj")
	})
	to := func(rcpt, text string) string { return sent(t, far, rcpt, text) }
	for _, member := range []string{"ann@far.example", "zoe@far.example"} {
		send(t, s, member, "news+subscribe@lists.example", "From: "+member+"\nTo: news+subscribe@lists.example\nSubject: join\n\n\n")
		asked := to(member, "confsub")
		address := confirm.FindString(asked)
		if address == "" {
			t.Fatalf("no address to confirm in:\n%s", asked)
		}
		send(t, s, member, address, "From: "+member+"\nTo: "+address+"\nSubject: Re: confirm\n\n\n")
		to(member, "Welcome")
	}
	sub := exec.Command("/usr/bin/mlmmj-sub", "-L", list+"/", "-a", "gone@far.example", "-s")
	if out, err := sub.CombinedOutput(); err != nil {
		t.Fatalf("mlmmj-sub: %v\n%s", err, out)
	}
	own()
	send(t, s, "ann@far.example", "news@lists.example", "From: ann@far.example\nTo: news@lists.example\nSubject: a post\nMessage-ID: <1@far.example>\n\nHello, list.\n")
	to("zoe@far.example", "Hello, list.")
	to("ann@far.example", "Hello, list.")
	// The report about the one who is gone is with the list.
	rig.Await(t, "bounce", func() bool {
		found, err := filepath.Glob(filepath.Join(list, "bounce", "gone=far.example*"))
		return err == nil && len(found) > 0
	})
	// Who is no member is told so, and the list's owner gets mail.
	send(t, s, "eve@far.example", "news@lists.example", "From: eve@far.example\nTo: news@lists.example\nSubject: spam\n\nBuy.\n")
	send(t, s, "eve@far.example", "news+owner@lists.example", "From: eve@far.example\nTo: news+owner@lists.example\nSubject: question\n\nMay I?\n")
	assert.Contains(t, mail(t, s.Maildir("boss"), 1)[0], "May I?")
}
