package dsn

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-message/textproto"

	"zmailer/internal/run/assert"
)

// example is a report that an RFC shows: what it is written from, and the fields
// that must come out, of the message and of each recipient, in any spelling of
// blanks behind the type.
type example struct {
	report     *Report
	kinds      []string
	message    map[string]string
	recipients []map[string]string
}

// examples returns those of RFC 3461 §10, RFC 3464 appendix, and cases of RFC 6533 §3.
func examples() map[string]example {
	plain := []string{"text/plain", "message/delivery-status", "text/rfc822-headers"}
	make := func(mta, to, envid string, list ...Recipient) *Report {
		r := report(nil)
		r.ReportingMTA, r.From, r.To, r.EnvID = mta, "postmaster@"+mta, to, envid
		r.Arrival, r.SpoolID, r.Recipients = time.Time{}, "", list
		return r
	}
	rfc := func(addr string) string { return "rfc822;" + addr }
	global := func(r *Report) *Report { r.UTF8 = true; return r }
	est := time.FixedZone("", -4*3600)
	return map[string]example{
		"RFC 3461 10.7, delivered to Bob": {
			make("Example.COM", "Alice@Example.ORG", "QQ314159", Recipient{Original: rfc("Bob@Example.COM"), Final: "Bob@Example.COM", Action: Delivered, Status: "2.0.0"}),
			plain, map[string]string{"Reporting-Mta": "dns;Example.COM", "Original-Envelope-Id": "QQ314159"},
			[]map[string]string{{"Original-Recipient": rfc("Bob@Example.COM"), "Final-Recipient": rfc("Bob@Example.COM"), "Action": "delivered", "Status": "2.0.0"}}},
		"RFC 3461 10.8, failed for Carol": {
			make("Example.ORG", "Alice@Example.ORG", "QQ314159", Recipient{Original: rfc("Carol@Ivory.EDU"), Final: "Carol@Ivory.EDU", Action: Failed, Status: "5.0.0",
				Remote: "dns; Ivory.EDU", Diagnostic: "smtp; 550 error - no such recipient"}),
			plain, map[string]string{"Reporting-Mta": "dns;Example.ORG", "Original-Envelope-Id": "QQ314159"},
			[]map[string]string{{"Original-Recipient": rfc("Carol@Ivory.EDU"), "Final-Recipient": rfc("Carol@Ivory.EDU"), "Action": "failed", "Status": "5.0.0",
				"Remote-Mta": "dns;Ivory.EDU", "Diagnostic-Code": "smtp;550 error - no such recipient"}}},
		"RFC 3461 10.9, relayed for Dana": {
			make("Example.ORG", "Alice@Example.ORG", "QQ314159", Recipient{Original: rfc("Dana@Ivory.EDU"), Final: "Dana@Ivory.EDU", Action: Relayed, Status: "2.0.0", Remote: "dns; Ivory.EDU"}),
			plain, map[string]string{"Reporting-Mta": "dns;Example.ORG", "Original-Envelope-Id": "QQ314159"},
			[]map[string]string{{"Original-Recipient": rfc("Dana@Ivory.EDU"), "Final-Recipient": rfc("Dana@Ivory.EDU"), "Action": "relayed", "Status": "2.0.0", "Remote-Mta": "dns;Ivory.EDU"}}},
		"RFC 3461 10.10, failed for Sam, to whom George's mail was forwarded": {
			make("Boondoggle.GOV", "Alice@Example.ORG", "QQ314159", Recipient{Original: rfc("George@Tax-ME.GOV"), Final: "Sam@Boondoggle.GOV", Action: Failed, Status: "5.2.1"}),
			plain, map[string]string{"Reporting-Mta": "dns;Boondoggle.GOV", "Original-Envelope-Id": "QQ314159"},
			[]map[string]string{{"Original-Recipient": rfc("George@Tax-ME.GOV"), "Final-Recipient": rfc("Sam@Boondoggle.GOV"), "Action": "failed", "Status": "5.2.1"}}},
		"RFC 3464 E.1, a simple one": {
			make("cs.utk.edu", "owner-info-mime@cs.utk.edu", "", Recipient{Original: rfc("louisl@larry.slip.umd.edu"), Final: "louisl@larry.slip.umd.edu", Action: Failed, Status: "4.0.0",
				Diagnostic: "smtp; 426 connection timed out", LastAttempt: time.Date(1994, 7, 7, 17, 15, 49, 0, est)}),
			plain, map[string]string{"Reporting-Mta": "dns;cs.utk.edu"},
			[]map[string]string{{"Original-Recipient": rfc("louisl@larry.slip.umd.edu"), "Final-Recipient": rfc("louisl@larry.slip.umd.edu"), "Action": "failed", "Status": "4.0.0",
				"Diagnostic-Code": "smtp;426 connection timed out", "Last-Attempt-Date": "Thu, 07 Jul 1994 17:15:49 -0400"}}},
		"RFC 3464 E.2, several recipients": {
			make("cs.utk.edu", "owner-info-mime@cs.utk.edu", "",
				Recipient{Original: rfc("arathib@vnet.ibm.com"), Final: "arathib@vnet.ibm.com", Action: Failed, Status: "5.0.0 (permanent failure)",
					Diagnostic: "smtp; 550 'arathib@vnet.IBM.COM' is not a registered gateway user", Remote: "dns; vnet.ibm.com"},
				Recipient{Original: rfc("johnh@hpnjld.njd.hp.com"), Final: "johnh@hpnjld.njd.hp.com", Action: Delayed, Status: "4.0.0 (hpnjld.njd.jp.com: host name lookup failure)"},
				Recipient{Original: rfc("wsnell@sdcc13.ucsd.edu"), Final: "wsnell@sdcc13.ucsd.edu", Action: Failed, Status: "5.0.0", Diagnostic: "smtp; 550 user unknown", Remote: "dns; sdcc13.ucsd.edu"}),
			plain, map[string]string{"Reporting-Mta": "dns;cs.utk.edu"},
			[]map[string]string{
				{"Original-Recipient": rfc("arathib@vnet.ibm.com"), "Final-Recipient": rfc("arathib@vnet.ibm.com"), "Action": "failed", "Status": "5.0.0",
					"Diagnostic-Code": "smtp;550 'arathib@vnet.IBM.COM' is not a registered gateway user", "Remote-Mta": "dns;vnet.ibm.com"},
				{"Original-Recipient": rfc("johnh@hpnjld.njd.hp.com"), "Final-Recipient": rfc("johnh@hpnjld.njd.hp.com"), "Action": "delayed", "Status": "4.0.0"},
				{"Original-Recipient": rfc("wsnell@sdcc13.ucsd.edu"), "Final-Recipient": rfc("wsnell@sdcc13.ucsd.edu"), "Action": "failed", "Status": "5.0.0",
					"Diagnostic-Code": "smtp;550 user unknown", "Remote-Mta": "dns;sdcc13.ucsd.edu"}}},
		"RFC 3464 E.4, delayed": {
			make("sun2.nsfnet-relay.ac.uk", "sender@cs.utk.edu", "", Recipient{Final: "thomas@de-montfort.ac.uk", Action: Delayed, Status: "4.0.0 (unknown temporary failure)",
				WillRetryUntil: time.Date(1994, 7, 12, 13, 40, 0, 0, time.UTC)}),
			plain, map[string]string{"Reporting-Mta": "dns;sun2.nsfnet-relay.ac.uk"},
			[]map[string]string{{"Final-Recipient": rfc("thomas@de-montfort.ac.uk"), "Action": "delayed", "Status": "4.0.0", "Will-Retry-Until": "Tue, 12 Jul 1994 13:40:00 +0000"}}},
		"RFC 6533 3, an address of type utf-8 in a 7-bit report": {
			make("mx.example", "sender@example.org", "", Recipient{Original: `utf-8;j\x{FC}rgen+tag@b\x{FC}cher.example`, Final: "jürgen=tag@bücher.example", Action: Failed, Status: "5.1.1"}),
			plain, map[string]string{"Reporting-Mta": "dns;mx.example"},
			[]map[string]string{{"Original-Recipient": `utf-8;j\x{FC}rgen\x{2B}tag@b\x{FC}cher.example`, "Final-Recipient": `utf-8;j\x{FC}rgen\x{3D}tag@b\x{FC}cher.example`, "Action": "failed", "Status": "5.1.1"}}},
		"RFC 6533 3, and in an 8-bit one": {
			global(make("mx.example", "jürgen@bücher.example", "", Recipient{Original: `utf-8;j\x{FC}rgen+tag@b\x{FC}cher.example`, Final: "jürgen=tag@bücher.example", Action: Failed, Status: "5.1.1",
				Diagnostic: "smtp; 550 nicht für Jürgen"})),
			[]string{"text/plain", "message/global-delivery-status", "message/global-headers"}, map[string]string{"Reporting-Mta": "dns;mx.example"},
			[]map[string]string{{"Original-Recipient": "utf-8;jürgen+tag@bücher.example", "Final-Recipient": "utf-8;jürgen=tag@bücher.example", "Action": "failed", "Status": "5.1.1",
				"Diagnostic-Code": "smtp;550 nicht für Jürgen"}}},
	}
}

// seen is what a parser found.
type seen struct {
	Kinds      []string
	Message    map[string]string
	Recipients []map[string]string
}

// squeeze takes away the blanks behind a type, which mean nothing.
func squeeze(s string) string {
	kind, rest, ok := strings.Cut(s, ";")
	if !ok {
		return s
	}
	return kind + ";" + strings.TrimLeft(rest, " ")
}

// title is Python's spelling of a field's name.
func title(name string) string {
	words := strings.Split(strings.ToLower(name), "-")
	for i, w := range words {
		words[i] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "-")
}

func flat(h textproto.Header) map[string]string {
	m := map[string]string{}
	for f := h.Fields(); f.Next(); {
		m[title(f.Key())] += squeeze(f.Value())
	}
	return m
}

// M37: the RFCs' own examples come out of the writer as they stand there, for
// go-message and for Python's strict parser.
func TestExamplesOfTheRFCs(t *testing.T) {
	for name, ex := range examples() {
		t.Run(name, func(t *testing.T) {
			want := seen{ex.kinds, ex.message, ex.recipients}
			text := written(t, ex.report)
			p := assert.Get(parseReport([]byte(text)))(t)
			got := seen{p.types, flat(p.message), nil}
			for _, h := range p.recipients {
				got.Recipients = append(got.Recipients, flat(h))
			}
			assert.Same(t, got, want, "go-message: %s", text)
			file := filepath.Join(t.TempDir(), "report.eml")
			assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
			assert.Same(t, python(t, file), []seen{want}, "Python")
		})
	}
}

// python reads report files with Python's parser, or skips the test.
func python(t *testing.T, files ...string) []seen {
	t.Helper()
	program, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 here to read the reports with:", err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, append([]string{"testdata/strict.py"}, files...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3: %v\n%s", err, &stderr)
	}
	var list []seen
	assert.Must(t, json.Unmarshal(out, &list))
	return list
}

// A program that knows nothing of ours reads every kind of report without a defect,
// recipient for recipient as the report was written.
func TestPythonReadsEveryReport(t *testing.T) {
	dir := t.TempDir()
	var names, files []string
	reports := goldenReports()
	for name := range reports {
		file := filepath.Join(dir, name)
		assert.Must(t, os.WriteFile(file, []byte(written(t, reports[name])), 0o600))
		names, files = append(names, name), append(files, file)
	}
	for i, got := range python(t, files...) {
		r := goldenReports()[names[i]]
		if len(got.Recipients) != len(r.Recipients) {
			t.Errorf("%s: got %d recipients, want %d", names[i], len(got.Recipients), len(r.Recipients))
			continue
		}
		for k := range r.Recipients {
			want := flat(mustFields(t, &r.Recipients[k], r.utf8()))
			assert.Same(t, got.Recipients[k], want, "%s, recipient %d", names[i], k)
		}
		if want := r.Recipients[0].Action; got.Recipients[0]["Action"] != string(want) {
			t.Errorf("%s: got action %q, want %q", names[i], got.Recipients[0]["Action"], want)
		}
	}
}

func mustFields(t *testing.T, p *Recipient, utf8 bool) textproto.Header {
	t.Helper()
	f := p.fields(utf8)
	for i := range f {
		f[i].value = strings.Join(strings.Fields(f[i].value), " ")
	}
	return f.header()
}
