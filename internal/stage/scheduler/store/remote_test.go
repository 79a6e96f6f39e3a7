package store

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

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

// parsed is the report that another's parser has read.
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

// Net6: the report of an expired recipient and of a delay tells the last reply of the remote
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
					if group[field] != value {
						t.Errorf("%s: %s is %q, want %q", action, field, group[field], value)
					}
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
			if n := len(b.List("router")); n != 2 {
				t.Errorf("%d reports, want two", n)
			}
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
