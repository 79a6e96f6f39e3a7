package router

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/router/rules"
)

func mkfifo(name string) error { return unix.Mkfifo(name, 0o600) }

// Whatever a message holds, what stands below our lines is what was submitted.
func TestHeaderAndBodyGoOnByteForByte(t *testing.T) {
	t.Parallel()
	const envelope = "external\nfrom <q@example.net>\nto <a@example.net>\nenv-end\n"
	every := make([]byte, 0, 256)
	for i := range 256 {
		every = append(every, byte(i))
	}
	tests := map[string]struct {
		header, rest string
	}{
		"usual":                     {"From: q@example.net\nSubject:  two blanks \n", "\nbody\n"},
		"empty body":                {"Subject: x\n", "\n"},
		"no empty line":             {"Subject: x\n", ""},
		"no newline after headers":  {"Subject: x", ""},
		"no header":                 {"", "\nbody\n"},
		"nothing at all":            {"", ""},
		"one byte without newline":  {"Subject: x\n", "\nx"},
		"every byte in the body":    {"Subject: x\n", "\n" + string(every)},
		"8-bit and NUL in a header": {"Subject: \xe4\x00\xff\nX-\xff: y\n", "\n\x00\x00\n"},
		"200 kB header line":        {"X-Long: " + strings.Repeat("0123456789", 20000) + "\nSubject: x\n", "\nbody\n"},
		"200 kB folded header":      {"X-Long: " + strings.Repeat("0123456789\n\t", 20000) + "\nSubject: x\n", "\nbody\n"},
		"folded, tabs, blank tail":  {"Subject: a\n\tb \n  c\t\nFrom:q@example.net\nX-Empty:\n", "\n\n\nbody"},
		"carriage returns":          {"Subject: x\r\nFrom: q@example.net\r\n", "\nbody\r\n"},
		"no field":                  {"Subject: x\n>From q\nTo: y\n", "\nbody\n"},
		"dots":                      {"Subject: x\n", "\n.\n..\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			m := o.one(envelope + tt.header + tt.rest)
			ours, own, ok := strings.Cut(m.header(), "\n\tid ")
			if ok {
				_, own, ok = strings.Cut(own, "\n")
			}
			want := tt.header
			if want != "" && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			if !ok || !strings.HasPrefix(ours, "Received: ") || own != want {
				t.Errorf("header: got %.200q, want one Received field and %.200q", m.header(), want)
			}
			body := strings.TrimPrefix(tt.rest, "\n")
			if got := m.message[m.spec.BodyOffset:]; string(got) != body {
				t.Errorf("body: got %.200q, want %.200q", got, body)
			}
			if !bytes.HasSuffix(m.message, []byte(envelope+tt.header+tt.rest)) {
				t.Error("the message file was changed")
			}
		})
	}
}

// RFC 5322 §2.1.1
func TestReceivedFieldStaysWithinTheLimitsOfALine(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ from, want string }{
		"usual":             {"a.example ([192.0.2.1])", "from a.example ([192.0.2.1])\n\tby mx.example.org with ESMTP\n\tid "},
		"folded at blanks":  {"a.example (" + strings.Repeat("word ", 20) + "end)", "from a.example (" + strings.Repeat("word ", 9) + "word\n\tword "},
		"long, with blanks": {"a.example (" + strings.Repeat("word ", 200) + "end)", "from a.example\n\tby "},
		"long, no blank":    {strings.Repeat("x", 2000), "from\n\t" + strings.Repeat("x", 500) + "\n\tby "},
		"tabs":              {"a.example\t(x)", "from a.example (x)\n\tby "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			m := o.one("external\nrcvdfrom " + tt.from + "\nwith ESMTP\nfrom <q@example.net>\nto <a@example.net>\nenv-end\nSubject: x\n\n")
			if !strings.HasPrefix(m.header(), "Received: "+tt.want) {
				t.Errorf("got %q, want %q", m.header(), tt.want)
			}
			for line := range strings.Lines(m.header()) {
				if len(line) > 999 {
					t.Errorf("line of %d bytes", len(line))
				}
			}
			if got := len(envelope.Fields([]byte(m.header()))); got != 2 {
				t.Errorf("fields: got %d, want 2", got)
			}
		})
	}
}

// golden compares a work specification with a file, but for what differs in every
// run: spool ID, name, dates.
func golden(t *testing.T, o *office, name string, m routed) {
	t.Helper()
	if os.Geteuid() == rules.Nobody {
		t.Skip("nobody's own files look like those of others")
	}
	a := bytes.ReplaceAll(m.file, []byte(m.name), []byte("NAME"))
	for _, r := range []struct{ from, to string }{
		{`S[0-9]+A[0-9A-Za-z]+`, "SPOOLID"},
		{`[A-Z][a-z]{2}, [0-9]+ [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} [-+][0-9]{4}`, "DATE"},
		{`userid [0-9]+`, "userid UID"},
		{fmt.Sprintf(`(?m)^([sr] .*) %d$`, os.Geteuid()), "$1 UID"},
		{fmt.Sprintf(`(file|pipe)\.%d `, os.Geteuid()), "$1.UID "},
		{`(?m)^o [0-9]+$`, "o OFFSET"},
		{`(?m)^z [0-9]+ [0-9a-f]{8}$`, "z SIZE"},
	} {
		a = regexp.MustCompile(r.from).ReplaceAll(a, []byte(r.to))
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, a, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, want) {
		t.Errorf("got\n%s\nwant\n%s\n%s", a, want, &o.log)
	}
}

// M16, as far as the router writes it
func TestSpecificationSaysWhatTheEnvelopeAndTheTablesSay(t *testing.T) {
	t.Parallel()
	tables := map[string]string{
		"routes":  "example.net smtp!hub.example.net\n. smtp!smart.example.net:587\n",
		"aliases": "team: bond, moneypenny, q@example.net, /srv/team, \"|/bin/prog -a\", bond\nvoid: /dev/null\n",
	}
	tests := map[string]string{
		"remote": "external\nrcvdfrom client.example.net ([192.0.2.1]:1025 \"EHLO client.example.net\" rhost-flags-OK-OK-OK-FAIL)\nwith ESMTP\n" +
			"from <q@example.net>\nto <a@b.example>\nenv-end\nMessage-ID: <1@example.net>\nSubject: x\n\nbody\n",
		"local": "loginname x\nfullname \"James Bond\" 007\nfrom <q@example.net>\nto <a@b.example>\nenv-end\nSubject: x\n\nbody\n",
		"notary": "external\nwith ESMTP\nfrom <q@example.net>\nenvid QQ314159\nnotaryret hdrs\n" +
			"todsn NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;A+2B@b.example\nto <a@b.example>\nto <team@example.org>\ntodsn NOTIFY=NEVER\nto <b@b.example>\n" +
			"env-end\nMessage-ID: <2@example.net>\n\n",
		"report":        "errormsg\nchannel error\nto <bond@example.org>\nenv-end\nFrom: Mail system <postmaster@example.org>\nDate: today\nMessage-ID: <3@example.net>\n\n",
		"many":          "from <q@example.net>\nto <z@z.example>\nto <team@example.org>\nto <q@EXAMPLE.net>\nto <a@a.example>\nto <bond>\nto <nobody-here@example.org>\nto <z@z.example>\nto <moneypenny@example.org>\nenv-end\nFrom: q@example.net\n\n",
		"nowhere":       "from <q@example.net>\nto <void@example.org>\nenv-end\nFrom: q@example.net\n\n",
		"quoted-sender": "from <\"a b\"@example.net>\nto <a@b.example>\nenv-end\nFrom: q@example.net\nMessage-ID: not\n one\n\n",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, tables)
			golden(t, o, name, o.one(text))
		})
	}
}
