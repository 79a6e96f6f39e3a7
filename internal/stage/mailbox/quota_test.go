package mailbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/workspec"
)

// K14: a mailbox that is full has its own mail wait, or its senders told, as the setting
// says; others' is delivered. A message that can never fit fails.
func TestFullMailboxIsItsUsersAlone(t *testing.T) {
	for name, c := range map[string]struct {
		template string
		fail     bool
		size     int // of the second message's body
		want     string
	}{
		"Maildir, defer":    {"$MAIL/%u/", false, 600, "deferred 4.2.2"},
		"Maildir, fail":     {"$MAIL/%u/", true, 600, "error2 5.2.2"},
		"Maildir, too big":  {"$MAIL/%u/", false, 2000, "error2 5.2.3"},
		"Maildir, has room": {"$MAIL/%u/", false, 200, "ok3"},
		"mbox, defer":       {"$MAIL/%u", false, 600, "deferred 4.2.2"},
		"mbox, fail":        {"$MAIL/%u", true, 600, "error2 5.2.2"},
		"mbox, too big":     {"$MAIL/%u", false, 2000, "error2 5.2.3"},
		"mbox, has room":    {"$MAIL/%u", false, 200, "ok3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, c.template)
			p.mailbox.c.Quota = Quota{Bytes: 1000, Fail: c.fail}
			p.deliver("s@example.org", "Subject: x\n\n", strings.Repeat("a", 500)+"\n", mailTo("jim@example.org"))
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", strings.Repeat("b", c.size)+"\n", mailTo("jim@example.org")))
			words := strings.Fields(c.want)
			if len(got) != 1 {
				t.Fatalf("got %q", got)
			}
			for _, w := range words {
				if !strings.Contains(got[0], w) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
			p.deliver("s@example.org", "Subject: x\n\n", "b\n", mailTo("joe@example.org"))
			p.deliver("s@example.org", "Subject: x\n\n", strings.Repeat("c", 2000), fileTo(filepath.Join(p.mail, "file")))
		})
	}
}

// The size file is Maildir++'s: what others have written there counts, what cannot be
// believed is counted again, and so is everything before a message is refused, unless
// that was done lately.
func TestMaildirSizeFileIsKept(t *testing.T) {
	const size = 600 // about, of one message
	body := strings.Repeat("a", 600) + "\n"
	for name, c := range map[string]struct {
		file string        // -: none
		age  time.Duration // of the file
		more map[string]int
		room bool
	}{
		"none":                       {"-", time.Hour, nil, true},
		"right":                      {"5000S\n0 0\n", time.Hour, nil, true},
		"another quota":              {"9S\n8000 1\n", time.Hour, nil, true},
		"nonsense":                   {"5000S\nx y\n", time.Hour, nil, true},
		"full, but that is old":      {"5000S\n4900 7\n", time.Hour, nil, true},
		"full, counted lately":       {"5000S\n4900 7\n", 14 * time.Minute, nil, false},
		"full, counted not lately":   {"5000S\n4900 7\n", 15 * time.Minute, nil, true},
		"full, from the future":      {"5000S\n4900 7\n", -time.Minute, nil, true},
		"full, noted since":          {"5000S\n4800 7\n100 1\n", time.Minute, nil, true},
		"messages went":              {"5000S\n4900 7\n-4800 -6\n", time.Hour, nil, true},
		"a line without its end":     {"5000S\n0 0\n12", time.Hour, nil, true},
		"longer than is believed":    {"5000S\n" + strings.Repeat("0 0\n", 2000), time.Hour, nil, true},
		"full":                       {"-", time.Hour, map[string]int{"cur/1.a.b,S=4800:2,S": 1}, false},
		"full by what is in folders": {"-", time.Hour, map[string]int{".Sent/cur/1": 4800}, false},
		"full of trash":              {"-", time.Hour, map[string]int{".Trash/cur/1": 4800, "cur/2.a.b,S=4000:2,ST": 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			p.mailbox.c.Quota = Quota{Bytes: 5000}
			dir := filepath.Join(p.mail, "jim")
			for _, sub := range []string{"new", "cur", "tmp"} {
				p.must(os.MkdirAll(filepath.Join(dir, sub), 0o700))
			}
			if c.file != "-" {
				p.must(os.WriteFile(filepath.Join(dir, sizeFile), []byte(c.file), 0o600))
				p.must(os.Chtimes(filepath.Join(dir, sizeFile), testTime, testTime.Add(-c.age)))
			}
			for name, n := range c.more {
				p.must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
				p.must(os.WriteFile(filepath.Join(dir, name), make([]byte, n), 0o600))
			}
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", body, mailTo("jim@example.org")))
			if room := strings.Contains(got[0], "ok3"); room != c.room {
				t.Fatalf("got %q, want room %v", got, c.room)
			}
			box, err := openMaildir(dir, os.Geteuid(), true)
			p.must(err)
			defer box.Close()
			sum, ok := p.mailbox.c.Quota.summed(box)
			counted, _, err := counted(box)
			p.must(err)
			if c.file == "-" && (!ok || sum.bytes != counted) {
				t.Errorf("the size file says %d, %v; there are %d bytes", sum.bytes, ok, counted)
			}
			if names := p.names(filepath.Join(dir, "tmp")); len(names) > 0 || counted > 5000 || c.room && counted < size {
				t.Errorf("left in tmp/: %q; %d bytes", names, counted)
			}
		})
	}
}

// Whatever a user puts in the place of the files that a quota needs: his own mail comes,
// and the agent, which is everybody's, does not wait.
func TestPipeInPlaceOfTheSizeFileDoesNotBlock(t *testing.T) {
	for name, place := range map[string]func(path string) error{
		"named pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link to a pipe": func(path string) error {
			return errors.Join(unix.Mkfifo(path+".pipe", 0o600), os.Symlink(path+".pipe", path))
		},
		"directory":           func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe for the rename": func(path string) error { return unix.Mkfifo(filepath.Dir(path)+"/tmp/again.size", 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			q := Quota{Bytes: 5000}
			p.mailbox.c.Quota = q
			dir := filepath.Join(p.mail, "jim")
			for _, sub := range []string{"new", "cur", "tmp"} {
				p.must(os.MkdirAll(filepath.Join(dir, sub), 0o700))
			}
			p.must(place(filepath.Join(dir, sizeFile)))
			box, err := openMaildir(dir, os.Geteuid(), true)
			p.must(err)
			defer box.Close()
			done := make(chan error, 1)
			go func() {
				q.note(box, 100)
				if _, ok := q.summed(box); ok {
					done <- errors.New("it was believed")
					return
				}
				done <- q.maildirRoom(box, "again", 100, testTime)
			}()
			select {
			case err := <-done:
				p.must(err)
			case <-time.After(20 * time.Second):
				t.Fatal("the agent waits for the pipe's other end")
			}
			p.deliver("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
			p.deliver("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
		})
	}
}

// Mail that comes back to the mailbox where it was delivered fails with 5.4.6 (RFC 3463
// §3.5); other fields do not matter, nor does the body. A program has all mail: its ORCPT
// is the client's, and Delivered-To of that address is another system's that forwards.
func TestMailThatComesBackFails(t *testing.T) {
	program := workspec.Recipient{Channel: "pipe", Host: "pipe." + ownUID(), Address: "|cat >/dev/null", Privilege: ownUID(),
		Notary: "ORCPT=rfc822;alice@a.example"}
	for name, c := range map[string]struct {
		header string
		to     workspec.Recipient
		loops  bool
	}{
		"to the same mailbox":    {"Received: x\nDelivered-To: jim@example.org\nSubject: x\n\n", mailTo("jim@example.org"), true},
		"in other letters":       {"delivered-to:Jim@EXAMPLE.org  \nSubject: x\n\n", mailTo("jim@example.org"), true},
		"to another":             {"Delivered-To: joe@example.org\nSubject: x\n\n", mailTo("jim@example.org"), false},
		"another field":          {"X-Delivered-To: jim@example.org\nSubject: x\n\n", mailTo("jim@example.org"), false},
		"forwarded to a program": {"Delivered-To: alice@a.example\nReceived: x\nSubject: x\n\n", program, false},
		"behind another of them": {"Delivered-To: a@b\nDelivered-To: jim@example.org\n\n", mailTo("jim@example.org"), true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			p.mailbox.c.Pipe = Pipe{Nobody: true, Limit: time.Minute, User: "daemon"}
			got := p.do(p.queue("s@example.org", c.header, "body\n", c.to))
			if loops := len(got) == 1 && strings.Contains(got[0], "5.4.6"); loops != c.loops || !c.loops && !strings.Contains(got[0], "ok3") {
				t.Errorf("got %q, want a loop: %v", got, c.loops)
			}
		})
	}
}
