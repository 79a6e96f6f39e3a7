package router

import (
	"strings"
	"testing"
)

func TestHeaderRulesAddRemoveAndReplace(t *testing.T) {
	t.Parallel()
	const header = "Subject: [SPAM]  buy\n now\nX-Spam-Flag: YES\nX-Spam-Score: 7\nx-internal: secret\nno field\nSUBJECT: other\nDate: d\nMessage-ID: i\nFrom: q@x\n"
	tests := map[string]struct{ rules, want string }{
		"none":                         {"# nothing\n\n", header},
		"add":                          {"all add X-Origin: inside, here\n", "X-Origin: inside, here\n" + header},
		"add, without the colon":       {"all add X-Origin inside\n", "X-Origin: inside\n" + header},
		"add two, in order":            {"all add A 1\nall add B 2\n", "A: 1\nB: 2\n" + header},
		"add, then remove it":          {"all add A 1\nall add B 2\nall remove A\nall add C 3\n", "B: 2\nC: 3\n" + header},
		"add two, remove both, add":    {"all add X-A 1\nall add X-B 2\nall remove X-[AB]\nall add X-C 3\n", "X-C: 3\n" + header},
		"remove":                       {"all remove x-INTERNAL\n", strings.Replace(header, "x-internal: secret\n", "", 1)},
		"remove all of a name":         {"all remove subject\n", header[strings.Index(header, "X-Spam-Flag"):strings.Index(header, "SUBJECT")] + "Date: d\nMessage-ID: i\nFrom: q@x\n"},
		"remove by glob":               {"all remove X-Spam-*\n", strings.Replace(header, "X-Spam-Flag: YES\nX-Spam-Score: 7\n", "", 1)},
		"remove by glob and pattern":   {"all remove X-Spam-* /^[0-9]/\n", strings.Replace(header, "X-Spam-Score: 7\n", "", 1)},
		"remove, pattern does not fit": {"all remove X-Spam-Flag /yes/\n", header},
		"remove, any case":             {"all remove X-Spam-Flag /yes/i\n", strings.Replace(header, "X-Spam-Flag: YES\n", "", 1)},
		"replace":                      {`all replace Subject /^\[SPAM\]\s+(.*)$/ Junk: $1` + "\n", strings.Replace(header, "Subject: [SPAM]  buy\n now\n", "Subject: Junk: buy now\n", 1)},
		"replace by nothing":           {`all replace Subject /\[SPAM\] */` + "\n", strings.Replace(header, "Subject: [SPAM]  buy\n now\n", "Subject: buy now\n", 1)},
		"replace a slash":              {`all replace Subject /b\/?uy/ s\/ell` + "\n", strings.Replace(header, "Subject: [SPAM]  buy\n now\n", "Subject: [SPAM]  s\\/ell now\n", 1)},
		"replace everything everywhere": {"all replace X-* /.*/ x\n",
			strings.NewReplacer("X-Spam-Flag: YES", "X-Spam-Flag: x", "X-Spam-Score: 7", "X-Spam-Score: x", "x-internal: secret", "x-internal: x").Replace(header)},
		"replace a dollar":           {"all replace X-Spam-Score /(.)/ $$${1}0\n", strings.Replace(header, "Score: 7", "Score: $70", 1)},
		"one on the other's result":  {"all replace X-Spam-Score /7/ 8\nall remove X-Spam-Score /8/\n", strings.Replace(header, "X-Spam-Score: 7\n", "", 1)},
		"for mail from outside only": {"external add X 1\nexternal remove *\n", header},
		"glob for all":               {"local remove *\n", "no field\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"header-rules": tt.rules})
			m := o.one("from <q@example.net>\nto <a@example.net>\nenv-end\n" + header + "\nbody\n")
			if got := below(t, m); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestHeaderRulesKnowWhoseMailItIs(t *testing.T) {
	t.Parallel()
	const rules = "local add X-Local 1\nexternal add X-External 1\nall add X-All 1\nall remove Re*\n"
	const fields = "From: q@x\nDate: d\nMessage-ID: i\n"
	for file, want := range map[string]string{
		"from <q@example.net>\n":              "X-Local: 1\nX-All: 1\n" + fields,
		"external\nfrom <q@example.net>\n":    "X-External: 1\nX-All: 1\n" + fields,
		"errormsg\nchannel error\n":           fields,
		"external\nchannel error\n":           "X-External: 1\nX-All: 1\n" + fields,
		"channel error\n":                     "X-Local: 1\nX-All: 1\n" + fields,
		"with SMTP\nfrom <q@example.net>\n":   "X-Local: 1\nX-All: 1\n" + fields,
		"bodytype 7BIT\nfrom <a@b.example>\n": "X-Local: 1\nX-All: 1\n" + fields,
	} {
		o := newOffice(t, map[string]string{"header-rules": rules})
		m := o.one(file + "to <a@example.net>\nenv-end\n" + fields + "\n")
		if got := below(t, m); got != want {
			t.Errorf("%q: got\n%s\nwant\n%s", file, got, want)
		}
	}
	// Messages in a circle are known by Received: a glob does not take it.
	o := newOffice(t, map[string]string{"header-rules": "all remove R*\nall replace R* /.*/ x\n"})
	m := o.one("external\nfrom <q@example.net>\nto <a@example.net>\nenv-end\nReceived: y\nReturn-Path: z\nReferences: r\n" + fields + "\n")
	if got, want := below(t, m), "Received: y\nReturn-Path: z\n"+fields; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
