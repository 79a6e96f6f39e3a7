package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// M37: every NOTIFY with every outcome, RET, ENVID and ORCPT: whether there is a report,
// what it says, and what it returns (RFC 3461 §4, §5.2, §6; RFC 3464 §2).
func TestWholeMatrixOfReports(t *testing.T) {
	outcomes := map[string]struct{ line, keyword, action string }{
		"failed":    {"smtp h x@h", "FAILURE", "failed"},
		"delayed":   {"smtp h x@h", "DELAY", "delayed"},
		"delivered": {"smtp h x@h", "SUCCESS", "delivered"},
		"relayed":   {"smtp h x@h", "SUCCESS", "relayed"},
		"expanded":  {"bitbucket expanded x@h", "SUCCESS", "expanded"},
		"error":     {"error nouser x@h", "FAILURE", "failed"},
	}
	count := 0
	for name, o := range outcomes {
		for _, notify := range []string{"", "NEVER", "SUCCESS", "FAILURE", "DELAY", "SUCCESS,FAILURE", "FAILURE,DELAY", "SUCCESS,DELAY", "SUCCESS,FAILURE,DELAY"} {
			for _, ret := range []string{"", "FULL", "HDRS"} {
				for _, envID := range []string{"", "QQ+2B314"} {
					for _, orcpt := range []string{"", "rfc822;o+3Dr@g"} {
						if count++; testing.Short() && count%5 != 0 {
							continue
						}
						cell := fmt.Sprintf("%s NOTIFY=%s RET=%s ENVID=%s ORCPT=%s", name, notify, ret, envID, orcpt)
						notary := ""
						if notify != "" {
							notary = "NOTIFY=" + notify
						}
						if orcpt != "" {
							notary = strings.TrimSpace(notary + " ORCPT=" + orcpt)
						}
						want := strings.Contains(notify, o.keyword) || notify == "" && o.keyword != "SUCCESS"
						got := oneReport(t, cell, name, storetest.Rcpt{Line: o.line, Notary: notary, Ret: ret, EnvID: envID})
						if (got != "") != want {
							t.Errorf("%s: report %v, want %v", cell, got != "", want)
							continue
						}
						if want {
							checkCell(t, cell, got, o.action, ret, envID, orcpt)
						}
					}
				}
			}
		}
	}
	if count != 6*9*3*2*2 {
		t.Errorf("%d cells", count)
	}
}

// oneReport brings a message with one recipient to its outcome and gives its report.
func oneReport(t *testing.T, cell, outcome string, r storetest.Rcpt) string {
	t.Helper()
	b := newBox(t, cutfs.New())
	file := b.Queue("a@b", r)
	switch outcome {
	case "failed":
		b.Mark(file, 0, outcome, workspec.TagFailed)
	case "delivered", "relayed":
		b.Mark(file, 0, outcome, workspec.TagOK)
	case "delayed":
		b.Now = b.Now.Add(5 * time.Hour)
	default:
		b.load(file)
	}
	b.settle(file)
	list := b.Reports()
	if len(list) > 1 {
		t.Errorf("%s: %d reports", cell, len(list))
	}
	return strings.Join(list, "")
}

func checkCell(t *testing.T, cell, report, action, ret, envID, orcpt string) {
	t.Helper()
	want := map[string]string{
		"Action": action, "Final-Recipient": "rfc822; x@h", "Reporting-MTA": "dns; mx.example.org",
		"Original-Envelope-Id": "", "Original-Recipient": "",
	}
	if envID != "" {
		want["Original-Envelope-Id"] = "QQ+314"
	}
	if orcpt != "" {
		want["Original-Recipient"] = "rfc822; o=r@g"
	}
	for field, value := range want {
		if got := strings.Join(storetest.Fields(report, field), "|"); got != value {
			t.Errorf("%s: %s is %q, want %q", cell, field, got, value)
		}
	}
	class := map[string]string{"failed": "5.", "delayed": "4."}[action]
	if class == "" {
		class = "2."
	}
	if code := strings.Join(storetest.Fields(report, "Status"), "|"); !strings.HasPrefix(code, class) {
		t.Errorf("%s: status %q, want %s*", cell, code, class)
	}
	if got, want := len(storetest.Fields(report, "Will-Retry-Until")) == 1, action == "delayed"; got != want {
		t.Errorf("%s: Will-Retry-Until %v, want %v", cell, got, want)
	}
	// RFC 3461 §4.3: RET is of failures; the others return the header.
	if got, want := strings.Contains(report, "Body of the message."), action == "failed" && ret != "HDRS"; got != want {
		t.Errorf("%s: body returned %v, want %v", cell, got, want)
	}
	if !strings.Contains(report, "Subject: test\n") {
		t.Errorf("%s: no header", cell)
	}
}
