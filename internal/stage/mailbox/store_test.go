package mailbox

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

const top = "Return-Path: <s@example.org>\nDelivered-To: jim@example.org\nReceived: here\n"

var longHeader = "X-Long: " + strings.Repeat("0123456789", 20<<10) + "\n"

// Bodies, and what the stores hold of the message below the header "Subject: x".
var bodies = map[string]struct {
	header, body  string
	maildir, mbox string
}{
	"an ordinary body":        {"Subject: x\n\n", "body\n", top + "Subject: x\n\nbody\n", top + "Subject: x\n\nbody\n\n"},
	"0 bytes of body":         {"Subject: x\n\n", "", top + "Subject: x\n\n", top + "Subject: x\n\n\n"},
	"no empty line":           {"Subject: x\n", "", top + "Subject: x\n", top + "Subject: x\n\n"},
	"1 byte without newline":  {"Subject: x\n\n", "b", top + "Subject: x\n\nb", top + "Subject: x\n\nb\n\n"},
	"NULs and 8 bit":          {"Subject: x\n\n", "\x00\xff\xfe\x00\n\x80\n", top + "Subject: x\n\n\x00\xff\xfe\x00\n\x80\n", top + "Subject: x\n\n\x00\xff\xfe\x00\n\x80\n\n"},
	"carriage returns":        {"Subject: x\n\n", "a\r\nb\rc\n", top + "Subject: x\n\na\r\nb\rc\n", top + "Subject: x\n\na\r\nb\rc\n\n"},
	"dots":                    {"Subject: x\n\n", ".\n..\n.x\n", top + "Subject: x\n\n.\n..\n.x\n", top + "Subject: x\n\n.\n..\n.x\n\n"},
	"empty lines at the ends": {"Subject: x\n\n", "\n\nx\n\n", top + "Subject: x\n\n\n\nx\n\n", top + "Subject: x\n\n\n\nx\n\n\n"},
	"From lines": {"Subject: x\n\n", "From a\n>From b\n>>From c\nFromage\n From d\n>>x\nFrom",
		top + "Subject: x\n\nFrom a\n>From b\n>>From c\nFromage\n From d\n>>x\nFrom",
		top + "Subject: x\n\n>From a\n>>From b\n>>>From c\nFromage\n From d\n>>x\nFrom\n\n"},
	"a From line among the headers": {"From me Thu\nSubject: x\n\n", "b\n", top + "From me Thu\nSubject: x\n\nb\n", top + ">From me Thu\nSubject: x\n\nb\n\n"},
	"a header line of 200 kB":       {longHeader + "\n", "b\n", top + longHeader + "\nb\n", top + longHeader + "\nb\n\n"},
}

func TestMaildirHoldsTheExactBytes(t *testing.T) { // Z4
	for name, c := range bodies {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			p.deliver("s@example.org", c.header, c.body, mailTo("jim@example.org"))
			assert.Same(t, p.maildir(filepath.Join(p.mail, "jim")), []string{c.maildir})
		})
	}
}

func TestMboxHoldsTheExactBytes(t *testing.T) { // Z4
	const from = "From s@example.org Sat Nov 21 00:12:50 2026\n"
	for name, c := range bodies {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u")
			// Twice, so that it is seen to stand on its own.
			p.deliver("s@example.org", c.header, c.body, mailTo("jim@example.org"))
			p.deliver("s@example.org", c.header, c.body, mailTo("jim@example.org"))
			want := from + c.mbox + from + c.mbox
			assert.Same(t, p.read(filepath.Join(p.mail, "jim")), want)
			assert.Same(t, p.names(p.mail), []string{"jim"}, "files")
		})
	}
}

func TestNullSenderIsDaemonInTheFromLine(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	p.deliver("<>", "Subject: x\n\n", "b\n", mailTo("jim@example.org"))
	want := "From MAILER-DAEMON Sat Nov 21 00:12:50 2026\nReturn-Path: <>\nDelivered-To: jim@example.org\nReceived: here\nSubject: x\n\nb\n\n"
	assert.Same(t, p.read(filepath.Join(p.mail, "jim")), want)
}

func TestSenderWithBlanksIsOneWordInTheFromLine(t *testing.T) {
	assert.Equal(t, fromLine(`"a b	c"@example.org`, testTime), "From \"a-b-c\"@example.org Sat Nov 21 00:12:50 2026\n")
}

// A Maildir and its directories are made on demand, for the user alone; the name
// has time, message, recipient, host and size.
func TestMaildirIsMadeForTheUserAlone(t *testing.T) {
	p := newPost(t, "$MAIL/%d/%u/")
	p.deliver("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
	dir := filepath.Join(p.mail, "example.org", "jim")
	for _, sub := range []string{"", "/tmp", "/new", "/cur"} {
		assert.Equal(t, p.mode(dir+sub), 0o700, "%s: mode", dir+sub)
	}
	name := p.names(dir + "/new")[0]
	assert.Equal(t, p.mode(dir+"/new/"+name), 0o600, "message: mode")
	size := len(p.maildir(dir)[0])
	want := fmt.Sprintf(`^\d{10}\.S\d+A\w+R\d+\.mta\.example\.org,S=%d$`, size)
	if !regexp.MustCompile(want).MatchString(name) {
		t.Errorf("got name %q, want %s", name, want)
	}
}

func TestHostNameOfMaildirFilesIsEscaped(t *testing.T) {
	m, err := New(Config{Template: "/var/mail/%u", Hostname: "a/b:c"})
	assert.Must(t, err)
	assert.Equal(t, m.host, `a\057b\072c`)
}

func TestOneDeliveryOnEachChannel(t *testing.T) { // M49
	p := newPost(t, "$MAIL/%u/")
	file, dir := filepath.Join(p.mail, "archive"), filepath.Join(p.mail, "archives")+"/"
	name := p.queue("s@example.org", "Subject: x\n\n", "body\n",
		mailTo("jim@example.org"), fileTo(file), fileTo(dir), fileTo("/dev/null"),
		workspec.Recipient{Channel: "bitbucket", Host: "-", Address: "/dev/null", Privilege: "65534"},
		// As ZMailer's router has files.
		workspec.Recipient{Channel: "local", Host: "file.other", Address: file, Privilege: ownUID()})
	want := []string{"\tok3 delivered to a Maildir", "\tok3 delivered to an mbox file", "\tok3 delivered to a Maildir",
		"\tok3 discarded", "\tok3 discarded", "\tok3 delivered to an mbox file"}
	assert.Same(t, p.do(name), want, "answers")
	letter := "Return-Path: <s@example.org>\nDelivered-To: " + file + "\nReceived: here\nSubject: x\n\nbody\n\n"
	from := "From s@example.org Sat Nov 21 00:12:50 2026\n"
	assert.Same(t, p.read(file), from+letter+from+letter, "mbox file")
	assert.Equal(t, len(p.maildir(dir))+len(p.maildir(filepath.Join(p.mail, "jim"))), 2, "messages in Maildirs")
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("/dev/null: got %v, %v", info, err)
	}
	// A kill between store and tag leaves the doubt recorded, one event each.
	assert.Equal(t, len(p.Spec(name).History), 4, "sent events")
}

func TestLocalSuccessReportSaysDelivered(t *testing.T) {
	p := newPost(t, "$MAIL/%u/")
	r := mailTo("jim@example.org")
	r.Notary = "NOTIFY=SUCCESS ORCPT=rfc822;jim@example.org"
	name := p.queue("s@example.org", "Subject: x\n\n", "body\n", r)
	assert.Same(t, p.do(name), []string{"\tok2 delivered to a Maildir"}, "answers")
	d := p.Spec(name).Diagnostics
	if len(d) != 1 || d[0].Notary.Action != "delivered" || d[0].Notary.Status != "2.0.0" || d[0].Notary.Diagnostic != "x-local; delivered to a Maildir" {
		t.Errorf("got diagnostics %+v, want one that says delivered", d)
	}
}

// Many deliveries at once: every message arrives once and whole, in a Maildir and
// in one mbox file.
func TestManySlotsDeliverToOneStore(t *testing.T) {
	for name, template := range map[string]string{"Maildir": "$MAIL/%u/", "mbox": "$MAIL/%u"} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, template)
			const count, slots = 200, 8
			jobs := make(chan string, count)
			for i := range count {
				body := fmt.Sprintf("message %d\n%send %d\n", i, strings.Repeat("From here on\n", i%50), i)
				jobs <- p.queue("s@example.org", "Subject: x\n\n", body, mailTo("jim@example.org"))
			}
			close(jobs)
			var working sync.WaitGroup
			for range slots {
				working.Go(func() {
					for job := range jobs {
						for _, l := range p.agent.Do(t.Context(), taproto.Job{Name: job}, p.mailbox) {
							if l.Answer.Word != taproto.OK3 {
								t.Errorf("got %+v, want ok3", l)
							}
						}
					}
				})
			}
			working.Wait()
			var messages []string
			if name == "Maildir" {
				messages = p.maildir(filepath.Join(p.mail, "jim"))
			} else {
				messages = splitMbox(p.read(filepath.Join(p.mail, "jim")))
			}
			checkNumbered(t, messages, count)
		})
	}
}

// splitMbox parts an mbox file as a reader does and undoes the quoting.
func splitMbox(s string) []string {
	var list []string
	for m := range strings.SplitSeq("\n"+s, "\nFrom ") {
		if m != "" {
			_, m, _ = strings.Cut(m, "\n")
			list = append(list, regexp.MustCompile(`(?m)^>(>*From )`).ReplaceAllString(m, "$1"))
		}
	}
	return list
}

// checkNumbered wants messages 0 to count-1, each once and with its end.
func checkNumbered(t *testing.T, messages []string, count int) {
	t.Helper()
	seen := map[int]bool{}
	for _, m := range messages {
		_, body, _ := strings.Cut(m, "\n\n")
		var n int
		if _, err := fmt.Sscanf(body, "message %d\n", &n); err != nil {
			t.Fatalf("got message %.200q", m)
		}
		want := fmt.Sprintf("message %d\n%send %d\n", n, strings.Repeat("From here on\n", n%50), n)
		if strings.TrimRight(body, "\n")+"\n" != want {
			t.Errorf("message %d: got body %.200q", n, body)
		}
		if seen[n] {
			t.Errorf("message %d twice", n)
		}
		seen[n] = true
	}
	assert.Equal(t, len(seen), count, "messages")
}

func TestMissingPartsOfAMaildirAreMade(t *testing.T) {
	p := newPost(t, "$MAIL/%u/")
	p.must(os.MkdirAll(filepath.Join(p.mail, "jim", "tmp"), 0o700))
	p.deliver("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
	if got := p.maildir(filepath.Join(p.mail, "jim")); len(got) != 1 {
		t.Errorf("got %d messages, want 1", len(got))
	}
}
