package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// brokenHeaders are those of the kinds that mail comes with.
var brokenHeaders = map[string]struct{ header, reason string }{
	"quote without end":            {"From: \"Q <q@example.net>\nTo: a@example.net\n", "a quote without end"},
	"comment without end":          {"From: q@example.net (Q (R)\nTo: a@example.net\n", "a comment without end"},
	"comment closed only":          {"From: q@example.net R)\n", "a ) that nothing opened"},
	"nested angles":                {"From: <<q@example.net>>\n", "brackets in brackets"},
	"angle without end":            {"From: Q <q@example.net\n", "a < without end"},
	"angle closed only":            {"To: a@example.net>\nFrom: q@example.net\n", "a > that nothing opened"},
	"no colon":                     {"From: q@example.net\nthis is no field\nSubject: x\n", "a line that is no field"},
	"no colon at once":             {"From: q@example.net\n\x01\x02\n", "a line that is no field"},
	"mbox line":                    {"From: q@example.net\n>From q Mon Jan 1\n", "a line that is no field"},
	"raw 8-bit":                    {"From: J\xf6rg <q@example.net>\n", "neither ASCII nor UTF-8"},
	"raw 8-bit, name of the field": {"From: q@example.net\nX-\xf6: x\n", "a line that is no field"},
	"folded blanks":                {"From: q@example.net\nSubject: x\n \t \n y\n", "a line of blanks alone"},
	"folded blanks at the end":     {"From: q@example.net\nSubject: x\n \n", "a line of blanks alone"},
	"two of a kind":                {"From: q@example.net\nSubject: x\nSUBJECT: y\n", "a second one"},
	"two Froms":                    {"From: q@example.net\nFrom: r@example.net\n", "a second one"},
	"two Message-IDs":              {"From: q@example.net\nMessage-ID: <1@x>\nMessage-ID: <2@x>\n", "a second one"},
	"200 kB line":                  {"From: q@example.net\nX-Long: " + strings.Repeat("0123456789", 20000) + "\n", "a line of 200008 bytes"},
	"200 kB address list":          {"From: q@example.net\nTo: " + strings.Repeat("a@example.net, ", 14000) + "\n", "a line of"},
	"999 bytes":                    {"X: " + strings.Repeat("x", 996) + "\n", "a line of 999 bytes"},
	"NUL":                          {"From: q@example.net\nSubject: a\x00b\n", "a control character"},
	"bare CR":                      {"From: q@example.net\nSubject: a\rb\n", "a control character"},
}

// soundHeaders leave no copy.
var soundHeaders = map[string]string{
	"usual":               "From: \"Q, R\" <q@example.net>\nTo: a@example.net (A (B) \\)), G: c@x;\nSubject: \"x (<y\n",
	"folded":              "From: q@example.net\nTo: a@example.net,\n\tb@example.net\n",
	"UTF-8 (RFC 6532)":    "From: Jörg <jörg@bücher.example>\n",
	"many trace fields":   "Received: a\nReceived: b\nDKIM-Signature: a\nDKIM-Signature: b\nComments: (\nComments: x\n",
	"resent twice":        "Resent-From: a@x\nResent-From: b@x\nFrom: q@example.net\n",
	"998 bytes":           "X: " + strings.Repeat("x", 995) + "\n",
	"quotes in a comment": "From: q@example.net (it's a \" thing)\n",
	"angle in quotes":     "From: \"<<\" <q@example.net>\n",
	"empty fields":        "From:\nTo: \nSubject:\n",
	"CR LF":               "From: q@example.net\r\nSubject: a\r\n b\r\n",
	"none":                "",
}

// M12, and "must hold": whatever is wrong with a header, the message goes on unharmed,
// and with POSTMANCOPY a copy stays behind.
func TestMessageWithABrokenHeaderGoesOnUnharmedAndLeavesACopy(t *testing.T) {
	t.Parallel()
	const head = "external\nfrom <q@example.net>\nto <a@example.net>\nenv-end\n"
	for name, tt := range brokenHeaders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = true })
			m := o.one(head + tt.header + "\nbody\n")
			if got := below(t, m); got != tt.header {
				t.Errorf("header: got %.200q, want %.200q", got, tt.header)
			}
			if got := string(m.message[m.spec.BodyOffset:]); got != "body\n" {
				t.Errorf("body: got %q", got)
			}
			if got, want := strings.Join(m.recipients(), ", "), "smtp example.net a@example.net"; got != want {
				t.Errorf("recipients: got %s, want %s", got, want)
			}
			o.expect("with copies", map[string]int{"queue": 1, "transport": 1, "postman": 1})
			soft := o.names("postman")[0]
			if !strings.HasSuffix(soft, "_header") {
				t.Errorf("copy: got %s, want <ino>_header", soft)
			}
			if b, err := os.ReadFile(filepath.Join(o.dir, "postman", soft)); err != nil || string(b) != string(m.message) {
				t.Errorf("copy: got %.200q, %v, want the message", b, err)
			}
			o.logged(1, "msg=soft-copy", "name=postman/"+soft)
		})
	}
	for name, text := range soundHeaders {
		t.Run("sound: "+name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = true })
			o.one(head + text + "\nbody\n")
			o.expect("sound", map[string]int{"queue": 1, "transport": 1})
		})
	}
}

// M12: a broken envelope is never delivered, however good the header.
func TestBrokenEnvelopeIsNeverDelivered(t *testing.T) {
	t.Parallel()
	const header = "env-end\nFrom: q@example.net\nTo: a@example.net\nBcc: bond\n\nbody\n"
	for name, lines := range map[string]string{
		"recipient: two @":            "from <q@example.net>\nto <a@b@example.net>\n",
		"recipient: quote":            "from <q@example.net>\nto <\"a@example.net>\n",
		"recipient: bracket":          "from <q@example.net>\nto <a@example.net\n",
		"recipient: nested angles":    "from <q@example.net>\nto <<a@example.net>>\n",
		"recipient: comment":          "from <q@example.net>\nto <a(x)@example.net>\n",
		"recipient: none":             "from <q@example.net>\nto\n",
		"recipient: null":             "from <q@example.net>\nto <>\n",
		"recipient: Latin-1":          "from <q@example.net>\nto <\xe4@example.net>\n",
		"recipient: one of two":       "from <q@example.net>\nto <a@example.net>\nto <a b@example.net>\n",
		"recipient: control":          "from <q@example.net>\nto <a\x01@example.net>\n",
		"recipient: empty label":      "from <q@example.net>\nto <a@b..c>\n",
		"sender: two @":               "from <q@r@example.net>\nto <a@example.net>\n",
		"sender: second one":          "from <q@example.net>\nchannel error\nto <a@example.net>\n",
		"sender: quote":               "from <\"q@example.net>\nto <a@example.net>\n",
		"line: no keyword":            "from <q@example.net>\n<a@example.net>\nto <a@example.net>\n",
		"line: begins with a blank":   "from <q@example.net>\nto <a@example.net>\n b@example.net\n",
		"line: NUL":                   "from <q@example.net>\nto <a@example.net>\nfullname \x00\n",
		"line: CR":                    "from <q@example.net>\r\nto <a@example.net>\r\n",
		"source route without an end": "from <@a,@b>\nto <a@example.net>\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// With soft copies wanted, too, there is the one hard copy.
			o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = true })
			text := lines + header
			a := o.submit(text)
			if list := o.route(); len(list) != 0 {
				t.Errorf("delivered: %q", list[0].recipients())
			}
			o.expect(name, map[string]int{"postman": 1})
			if got, want := o.names("postman")[0], fmt.Sprint(a.ID.Ino); got != want {
				t.Errorf("got %s, want %s: a hard copy", got, want)
			}
			b, err := os.ReadFile(filepath.Join(o.dir, "postman", fmt.Sprint(a.ID.Ino)))
			if err != nil || !strings.HasSuffix(string(b), text) {
				t.Errorf("copy: got %q, %v, want the file as it was", b, err)
			}
			o.logged(1, "msg=set-aside", "id="+a.ID.String(), "envelope line")
		})
	}
}
