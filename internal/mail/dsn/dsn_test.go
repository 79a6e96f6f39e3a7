package dsn

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	arrival = time.Date(2026, 11, 21, 0, 12, 50, 0, time.UTC)
	attempt = time.Date(2026, 11, 21, 0, 13, 30, 0, time.FixedZone("", 2*3600))
)

const originalHeader = "Received: from localhost by mta.zm.example.org with ESMTP\n" +
	"\tid S10117782AbmKUAMvC0rAD; Sat, 21 Nov 2026 00:12:51 +0000\n" +
	"From: Sender One <sender@client.example.net>\n" +
	"Subject: one failing recipient\n"

func report(change func(*Report)) *Report {
	r := &Report{
		ReportingMTA: "mta.zm.example.org",
		From:         "MAILER-DAEMON@mta.zm.example.org",
		To:           "sender@client.example.net",
		MessageID:    "<report-1@mta.zm.example.org>",
		Date:         time.Date(2026, 11, 21, 0, 13, 31, 0, time.UTC),
		Boundary:     "golden-boundary",
		Arrival:      arrival,
		SpoolID:      "S10117782A2CnLkQ0vB8C",
		Original:     strings.NewReader(originalHeader),
		Recipients: []Recipient{{
			Original:    "rfc822;fail1@b.example.com",
			Final:       "fail1@b.example.com",
			Action:      Failed,
			Status:      "5.1.1",
			Remote:      "dns; mx.b.example.com (192.0.2.1)",
			Diagnostic:  "smtp; 550 5.1.1 fail1@b.example.com: no such user here",
			LastAttempt: attempt,
			Text:        "<<- RCPT To:<fail1@b.example.com>\n->> 550 5.1.1 fail1@b.example.com: no such user here",
		}},
	}
	if change != nil {
		change(r)
	}
	return r
}

func goldenReports() map[string]*Report {
	return map[string]*Report{
		"failed": report(nil),
		"failed-full-8bit": report(func(r *Report) {
			r.Full = true
			r.EnvID = "QQ314159"
			r.Original = strings.NewReader(originalHeader + "\nGr\xfc\xdfe\n.dot line\nlast line without newline")
		}),
		"nothing-returned": report(func(r *Report) { r.Original = nil; r.Arrival = time.Time{}; r.SpoolID = "" }),
		"expired": report(func(r *Report) {
			p := &r.Recipients[0]
			p.Status, p.Remote, p.Diagnostic = "4.4.7", "", "smtp; 451 4.3.0 try again later"
			p.Text = "expired after 3 days; last answer: 451 4.3.0 try again later"
		}),
		"delayed": report(func(r *Report) {
			p := &r.Recipients[0]
			p.Action, p.Status = Delayed, "4.4.1 (no answer from host)"
			p.Diagnostic, p.Remote, p.Text = "smtp; 421 no answer", "", "connect: connection timed out"
			p.WillRetryUntil = arrival.Add(72 * time.Hour)
		}),
		"delivered-and-relayed": report(func(r *Report) {
			r.Recipients = []Recipient{
				{Original: "rfc822;list@a.example.com", Final: "root@zm.example.org", Action: Delivered, Status: "2.1.5"},
				{Final: "user@a.example.com", Action: Relayed, Status: "2.0.0", Remote: "dns; a.example.com", Diagnostic: "smtp; 250 2.0.0 ok", LastAttempt: attempt},
			}
		}),
		"mixed": report(func(r *Report) {
			r.Recipients = append(r.Recipients,
				Recipient{Final: "late@c.example.com", Action: Delayed, Status: "4.2.2", WillRetryUntil: arrival.Add(72 * time.Hour)},
				Recipient{Final: "ok@d.example.com", Action: Expanded, Status: "2.0.0"},
				Recipient{Final: "big@d.example.com", Action: Failed, Status: "5.3.4", Text: "552 too big"})
		}),
		"hostile-remote": report(func(r *Report) {
			p := &r.Recipients[0]
			p.Diagnostic = "smtp; 550 no\r\nFinal-Recipient: rfc822; other@x.example\r\n\r\n--golden-boundary\r\n\x00\x1b[2Jend " + strings.Repeat("word ", 60) + strings.Repeat("x", 2000)
			p.Remote = "dns; evil.example\nAction: delivered"
			p.Text = "--golden-boundary\nContent-Type: text/html\n\n--golden-boundary--\r\n\x07bell\n"
			p.Status = "nonsense\n5.1.1"
			r.EnvID = "a\nStatus: 2.0.0"
		}),
		"utf8": report(func(r *Report) {
			r.UTF8, r.Full = true, true
			r.To = "пример@почта.example"
			r.Recipients[0].Final = "δοκιμή@παράδειγμα.example"
			r.Recipients[0].Original = "utf-8;δοκιμή@παράδειγμα.example"
			r.Recipients[0].Diagnostic = "smtp; 550 5.1.1 нет такого пользователя"
			r.Recipients[0].Text = "550 5.1.1 нет такого пользователя"
			r.Original = strings.NewReader("Subject: Привет\n\nтело\n")
		}),
		"utf8-headers": report(func(r *Report) {
			r.UTF8 = true
			r.Original = strings.NewReader("Subject: Привет\n")
		}),
		"ascii-report-of-utf8-address": report(func(r *Report) {
			r.Recipients[0].Final = "jürgen@bücher.example"
			r.Recipients[0].Original = "rfc822;jürgen@bücher.example"
			r.Recipients[0].Diagnostic = "smtp; 553 5.6.7 no SMTPUTF8 for jürgen"
			r.Recipients[0].Status = "5.6.7"
			r.Recipients[0].Text = "no SMTPUTF8 for jürgen"
		}),
		"german": report(func(r *Report) {
			r.Language, r.InReplyTo, r.ReceivedFrom = "de", "<1@client.example.net>", "client.example.net ([192.0.2.7])"
			r.Recipients[0].LogID = r.SpoolID
		}),
		"encoded-headers": report(func(r *Report) {
			r.Encoding = "quoted-printable"
			r.Original = strings.NewReader("Subject: " + strings.Repeat("long ", 300) + "\nX: Gr\xfc\xdfe\x00\n")
		}),
		"untyped-fields": report(func(r *Report) {
			p := &r.Recipients[0]
			p.Original, p.Remote, p.Diagnostic = "fail1@b.example.com", "mx.b.example.com", "mailbox: disk quota"
			p.Final = `"john  q. doe"@b.example.com`
		}),
	}
}

// M37: the fields of RFC 3464 stand where a program looks for them.
func TestReportsAreAsRecorded(t *testing.T) {
	for name, r := range goldenReports() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			assert.Must(t, Write(&b, r))
			file := filepath.Join("testdata", name+".eml")
			if *update {
				assert.Must(t, os.WriteFile(file, b.Bytes(), 0o644))
			}
			want := assert.Get(os.ReadFile(file))(t)
			assert.Same(t, b.String(), string(want), "report")
			if i := bytes.IndexByte(b.Bytes(), '\r'); i >= 0 {
				t.Errorf("a CR at byte %d", i)
			}
			for n, line := range strings.Split(b.String(), "\n") {
				if len(line) > 998 {
					t.Errorf("line %d: got %d bytes, want at most 998", n+1, len(line))
				}
			}
		})
	}
}

func TestImpossibleReportsAreRefused(t *testing.T) {
	cases := map[string]func(*Report){
		"no recipients":         func(r *Report) { r.Recipients = nil },
		"to the null sender":    func(r *Report) { r.To = "" },
		"to no address":         func(r *Report) { r.To = "a b@c" },
		"from the null sender":  func(r *Report) { r.From = "<>" },
		"header break in to":    func(r *Report) { r.To = "a@b.example>\nBcc: <c@d.example" },
		"unknown action":        func(r *Report) { r.Recipients[0].Action = "lost" },
		"an encoded message":    func(r *Report) { r.Full, r.Encoding = true, "quoted-printable" },
		"boundary with newline": func(r *Report) { r.Boundary = "a\nb" },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, report(change)); err == nil {
				t.Errorf("got no error and %q", b.String())
			}
			if b.Len() > 0 {
				t.Errorf("got %d bytes before the error, want none", b.Len())
			}
		})
	}
}

// Errors of the disk and of the message come out, named once.
func TestErrorsOfReaderAndWriterComeOut(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(strings.Repeat("x\n", 60<<10)), &failing{})
	err := Write(io.Discard, report(func(r *Report) { r.Original = broken }))
	assert.Equal(t, errString(err), "write report: read original: no more", "reader")
	err = Write(&failing{}, report(nil))
	assert.Equal(t, errString(err), "write report: no more", "writer")
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type failing struct{}

func (*failing) Read([]byte) (int, error)  { return 0, errNoMore }
func (*failing) Write([]byte) (int, error) { return 0, errNoMore }

var errNoMore = errorString("no more")

type errorString string

func (e errorString) Error() string { return string(e) }
