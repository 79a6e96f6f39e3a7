package submit

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// talk gives the client's lines to Serve at once and returns the replies.
func talk(t *testing.T, c Config, lines ...string) string {
	t.Helper()
	var out bytes.Buffer
	c.In, c.Out = strings.NewReader(strings.Join(lines, "\r\n")+"\r\n"), &out
	assert.Must(t, Serve(t.Context(), c, "mta.example"))
	return out.String()
}

// codes returns the replies' codes, of several lines the last.
func codes(replies string) string {
	return strings.Join(regexp.MustCompile(`(?m)^\d{3}(?: \d\.\d+\.\d+)?(?: |$)`).FindAllString(strings.ReplaceAll(replies, "\r", ""), -1), "")
}

// Loc4: a session on standard input submits as the program's other callers do.
func TestLoc4SessionSubmitsEachMessage(t *testing.T) {
	dir, _ := newPostOffice(t)
	got := talk(t, Config{PostOffice: dir, FullName: "Me"},
		"EHLO client", "MAIL FROM:<me@x> BODY=8BITMIME SIZE=100 RET=HDRS ENVID=a+2Bb", "RCPT TO:<a@b> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;a@b",
		"RCPT TO:<@r.example:c@d>", "RCPT TO:<a@b>", "DATA", "From me", "Subject: x", "", "..dot", ".",
		"mail from: <>", "rcpt to: \"q q\"@x", "data", "text alone", ".", "QUIT", "NOOP")
	want := "220 250 250 2.1.0 250 2.1.5 250 2.1.5 250 2.1.5 354 250 2.0.0 250 2.1.0 250 2.1.5 354 250 2.0.0 221 2.0.0 "
	assert.Equal(t, codes(got), want, "codes in: %s", got)
	messages := stored(t, dir)
	for _, want := range []string{
		"bodytype 8BITMIME\nfullname Me\nfrom <me@x>\nenvid a+2Bb\nnotaryret HDRS\ntodsn NOTIFY=SUCCESS,DELAY ORCPT=rfc822;a@b\nto <a@b>\nto <c@d>\nenv-end\nSubject: x\n\n.dot\n",
		"fullname Me\nchannel error\nto <\"q q\"@x>\nenv-end\n\ntext alone\n",
	} {
		if !slices.Contains(messages, want) || len(messages) != 2 {
			t.Errorf("not stored: %q of %q", want, messages)
		}
	}
}

func TestSessionsFaultsHaveTheirCodes(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"unknown command":        {"FOO", "500 5.5.2 "},
		"empty line":             {"", "500 5.5.2 "},
		"long line":              {"NOOP " + strings.Repeat("x", 2*longestLine), "500 5.5.2 "},
		"EHLO without a name":    {"EHLO", "501 5.5.4 "},
		"RCPT first":             {"RCPT TO:<a@b>", "503 5.5.1 "},
		"DATA first":             {"DATA", "503 5.5.1 "},
		"DATA without RCPT":      {"MAIL FROM:<>|DATA", "250 2.1.0 503 5.5.1 "},
		"MAIL twice":             {"MAIL FROM:<>|MAIL FROM:<>", "250 2.1.0 503 5.5.1 "},
		"MAIL after RSET":        {"MAIL FROM:<>|RSET|MAIL FROM:<>", "250 2.1.0 250 2.0.0 250 2.1.0 "},
		"MAIL after EHLO":        {"MAIL FROM:<>|HELO x|MAIL FROM:<>", "250 2.1.0 250 250 2.1.0 "},
		"no FROM":                {"MAIL <a@b>", "501 5.5.4 "},
		"bad sender":             {"MAIL FROM:<a@@b>", "501 5.1.7 "},
		"open bracket":           {"MAIL FROM:<a@b", "501 5.1.7 "},
		"bad recipient":          {"MAIL FROM:<>|RCPT TO:<a@>|RCPT TO:<>", "250 2.1.0 501 5.1.3 501 5.1.3 "},
		"unknown parameter":      {"MAIL FROM:<> FOO=1|MAIL FROM:<>|RCPT TO:<a> FOO", "555 5.5.4 250 2.1.0 555 5.5.4 "},
		"bad parameters":         {"MAIL FROM:<> RET=ALL|MAIL FROM:<> BODY=X|MAIL FROM:<> ENVID=+", "501 5.5.4 501 5.5.4 501 5.5.4 "},
		"bad parameters of RCPT": {"MAIL FROM:<>|RCPT TO:<a> NOTIFY=NEVER,DELAY|RCPT TO:<a> ORCPT=x", "250 2.1.0 501 5.5.4 501 5.5.4 "},
		"VRFY":                   {"VRFY|VRFY a", "501 5.5.4 252 2.0.0 "},
		"not here":               {"AUTH PLAIN|STARTTLS", "502 5.5.1 502 5.5.1 "},
		"HELP":                   {"HELP", "214 2.0.0 "},
	} {
		t.Run(name, func(t *testing.T) {
			got := codes(talk(t, Config{PostOffice: "/nonexistent"}, append(strings.Split(tt.in, "|"), "QUIT")...))
			assert.Equal(t, got, "220 "+tt.want+"221 2.0.0 ")
		})
	}
}

func TestSessionEndsAfterManyErrors(t *testing.T) {
	got := codes(talk(t, Config{}, strings.Split(strings.Repeat("FOO\n", 2*mostErrors), "\n")...))
	if n := strings.Count(got, "500 "); n != mostErrors+1 || !strings.HasSuffix(got, "421 4.7.0 ") {
		t.Errorf("%d errors, then %q", n, got[max(0, len(got)-10):])
	}
}

// A message whose end was not seen is not accepted, nor one that cannot be stored; the
// session goes on after that one.
func TestSessionAcceptsNothingIncomplete(t *testing.T) {
	dir, disk := newPostOffice(t)
	begin := []string{"MAIL FROM:<>", "RCPT TO:<a>", "DATA", "Subject: x"}
	if got := talk(t, Config{PostOffice: dir}, begin...); strings.Contains(got, "queued") {
		t.Errorf("accepted: %s", got)
	}
	disk.Fail(faultfs.Sync, "*/*", unix.ENOSPC, faultfs.Always)
	broken := Config{FS: disk}
	if got := codes(talk(t, broken, append(begin, ".", "NOOP")...)); !strings.HasSuffix(got, "354 451 4.3.0 250 2.0.0 ") {
		t.Errorf("codes %q", got)
	}
	nothing(t, dir)
}

// Loc4: -XV submits a message for each recipient, whose sender names the recipient.
func TestLoc4SenderPerRecipient(t *testing.T) {
	dir, _ := newPostOffice(t)
	err := Run(t.Context(), Config{PostOffice: dir, PerRecipient: "+=", HasFrom: true, From: "owner-l@x.example",
		Recipients: []string{"a@b.example", "joe"}, In: strings.NewReader("Subject: x\n\nhi\n")})
	assert.Must(t, err)
	got := stored(t, dir)
	for _, want := range []string{"owner-l+a=b.example@x.example> a@b.example", "owner-l+joe@x.example> joe"} {
		from, to, _ := strings.Cut(want, " ")
		if text := fmt.Sprintf("from <%s\nto <%s>\nenv-end\nSubject: x\n\nhi\n", from, to); !slices.Contains(got, text) {
			t.Errorf("no %q in %q", text, got)
		}
	}
	for _, c := range []Config{{PerRecipient: "++=", HasFrom: true, From: "a@b"}, {PerRecipient: "+=", HasFrom: true}, {PerRecipient: "ab", HasFrom: true, From: "a@b"}} {
		c.Recipients, c.In = []string{"a"}, strings.NewReader("x")
		assert.Equal(t, exitCode(Run(t.Context(), c)), 64, "%+v: exit code", c)
	}
}

// Loc3: the sender of a message to others gets a report about the bad address; the envelope
// names it as an unknown user.
func TestLoc3BadRecipientIsNamedAndOthersGetTheMessage(t *testing.T) {
	for name, c := range map[string]Config{
		"argument": {Recipients: []string{"a@@b, c@d"}},
		"header":   {FromHeader: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := newPostOffice(t)
			var said bytes.Buffer
			c.PostOffice, c.Err, c.In = dir, &said, strings.NewReader("To: c@d\nCc: a@@b\n\nx\n")
			assert.Must(t, Run(t.Context(), c))
			got := only(t, dir)
			for _, want := range []string{"to <c@d>\n", "to <\"bad address: a@@b\">\n"} {
				assert.Contains(t, got, want)
			}
			if !strings.Contains(said.String(), "a@@b") || strings.Count(said.String(), "\n") != 1 {
				t.Errorf("said %q", said.String())
			}
		})
	}
}

// Loc4: what is asked about reports and cannot be understood does not hold the mail up, nor
// does a second sender.
func TestLoc4UnknownWishesAreIgnoredWithAWarning(t *testing.T) {
	for name, c := range map[string]Config{
		"-N": {Notify: "foo"}, "-N of two": {Notify: "never,success"}, "-R": {Return: "half"},
		"-V": {EnvelopeID: "a\nb"}, "-V of many bytes": {EnvelopeID: strings.Repeat("x", 101)},
	} {
		dir, _ := newPostOffice(t)
		var said bytes.Buffer
		c.PostOffice, c.Err, c.Recipients, c.In = dir, &said, []string{"a"}, strings.NewReader("\nx\n")
		if err := Run(t.Context(), c); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := only(t, dir); got != "to <a>\nenv-end\n\nx\n" || !strings.Contains(said.String(), name[:2]) {
			t.Errorf("%s: stored %q, said %q", name, got, said.String())
		}
	}
	dir, _ := newPostOffice(t)
	assert.Must(t, Run(t.Context(), Config{PostOffice: dir, HasFrom: true, From: "x@y, z", Recipients: []string{"a"}, In: strings.NewReader("")}))
	assert.Contains(t, only(t, dir), "from <x@y>\n")
}
