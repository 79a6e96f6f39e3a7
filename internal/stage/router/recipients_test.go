package router

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

func addresses(header string) []string {
	var list []string
	for _, r := range fromHeader(envelope.Fields([]byte(header))) {
		list = append(list, r.Address)
	}
	return list
}

// RFC 5322 §3.4 and §3.6.6, and what is written in practice
func TestRecipientsAreFoundInTheHeader(t *testing.T) {
	tests := map[string]struct {
		header string
		want   []string
	}{
		"To, Cc and Bcc, any case":       {"to: a@x\nCC: b@x\nbCC: c@x\n", []string{"a@x", "b@x", "c@x"}},
		"other fields":                   {"From: a@x\nReply-To: b@x\nX-To: c@x\n", nil},
		"folded, with names":             {"To: A <a@x>,\n \"B, b\" <b@x>\n", []string{"a@x", "b@x"}},
		"quoted local part":              {"To: \"a, b\"@x, \"c@d\"@x\n", []string{`"a, b"@x`, `"c@d"@x`}},
		"comments":                       {"To: a@x (me, or not), (x) b@x\n", []string{"a@x", "b@x"}},
		"a group":                        {"To: Friends: a@x, B <b@x>;, c@x\n", []string{"a@x", "b@x", "c@x"}},
		"an empty group":                 {"To: undisclosed-recipients:;\n", nil},
		"empty":                          {"To:\nCc: \n", nil},
		"bare names":                     {"To: bond, James <bond>, a@x\n", []string{"bond", "bond", "a@x"}},
		"bare names with comments":       {"To: bond (007, (licensed) \\)), a@x,,\n", []string{"bond", "a@x"}},
		"a group of bare names":          {"To: Friends: bond, \"q, r\";\n", []string{"bond", `"q, r"`}},
		"not ASCII":                      {"To: Zoë <zoë@bücher.example>\n", []string{"zoë@bücher.example"}},
		"encoded name":                   {"To: =?utf-8?q?Zo=C3=AB=2C_x?= <a@x>\n", []string{"a@x"}},
		"nothing that could be read":     {"To: @@, a@x\n", []string{"@@", "a@x"}},
		"Resent instead of the first To": {"Resent-To: a@x\nResent-Cc: b@x\nTo: c@x\n", []string{"a@x", "b@x"}},
		"the uppermost Resent block":     {"Received: x\nResent-From: q@x\nResent-To: a@x\nReceived: y\nResent-To: b@x\nTo: c@x\n", []string{"a@x"}},
		"two Resent blocks side by side": {"Resent-To: a@x\nResent-From: q@x\nResent-To: b@x\nTo: c@x\n", []string{"a@x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(addresses(tt.header), tt.want); diff != "" {
				t.Errorf("-got +want:\n%s", diff)
			}
		})
	}
}

func TestRecipientThatIsNoAddressIsReported(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	m := o.one("env-end\nTo: a b c, bond\n\n")
	if got, want := strings.Join(m.recipients(), ", "), "error badaddress a b c, local bond@mx.example.org bond@mx.example.org"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whatever the header says, there is no panic, and what comes out can be written
// into a work specification.
func FuzzRecipientsInTheHeader(f *testing.F) {
	for _, s := range []string{"a@x, b", "\"a\\\"\" <b>", "g: a, b;", "(c(d)e\\)) a", "<>", "a@x\n\tb@y", ":;,\"", "=?utf-8?q?a?= <x@y>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.Contains(value, "\n") {
			return
		}
		for _, r := range appendAddresses(nil, value) {
			m, err := address.Parse(r.Address)
			if err == nil && m.IsNull() {
				continue
			}
			shown := human.Mask(r.Address)
			var b bytes.Buffer
			w := workspec.NewWriter(&b)
			w.Preamble(&workspec.Spec{Message: "1"})
			w.Group(workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "1"},
				[]workspec.Recipient{{Channel: "error", Host: "x", Address: shown, Privilege: "1"}}, []byte("A: b\n"))
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			s, err := workspec.Parse(b.Bytes())
			if err != nil || s.Groups[0].Recipients[0].Address != shown {
				t.Errorf("%q: got %+v, %v", shown, s, err)
			}
		}
	})
}

// What ZMailer 3.0.1 made of the files that its SMTP server left in router/ is what
// we make of them, but for the layout of headers and for what an r line's privilege
// is.
func TestRecordedMessagesRouteAsZMailerRoutedThem(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../mail/envelope/testdata/zmailer/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("recorded files: got %d, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want := recorded(t, filepath.Base(name))
			o := newOffice(t, map[string]string{"localnames": "zm.example.org\n", "users": "root\n"}, func(c *Config) { c.Hostname = "mta.zm.example.org" })
			m := o.one(string(text))
			if diff := cmp.Diff(recipientLines(m.spec), recipientLines(want.spec)); diff != "" {
				t.Errorf("recipients (-got +want):\n%s", diff)
			}
			if got, want := m.spec.Ident, want.spec.Ident; got != want {
				t.Errorf("l: got %s, want %s", got, want)
			}
			if got, want := m.spec.ErrorTo[0], strings.Trim(want.spec.ErrorTo[0], "<>"); got != want {
				t.Errorf("e: got %s, want %s", got, want)
			}
			if got, want := withoutDates(m.header()), withoutDates(want.header()); got != want {
				t.Errorf("header: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// recorded reads a specification that ZMailer's router wrote.
func recorded(t *testing.T, name string) routed {
	t.Helper()
	files, err := filepath.Glob("../../workspec/testdata/samples/" + name + "*/transport-before")
	if err != nil || len(files) != 1 {
		t.Fatalf("specification of %s: got %q, %v", name, files, err)
	}
	file, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	spec, err := workspec.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return routed{name: name, spec: spec, file: file}
}

// recipientLines are the recipients without order and privilege.
func recipientLines(s *workspec.Spec) map[string]string {
	lines := map[string]string{}
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			lines[r.Channel+" "+r.Host+" "+r.Address] = "N " + r.Notary + "\nR " + r.Ret + "\nn " + r.EnvID
		}
	}
	return lines
}

// withoutDates is a header as words, without the Received field's spool ID and date,
// which differ.
func withoutDates(header string) string {
	var out []string
	for _, f := range envelope.Fields([]byte(header)) {
		v := f.Value()
		if f.Name == "Received" {
			v, _, _ = strings.Cut(v, "id S")
		}
		out = append(out, f.Name+": "+strings.Join(strings.Fields(v), " "))
	}
	return strings.Join(out, "\n")
}

// M37, RFC 3461 §5.2.7: where one becomes several the sender hears of success once.
func TestSuccessOfAnAliasIsThatItWasExpanded(t *testing.T) {
	tests := map[string]struct {
		dsn, rest string
		asked     bool
	}{
		"nothing":               {"", "", false},
		"never":                 {"NOTIFY=NEVER", "NOTIFY=NEVER", false},
		"failure":               {"NOTIFY=FAILURE ORCPT=rfc822;SUCCESS@a", "NOTIFY=FAILURE ORCPT=rfc822;SUCCESS@a", false},
		"success alone":         {"NOTIFY=SUCCESS ORCPT=rfc822;x@a", "NOTIFY=NEVER ORCPT=rfc822;x@a", true},
		"all, lower case":       {"notify=failure,success,delay", "notify=failure,delay", true},
		"ORCPT before":          {"ORCPT=rfc822;x@a NOTIFY=DELAY,SUCCESS", "ORCPT=rfc822;x@a NOTIFY=DELAY", true},
		"twice":                 {"NOTIFY=SUCCESS,SUCCESS", "NOTIFY=NEVER", true},
		"a value that is empty": {"NOTIFY= X=SUCCESS", "NOTIFY= X=SUCCESS", false},
	}
	for name, tt := range tests {
		rest, asked := withoutSuccess(tt.dsn)
		if asked != tt.asked || asked && rest != tt.rest {
			t.Errorf("%s: got %q %v, want %q %v", name, rest, asked, tt.rest, tt.asked)
		}
	}
}

// M37, RFC 6533 §3: the address that the sender wrote is kept in any script.
func TestOriginalRecipientOfAnAliasIsKept(t *testing.T) {
	via := &rules.Target{Via: []string{"x"}}
	for addr, want := range map[string]string{
		"a+b@x.example":       "ORCPT=rfc822;a+2Bb@x.example",
		"grüße+a=b@x.example": `ORCPT=utf-8;grüße\x{2B}a\x{3D}b@x.example`,
		`"ü \\ "@bücher.test`: `ORCPT=utf-8;"ü\x{20}\x{5C}\x{5C}\x{20}"@bücher.test`,
	} {
		m, err := address.Parse(addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := notary("", via, m); got != want {
			t.Errorf("%s: got %q, want %q", addr, got, want)
		}
		if got := notary("NOTIFY=NEVER", via, m); got != "NOTIFY=NEVER "+want {
			t.Errorf("%s: got %q", addr, got)
		}
	}
}
