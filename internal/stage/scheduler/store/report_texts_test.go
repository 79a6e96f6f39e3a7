package store

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// texts returns a configuration directory with texts for reports.
func texts(t *testing.T, conf string, files map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	files = mapWith(files, "zmailer.conf", "", "scheduler.conf", conf)
	for name, text := range files {
		assert.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	c, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	assert.Must(t, err)
	return c
}

func mapWith(m map[string]string, pairs ...string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// M37: the words of reports are those beside zmailer.conf, in the language of the
// message.
func TestReportSpeaksTheLanguageOfTheMessage(t *testing.T) {
	own := "Subject: Desole\n\nBonjour.\n{{range .Groups}}{{range .Recipients}}\n* {{.Address}}\n{{end}}{{end}}\n"
	tests := map[string]struct {
		header, conf, want string
	}{
		"nothing said":            {"", "", "Subject: Your message could not be delivered\n"},
		"wrote German":            {"Content-Language: de-CH\n", "", "Subject: Ihre Nachricht konnte nicht zugestellt werden\n"},
		"reads German":            {"Content-Language: en\nAccept-Language: tlh, de;q=0.3\n", "", "Content-Language: de\n"},
		"its own text":            {"accept-language: fr\n", "", "Subject: Desole\n"},
		"the postmaster's choice": {"", "PARAM report-language = fr\n", "\nBonjour.\n* x@h\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := texts(t, tt.conf+storetest.Conf, map[string]string{"reports/fr/failed": own, "reports/fr/failed~": "{{", "reports/.hidden": ""})
			next, err := conf.Load(c, os.Geteuid() == 0)
			assert.Must(t, err)
			b, _ := diskBox(t)
			b.spool.Conf = next
			name := b.queueHeader(storetest.Header+tt.header, "Body.\n", storetest.Rcpt{Line: "smtp h x@h"})
			b.Mark(name, 0, "failed", workspec.TagFailed)
			b.settle(name)
			if r := b.Reports(); len(r) != 1 || !strings.Contains(r[0], tt.want) {
				t.Errorf("%q is missing in %s", tt.want, r)
			}
		})
	}
}

// queueHeader is queue with other headers.
func (b *box) queueHeader(header, body string, rcpts ...storetest.Rcpt) string {
	b.T.Helper()
	name, err := storetest.QueueWith(b.PO, "a@b", header, body, rcpts)
	assert.Must(b.T, err)
	return name
}

// A text that cannot be used is refused at the start, with file and line.
func TestBadReportTextIsRefused(t *testing.T) {
	tests := map[string]struct {
		conf, file, text string
		line             int
		want             string
	}{
		"broken":            {"", "reports/de/failed", "Subject: x\n\n\n{{.Wrong}}\n", 4, "Wrong"},
		"unknown kind":      {"", "reports/de/bounced", "Subject: x\n\n", 0, "failed, delayed, delivered"},
		"bad language":      {"", "reports/Deutsch!/failed", "Subject: x\n\nx\n", 0, "language"},
		"a file, no folder": {"", "reports/failed", "Subject: x\n\nx\n", 0, "must be a directory"},
		"no such language":  {"PARAM report-language = fr\n", "reports/it/failed", "Subject: x\n\nx\n", 0, "report-language"},
	}
	for name, tt := range tests {
		c := texts(t, tt.conf+storetest.Conf, map[string]string{tt.file: tt.text})
		_, err := conf.Load(c, os.Geteuid() == 0)
		list := conf.Errors(err)
		e := (*config.Error)(nil)
		if len(list) != 1 || !errors.As(list[0], &e) || e.Line != tt.line || !strings.Contains(e.Error(), tt.want) || !strings.Contains(e.File, "/reports/") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, param := range []string{"report-language = x!", "report-size = many", "report-full-size = -1", "report-copies = a b@c", "report-copies = <>"} {
		if _, err := conf.Parse("f", []byte("PARAM "+param+"\n"+storetest.Conf), os.LookupEnv); err == nil {
			t.Errorf("PARAM %s is taken", param)
		}
	}
}

// A text that fails on this report gives way to the built-in one: the report goes out.
func TestReportIsNotLostForItsText(t *testing.T) {
	bad := "Subject: x\n\n{{range .Groups}}{{range .Recipients}}{{if eq .Address \"x@h\"}}{{.Host}}{{end}}{{end}}{{end}}\n"
	next, err := conf.Load(texts(t, storetest.Conf, map[string]string{"reports/en/failed": bad}), os.Geteuid() == 0)
	assert.Must(t, err)
	b, _ := diskBox(t)
	b.spool.Conf = next
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	b.Mark(name, 0, "failed", workspec.TagFailed)
	b.settle(name)
	if r := b.Reports(); len(r) != 1 || !strings.Contains(r[0], "Subject: Your message could not be delivered\n") {
		t.Errorf("got %v", r)
	}
	b.WantLog("report-text", "reports/en/failed", "line 3")
}

// M37: what comes back is what may be sent, with a label that is true, and no more
// than the limits.
func TestReportReturnsWhatMayBeSent(t *testing.T) {
	long := strings.Repeat("x", 999) + "\n"
	tests := map[string]struct {
		header, body, ret, conf  string
		kind, encoding, returned string // of the part, and a text that must be in it
	}{
		"ASCII":                       {"", "plain\n", "", "", "message/rfc822", "7bit", "\n\nplain\n"},
		"8-bit body":                  {"", "gr\xfc\xdfe\n", "", "", "message/rfc822", "8bit", "\n\ngr\xfc\xdfe\n"},
		"8-bit header":                {"Subject: gr\xfc\xdfe\n", "x\n", "", "", "message/rfc822", "8bit", "gr\xfc\xdfe\n"},
		"UTF-8 header":                {"Subject: grüße\n", "x\n", "", "", "message/global", "8bit", "grüße\n"},
		"a long line":                 {"", long, "FULL", "", "text/rfc822-headers", "7bit", "Subject: test\n"},
		"a NUL":                       {"", "a\x00b\n", "FULL", "", "text/rfc822-headers", "7bit", "Subject: test\n"},
		"a CR":                        {"", "a\rb\n", "", "", "text/rfc822-headers", "7bit", "Subject: test\n"},
		"a long header line":          {"X-Long: " + long, "x\n", "", "", "text/rfc822-headers", "quoted-printable", "X-Long: xxx"},
		"RET=FULL, not small":         {"", strings.Repeat("line\n", 20_000), "FULL", "", "message/rfc822", "7bit", "line\nline\n"},
		"RET=FULL above its limit":    {"", strings.Repeat("line\n", 20_000), "FULL", "PARAM report-full-size = 90k\n", "text/rfc822-headers", "7bit", "Subject: test\n"},
		"no RET above its limit":      {"", strings.Repeat("line\n", 300), "", "PARAM report-size = 1k\n", "text/rfc822-headers", "7bit", "Subject: test\n"},
		"no RET, no limit":            {"", strings.Repeat("line\n", 20_000), "", "PARAM report-size = 0\n", "message/rfc822", "7bit", "line\nline\n"},
		"RET=HDRS of an 8-bit header": {"Subject: gr\xfc\xdfe\n", "x\n", "HDRS", "", "text/rfc822-headers", "8bit", "gr\xfc\xdfe\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			b.spool.Conf = mustConf(t, tt.conf+storetest.Conf)
			name := b.queueHeader(storetest.Header+tt.header, tt.body, storetest.Rcpt{Line: "smtp h x@h", Ret: tt.ret})
			b.Mark(name, 0, "failed", workspec.TagFailed)
			b.settle(name)
			r := b.Reports()
			if len(r) != 1 {
				t.Fatalf("%d reports", len(r))
			}
			_, part, _ := strings.Cut(r[0], "Content-Type: "+tt.kind+"\n")
			if !strings.HasPrefix(part, "Content-Transfer-Encoding: "+tt.encoding+"\n") || !strings.Contains(part, tt.returned) {
				t.Errorf("want %s, %s, %.80q in\n%.3000s", tt.kind, tt.encoding, tt.returned, r[0])
			}
			head, _, _ := strings.Cut(r[0], "\n--")
			assert.Equal(t, strings.Contains(head, "Content-Transfer-Encoding: 8bit\n"), tt.encoding == "8bit", "encoding of the whole")
		})
	}
}

// Z19: mail that no person waits for gets no reports of delay, but those of failure
// (RFC 3834 §2) and of success that it asked for (RFC 3461 §5.2.2).
func TestAutomaticMailHearsOfFailuresAlone(t *testing.T) {
	for header, automatic := range map[string]bool{
		"": false, "Auto-Submitted: no\n": false, "Auto-Submitted: No; x=y\n": false, "Precedence: first-class\n": false, "X-Precedence: bulk\n": false,
		"Auto-Submitted: auto-replied\n": true, "auto-submitted:\n auto-generated; x\n": true, "Precedence: bulk\n": true, "Precedence: List\n": true,
		"precedence: junk\n": true, "List-Id: <x.example>\n": true,
	} {
		b, _ := diskBox(t)
		file := b.queueHeader(storetest.Header+header, "x\n", storetest.Rcpt{Line: "smtp h late@h", Notary: "NOTIFY=DELAY,FAILURE"},
			storetest.Rcpt{Line: "smtp h bad@h"}, storetest.Rcpt{Line: "smtp h good@h", Notary: "NOTIFY=SUCCESS"})
		b.Mark(file, 1, "failed", workspec.TagFailed)
		b.Mark(file, 2, "delivered", workspec.TagOK)
		b.Now = b.Now.Add(5 * 3600e9)
		b.settle(file)
		got := map[string]int{}
		for _, r := range b.Reports() {
			for _, action := range storetest.Fields(r, "Action") {
				got[action]++
			}
		}
		if got["failed"] != 1 || got["delivered"] != 1 || (got["delayed"] == 1) == automatic {
			t.Errorf("%q: got reports %v", header, got)
		}
	}
}

// M38: who reads along gets every failure report, and no other.
func TestCopiesOfFailureReports(t *testing.T) {
	b, _ := diskBox(t)
	b.spool.Conf = mustConf(t, "PARAM report-copies = postmaster@mx.example.org\n"+storetest.Conf)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h", Notary: "NOTIFY=SUCCESS"})
	b.Mark(name, 0, "failed", workspec.TagFailed)
	b.Mark(name, 1, "delivered", workspec.TagOK)
	b.settle(name)
	for _, r := range b.Reports() {
		head, _, _ := strings.Cut(r, "env-end\n")
		failed := strings.Contains(r, "Action: failed\n")
		if got := strings.HasSuffix(head, "to <a@b>\nto <postmaster@mx.example.org>\n"); got != failed {
			t.Errorf("failed %v: envelope %q", failed, head)
		}
	}
	assert.Equal(t, len(b.Reports()), 2, "reports")
}

// M37: where the message came from, what it was, and our name for it are told.
func TestReportNamesTheMessage(t *testing.T) {
	b, _ := diskBox(t)
	header := "Received: from client.example ([192.0.2.1] (really) by \"x\")\n\tby mx.example.org with ESMTP; now\n" +
		"Received: from other.example by client.example\nMessage-ID:\n <1@client.example>\n"
	name := b.queueHeader(header, "x\n", storetest.Rcpt{Line: "smtp h x@h"})
	id := b.load(name).ID.String()
	b.Mark(name, 0, "failed", workspec.TagFailed)
	b.settle(name)
	r := b.Reports()[0]
	for field, want := range map[string]string{"Received-From-MTA": `dns; client.example ([192.0.2.1] (really) by "x")`,
		"Final-Log-ID": id, "X-Spool-ID": id, "In-Reply-To": "<1@client.example>", "References": "<1@client.example>"} {
		assert.Equal(t, strings.Join(storetest.Fields(r, field), "|"), want, field)
	}
}

// M38: ten thousand failures make reports of a size that can be read, each recipient
// in one of them; the message is returned once. Memory does not grow with them.
func TestManyFailuresArePartedIntoReports(t *testing.T) {
	const many = 2500
	b, _ := diskBox(t)
	var list []storetest.Rcpt
	for i := range many {
		list = append(list, storetest.Rcpt{Line: "smtp h user" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + "@h"})
	}
	name := b.Queue("a@b", list...)
	f, spec := b.opened(name), b.Parse(name)
	var lines []byte
	long := "550 " + strings.Repeat("no ", 300)
	for i := range spec.Groups[0].Recipients {
		r := &spec.Groups[0].Recipients[i]
		lines = workspec.AppendDiagnostic(lines, &workspec.Diagnostic{Recipient: r.Offset, Time: b.Now, Text: long,
			Notary: workspec.Notary{Address: r.Address, Action: "failed", Status: "5.1.1", Diagnostic: "smtp; " + long}})
		assert.Must(t, f.SetTag(workspec.TagBytes(spec.Format, workspec.TagFailed), workspec.TagOffset(r.Offset)))
	}
	assert.Must(t, f.Append(lines))
	if s := b.settle(name); !s.Finished {
		t.Errorf("got %+v", s)
	}
	told, whole := 0, 0
	reports := b.Reports()
	for _, r := range reports {
		told += len(storetest.Fields(r, "Final-Recipient"))
		if strings.Contains(r, "message/rfc822") {
			whole++
		}
		if n := len(storetest.Fields(r, "Action")); n > maxReported {
			t.Errorf("a report of %d recipients", n)
		}
	}
	if len(reports) != 3 || told != many || whole != 1 {
		t.Errorf("%d reports on %d recipients, %d with the message; want 3 on %d, 1", len(reports), told, whole, many)
	}
}

// rfc3464 reads a report with the mail package of Python, which others wrote by RFC 3464:
// the fields of the message as a whole, then those of each recipient.
const rfc3464 = `
import email, json, sys
m = email.message_from_bytes(sys.stdin.buffer.read())
assert m.get_content_type() == "multipart/report" and m.get_param("report-type") == "delivery-status"
parts = m.get_payload()
assert len(parts) == 3 and parts[1].get_content_type() == "message/delivery-status" and not m.defects
json.dump([dict(g.items()) for g in parts[1].get_payload()], sys.stdout)
`

// parsed returns the report that another's parser has read.
func parsed(t *testing.T, report string) []map[string]string {
	t.Helper()
	_, message, ok := strings.Cut(report, "env-end\n")
	if !ok {
		t.Fatalf("no envelope: %.100q", report)
	}
	cmd := exec.Command("python3", "-c", rfc3464)
	cmd.Stdin = strings.NewReader(message)
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("python3 is not installed")
	}
	if bad := (*exec.ExitError)(nil); errors.As(err, &bad) {
		t.Fatalf("%v: %s", err, bad.Stderr)
	}
	var groups []map[string]string
	if err := json.Unmarshal(out, &groups); err != nil || len(groups) < 2 {
		t.Fatalf("%v: %s", err, out)
	}
	return groups
}

// Net6: the report of an expired recipient and of a delay has the last reply of the remote
// host, with its status and who said it (RFC 3464 sections 2.3.4 to 2.3.6).
func TestNet6ReportsTellTheLastReplyOfTheRemoteHost(t *testing.T) {
	tests := map[string]struct {
		last   Outcome
		expiry map[string]string
		delay  map[string]string
	}{
		"a reply": {Outcome{Text: "<<- RCPT To:<x@h>\n->> 452 4.2.2 full to the brim",
			Notary: workspec.Notary{Status: "4.2.2", Diagnostic: "smtp; 452 4.2.2 full to the brim", Remote: "dns; mx.example.org (192.0.2.1|25|192.0.2.9|40001)"}},
			map[string]string{"Status": "4.2.2", "Remote-MTA": "dns; mx.example.org", "Diagnostic-Code": "smtp; 452 4.2.2 full to the brim"},
			map[string]string{"Status": "4.2.2", "Remote-MTA": "dns; mx.example.org", "Diagnostic-Code": "smtp; 452 4.2.2 full to the brim"}},
		"a reply without an enhanced code": {Outcome{Text: "451 try again", Notary: workspec.Notary{Remote: "X-IP-addr; [192.0.2.1] (192.0.2.1|25|192.0.2.9|40001)"}},
			map[string]string{"Status": "4.0.0", "Remote-MTA": "X-IP-addr; [192.0.2.1]", "Diagnostic-Code": "smtp; 451 try again"},
			map[string]string{"Status": "4.0.0", "Remote-MTA": "X-IP-addr; [192.0.2.1]", "Diagnostic-Code": "smtp; 451 try again"}},
		"no host has answered": {Outcome{Text: "connection refused", Notary: workspec.Notary{Status: "4.4.1"}},
			map[string]string{"Status": "4.4.7", "Remote-MTA": "", "Diagnostic-Code": "x-local; connection refused"},
			map[string]string{"Status": "4.4.1", "Remote-MTA": "", "Diagnostic-Code": "x-local; connection refused"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h x@h"})
			o := tt.last
			o.Offset, o.Result, o.Attempt, o.Next = storetest.OffsetOf(b.Parse(file), 0), thread.Deferred, 1, b.Now.Add(time.Hour)
			assert.Must(t, b.record(file, []Outcome{o}))
			want := func(report, action string, fields map[string]string) {
				t.Helper()
				group := parsed(t, report)[1]
				if group["Action"] != action || group["Final-Recipient"] != "rfc822; x@h" {
					t.Errorf("got %v, want %s", group, action)
				}
				for field, value := range fields {
					assert.Equal(t, group[field], value, "%s: %s", action, field)
				}
			}
			b.Now = b.Now.Add(5 * time.Hour)
			b.settle(file)
			if list := b.Reports(); len(list) != 1 {
				t.Fatalf("%d reports of the delay", len(list))
			}
			delay := b.List("router")[0]
			want(b.Reports()[0], "delayed", tt.delay)
			b.Now = b.Now.Add(73 * time.Hour)
			if _, err := b.expire(file, []int64{o.Offset}, ""); err != nil {
				t.Fatal(err)
			}
			if set := b.settle(file); !set.Finished {
				t.Fatalf("got %+v", set)
			}
			for _, name := range b.List("router") {
				if name != delay {
					want(b.Read("router/"+name), "failed", tt.expiry)
				}
			}
			assert.Equal(t, len(b.List("router")), 2, "reports")
		})
	}
}

// Net6: report-size holds for a header that is returned, too: whole fields up to it.
func TestNet6ReturnedHeaderIsNoLargerThanReportSize(t *testing.T) {
	for name, header := range map[string]string{
		"many fields":   storetest.Header + strings.Repeat("X-Spam: "+strings.Repeat("x", 500)+"\n", 40_000),
		"one field":     "X-Spam: " + strings.Repeat(strings.Repeat("x", 500)+"\n ", 40_000) + "x\n",
		"one long line": "X-Spam: " + strings.Repeat("x", 18<<20) + "\n",
	} {
		for _, ret := range []string{"", "HDRS", "FULL"} {
			t.Run(name+" "+ret, func(t *testing.T) {
				b, _ := diskBox(t)
				file, err := storetest.QueueWith(b.PO, "sender@far.example", header, strings.Repeat("body\n", 3<<20), []storetest.Rcpt{{Line: "smtp h x@h", Ret: ret}})
				assert.Must(t, err)
				b.Mark(file, 0, "failed", workspec.TagFailed)
				if set := b.settle(file); !set.Finished {
					t.Fatalf("got %+v", set)
				}
				report := b.Reports()[0]
				// Quoted-printable makes up to three bytes of one, and the rest is the report.
				if size := int64(len(report)); size > 2*b.spool.Conf.Current().Reports.Size {
					t.Errorf("the report has %d bytes", size)
				}
				if !strings.Contains(report, "\nX-Spam: x") {
					t.Error("nothing of the header is returned")
				}
				parsed(t, report)
			})
		}
	}
}
