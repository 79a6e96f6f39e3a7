package store

import (
	"fmt"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// M37: which reports are sent where NOTIFY is odd or there is no sender (RFC 3461 sections 4.1 and
// 5.2); TestWholeMatrixOfReports has the rest.
func TestReportMatrix(t *testing.T) {
	tests := map[string]struct {
		sender, notary, outcome string
		want                    string // action of the report, "" if there must be none
	}{
		"failure, lower case":             {"a@b", "notify=success,failure", "failed", "failed"},
		"failure, NOTIFY is empty":        {"a@b", "NOTIFY=", "failed", "failed"},
		"failure, null sender (M38)":      {"<>", "", "failed", ""},
		"failure, sender is no address":   {"@@", "", "failed", ""},
		"failure, INRCPT beside (sample)": {"a@b", "NOTIFY=FAILURE,DELAY ORCPT=rfc822;x@h INRCPT=rfc822;x@h", "failed", "failed"},
		"success, null sender":            {"<>", "NOTIFY=SUCCESS", "delivered", ""},
		"delay, null sender (Z19)":        {"<>", "", "delayed", ""},
	}
	for name, tt := range tests {
		report := oneReport(t, name, tt.outcome, tt.sender, storetest.Rcpt{Line: "smtp h x@h", Notary: tt.notary})
		assert.Equal(t, strings.Join(storetest.Fields(report, "Action"), " "), tt.want, "%s: action", name)
	}
}

// M37: RET, ENVID, ORCPT.
func TestReportCarriesWhatTheSenderGave(t *testing.T) {
	tests := map[string]struct {
		ret     string
		outcome string
		size    int
		full    bool
	}{
		"RET=FULL, failed":           {"FULL", "failed", 100_000, true},
		"RET=FULL, delivered":        {"FULL", "delivered", 100, false},
		"RET=HDRS":                   {"HDRS", "failed", 100, false},
		"no RET, small message":      {"", "failed", 100, true},
		"no RET, large message":      {"", "failed", 100_000, false},
		"RET=hdrs in a foreign file": {"hdrs", "failed", 100, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			body := strings.Repeat("Text of the body.\n", tt.size/18)
			file, err := storetest.QueueMessage(b.PO, "a@b", body, []storetest.Rcpt{{Line: "smtp h x@h", Ret: tt.ret, EnvID: "QQ+2B3141",
				Notary: "NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Orig+2BUser@a.example.com"}})
			assert.Must(t, err)
			id := b.load(file).ID
			tag := workspec.TagFailed
			if tt.outcome == "delivered" {
				tag = workspec.TagOK
			}
			b.Mark(file, 0, tt.outcome, tag)
			b.settle(file)
			reports := b.Reports()
			if len(reports) != 1 {
				t.Fatalf("%d reports", len(reports))
			}
			r := reports[0]
			for field, want := range map[string]string{
				"Original-Envelope-Id": "QQ+3141", "Original-Recipient": "rfc822;Orig+User@a.example.com",
				"Final-Recipient": "rfc822; x@h", "Reporting-MTA": "dns; mx.example.org", "Remote-MTA": "dns; host.example",
			} {
				if got := strings.Join(storetest.Fields(r, field), "|"); strings.ReplaceAll(got, "; ", ";") != strings.ReplaceAll(want, "; ", ";") {
					t.Errorf("%s: got %q, want %q", field, got, want)
				}
			}
			assert.Equal(t, strings.Contains(r, "Text of the body."), tt.full, "body returned")
			if !strings.Contains(r, "Subject: test\n") || !strings.Contains(r, id.String()) {
				t.Errorf("headers or spool ID are missing:\n%s", r)
			}
			envelope, message, ok := strings.Cut(r, "env-end\n")
			if !ok || !strings.Contains(envelope, "errormsg\nchannel error\nto <a@b>\n") {
				t.Errorf("envelope %q", envelope)
			}
			m, err := mail.ReadMessage(strings.NewReader(message))
			if err != nil || !strings.Contains(m.Header.Get("From"), "postmaster@mx.example.org") || !strings.Contains(m.Header.Get("To"), "a@b") {
				t.Errorf("got %v, %v", m, err)
			}
		})
	}
}

// M36: one report for what fails within the interval, and not only at the end.
func TestReportIntervalMergesFailures(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h one@h"}, storetest.Rcpt{Line: "smtp h two@h"}, storetest.Rcpt{Line: "smtp h open@h"})
	b.Mark(name, 0, "failed", workspec.TagFailed)
	first := b.Now
	if s := b.settle(name); len(b.Reports()) != 0 || !s.Look.Equal(first.Truncate(time.Second).Add(5*time.Minute)) {
		t.Fatalf("%d reports, looks at %v", len(b.Reports()), s.Look)
	}
	b.Now = first.Add(3 * time.Minute)
	b.Mark(name, 1, "failed", workspec.TagFailed)
	b.Now = first.Add(5 * time.Minute)
	s := b.settle(name)
	reports := b.Reports()
	if len(reports) != 1 || len(storetest.Fields(reports[0], "Action")) != 2 {
		t.Fatalf("got %d reports, want one with two recipients", len(reports))
	}
	if s.Finished || !s.Look.After(b.Now) {
		t.Errorf("got %+v", s)
	}
	b.Mark(name, 2, "failed", workspec.TagFailed)
	if s := b.settle(name); !s.Finished || len(b.Reports()) != 2 {
		t.Errorf("finished %v, %d reports", s.Finished, len(b.Reports()))
	}
}

// M20: the same address in two lines is reported for each.
func TestOneAddressTwiceIsReportedSeparately(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp g x@h"})
	b.Mark(name, 0, "failed", workspec.TagFailed)
	b.Mark(name, 1, "failed", workspec.TagFailed)
	b.settle(name)
	if r := b.Reports(); len(r) != 1 || len(storetest.Fields(r[0], "Final-Recipient")) != 2 {
		t.Errorf("got %d reports: %v", len(r), r)
	}
}

// A diagnostic of an attempt that a crash made void is not reported.
func TestVoidDiagnosticIsNotReported(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h", Notary: "NOTIFY=FAILURE"})
	b.Mark(name, 0, "failed", workspec.TagToDo) // the agent died before the tag
	if s := b.settle(name); s.Finished || len(b.Reports()) != 0 {
		t.Fatalf("an open recipient was reported: %+v", s)
	}
	b.Mark(name, 0, "", workspec.TagOK)
	if s := b.settle(name); !s.Finished || len(b.Reports()) != 0 {
		t.Errorf("a delivered recipient was reported as failed: %+v", s)
	}
}

// A failed tag without a diagnostic gets one, with the last answer known.
func TestFailureWithoutDiagnosticIsReported(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	assert.Must(t, b.record(name, []Outcome{{Offset: storetest.OffsetOf(b.Parse(name), 0), Result: thread.Deferred, Attempt: 1, Next: b.Now, Text: "450 the last answer"}}))
	b.Mark(name, 0, "", workspec.TagFailed)
	b.load(name)
	b.settle(name)
	if r := b.Reports(); len(r) != 1 || !strings.Contains(r[0], "450 the last answer") {
		t.Errorf("got %v", r)
	}
}

// Z19: once per report time, not for automatic mail.
func TestDelayIsReportedOncePerTime(t *testing.T) {
	f := cutfs.New()
	conf := strings.Replace(storetest.Conf, "reporttimes=4h", `reporttimes="4h 1d"`, 1)
	b := newBoxConf(t, f, 0, conf)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp g y@h"})
	off := storetest.OffsetOf(b.Parse(name), 0)
	assert.Must(t, b.record(name, []Outcome{{Offset: off, Result: thread.Deferred, Attempt: 1, Next: b.Now, Text: "450 4.2.1 later", Notary: workspec.Notary{Status: "4.2.1"}}}))
	start := b.Now
	said := map[int64]string{storetest.OffsetOf(b.Parse(name), 1): "connection refused"}
	times := []time.Duration{3 * time.Hour, 4*time.Hour + time.Minute, 5 * time.Hour, 25 * time.Hour, 26 * time.Hour}
	want := []int{0, 1, 1, 2, 2}
	for i, at := range times {
		b.Now = start.Add(at)
		s, err := b.spool.Settle(name, said)
		assert.Must(t, err)
		assert.Equal(t, len(b.Reports()), want[i], "after %v: reports", at)
		if !s.Look.IsZero() && !s.Look.After(b.Now) {
			t.Errorf("after %v: wants to look at %v again", at, s.Look.Sub(start))
		}
	}
	r := b.Reports()[0]
	assert.Equal(t, strings.Join(storetest.Fields(r, "Action"), " "), "delayed delayed", "actions")
	if len(storetest.Fields(r, "Will-Retry-Until")) != 2 || !strings.Contains(r, "450 4.2.1 later") || !strings.Contains(r, "connection refused") {
		t.Errorf("report lacks answer or end:\n%s", r)
	}
}

// M38
func TestReportOfAReportIsCopiedForThePostmaster(t *testing.T) {
	for _, copied := range []bool{false, true} {
		b, _ := diskBox(t)
		b.spool.Conf.CopyUndeliverable = copied
		name := b.Queue("<>", storetest.Rcpt{Line: "smtp h x@h"})
		b.Mark(name, 0, "failed", workspec.TagFailed)
		if s := b.settle(name); !s.Finished || len(b.Reports()) != 0 {
			t.Errorf("finished %v, reports %v", s.Finished, b.Reports())
		}
		got := b.List("postman")
		if copied != (len(got) == 1) || copied && !strings.HasSuffix(got[0], "_undeliverable") {
			t.Errorf("copy %v: postman/ holds %v", copied, got)
		}
		b.WantLog("report-suppressed", "x@h")
	}
}

// Reports go where e says when the sender is not named there, as for lists.
func TestErrorAddressGetsTheReport(t *testing.T) {
	tests := map[string]struct {
		sender  string
		errorTo []string
		want    string
	}{
		"the sender itself":    {"a@b", []string{"<a@b>", "a@b"}, "a@b"},
		"a list's owner":       {"a@b", []string{"owner-list@b"}, "owner-list@b"},
		"no e line":            {"a@b", nil, "a@b"},
		"one group of several": {"owner-list@b", []string{"a@b", "owner-list@b"}, "owner-list@b"},
		"e that is no address": {"a@b", []string{"@"}, "a@b"},
		"null sender":          {"<>", []string{"a@b"}, ""},
	}
	for name, tt := range tests {
		f := &work{spec: &workspec.Spec{ErrorTo: tt.errorTo}}
		assert.Equal(t, f.reportTo(&workspec.Group{Sender: workspec.Sender{Address: tt.sender}}), tt.want, name)
	}
}

// recoverAll does what a start does, to the end.
func recoverAll(b *box) error {
	if err := b.spool.Recover(); err != nil {
		return err
	}
	var names []string
	if err := b.PO.Queue.List(func(name string) error { names = append(names, name); return nil }); err != nil {
		return err
	}
	for _, name := range names {
		l, err := b.spool.Load(name)
		if err != nil {
			return err
		}
		if l.Gone || len(l.Open) > 0 {
			continue
		}
		if _, err := b.spool.Settle(l.Name, nil); err != nil {
			return err
		}
	}
	return nil
}

// M35: stop after every step of reporting and finishing, and after every step of
// the recovery from that: one report for each failure, nothing left.
func TestCutWhileReportingAndFinishing(t *testing.T) {
	build := func() (*cutfs.FS, *box, string) {
		f := cutfs.New()
		b := newBox(t, f)
		name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h failed@h"}, storetest.Rcpt{Line: "smtp h told@h", Notary: "NOTIFY=SUCCESS"},
			storetest.Rcpt{Line: "smtp h untold@h"}, storetest.Rcpt{Line: "error nouser wrong@h"})
		b.Mark(name, 0, "failed", workspec.TagFailed)
		b.Mark(name, 1, "delivered", workspec.TagOK)
		b.Mark(name, 2, "", workspec.TagOK)
		// What agents did is durable: Spec.Sync, and in time everything.
		assert.Must(t, b.opened(name).Sync())
		for _, dir := range []string{"router", "queue", "transport", "public"} {
			assert.Must(t, f.SyncDir(dir))
		}
		return f, b, name
	}
	_, b, _ := build()
	assert.Must(t, recoverAll(b))
	if err := reportedOnce(b); err != nil {
		t.Fatalf("without a cut: %v", err)
	}
	for cut := 0; ; cut += stride() {
		f, b, _ := build()
		f.CutAfter(cut)
		_ = recoverAll(b)
		if !f.Dead() {
			break
		}
		for _, loss := range f.Losses() {
			for second := 0; ; second++ {
				g := f.Restart(loss)
				b := openBox(t, g, 0, storetest.Conf)
				if second > 0 {
					// The process dies once more, in the middle of the recovery.
					g.CutAfter(second - 1)
					_ = recoverAll(b)
					if !g.Dead() {
						break
					}
					g = g.Restart(cutfs.KeepAll())
					b = openBox(t, g, 0, storetest.Conf)
				}
				if err := recoverAll(b); err != nil {
					t.Fatalf("cut %d, %v, then %d: %v\n%s", cut, loss, second-1, err, g.Log())
				}
				if err := reportedOnce(b); err != nil {
					t.Fatalf("cut %d, %v, then %d: %v\n%s", cut, loss, second-1, err, g.Log())
				}
				if loss.Power && second > 4 {
					break // the rest of recovery is cut in the runs without power loss
				}
			}
		}
	}
}

// reportedOnce checks the end of TestCutWhileReportingAndFinishing.
func reportedOnce(b *box) error {
	for _, dir := range []string{"queue", "transport", "public"} {
		if left := b.List(dir); len(left) > 0 {
			return fmt.Errorf("%s/ holds %v", dir, left)
		}
	}
	count := map[string]int{}
	for _, r := range b.Reports() {
		for _, line := range append(storetest.Fields(r, "Final-Recipient"), "reports;reports") {
			_, address, _ := strings.Cut(line, ";")
			count[strings.TrimSpace(address)]++
		}
	}
	for address, want := range map[string]int{"failed@h": 1, "wrong@h": 1, "told@h": 1, "untold@h": 0} {
		if got := count[address]; got != want {
			return fmt.Errorf("%s was reported %d times, want %d", address, got, want)
		}
	}
	return nil
}

// Z19: a report that is written in the millisecond in which it is due is not written
// again: the history's times are cut to milliseconds.
func TestDelayToldAtTheMomentIsToldOnce(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	arrival := time.Unix(1_800_000_000, 123_456_789)
	assert.Must(t, os.Chtimes(filepath.Join(dir, "queue", name), arrival, arrival))
	b.Now = arrival.Add(4 * time.Hour)
	for range 2 {
		b.settle(name)
		b.Now = b.Now.Add(time.Second)
	}
	assert.Equal(t, len(b.Reports()), 1, "reports")
}

// After days without a scheduler no delay is reported that is about to end: what
// was not tried yet gets its first attempt before that.
func TestDelayOfTheUntriedIsNotToldAtTheStart(t *testing.T) {
	b := newBox(t, cutfs.New())
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp g y@h"})
	assert.Must(t, b.record(name, []Outcome{{Offset: storetest.OffsetOf(b.Parse(name), 0), Result: thread.Deferred, Attempt: 1, Next: b.Now, Text: "450 4.2.1 later"}}))
	b.Now = b.Now.Add(48 * time.Hour)
	b.spool.Started = b.Now
	if s := b.settle(name); len(b.Reports()) != 1 || !s.Look.Equal(b.Now.Add(firstTries)) {
		t.Fatalf("%d reports, want one of the recipient that was tried; looks in %v, want %v", len(b.Reports()), s.Look.Sub(b.Now), firstTries)
	}
	b.Now = b.Now.Add(firstTries)
	b.settle(name)
	assert.Equal(t, len(b.Reports()), 2, "reports")
}

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
						got := oneReport(t, cell, name, "a@b", storetest.Rcpt{Line: o.line, Notary: notary, Ret: ret, EnvID: envID})
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
	assert.Equal(t, count, 6*9*3*2*2, "cells")
}

// oneReport brings a message with one recipient to its outcome and gives its report.
func oneReport(t *testing.T, cell, outcome, sender string, r storetest.Rcpt) string {
	t.Helper()
	b := newBox(t, cutfs.New())
	file := b.Queue(sender, r)
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
	if set := b.settle(file); outcome == "delayed" {
		set = b.settle(file) // once is enough
		if !set.Look.IsZero() && !set.Look.After(b.Now) {
			t.Errorf("%s: looks again at %v", cell, set.Look)
		}
	} else {
		assert.Equal(t, set.Finished, true, "%s: finished", cell)
		storetest.Gone(t, b.FS, file)
	}
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
		assert.Equal(t, strings.Join(storetest.Fields(report, field), "|"), value, "%s: %s", cell, field)
	}
	class := map[string]string{"failed": "5.", "delayed": "4."}[action]
	if class == "" {
		class = "2."
	}
	if code := strings.Join(storetest.Fields(report, "Status"), "|"); !strings.HasPrefix(code, class) {
		t.Errorf("%s: status %q, want %s*", cell, code, class)
	}
	assert.Equal(t, len(storetest.Fields(report, "Will-Retry-Until")) == 1, action == "delayed", "%s: Will-Retry-Until", cell)
	// RFC 3461 §4.3: RET is of failures; the others return the header.
	assert.Equal(t, strings.Contains(report, "Body of the message."), action == "failed" && ret != "HDRS", "%s: body returned", cell)
	if !strings.Contains(report, "Subject: test\n") {
		t.Errorf("%s: no header", cell)
	}
}
