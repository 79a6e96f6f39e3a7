package route

import (
	"errors"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestHeaderRulesAddRemoveAndReplace(t *testing.T) {
	const (
		subject  = "Subject: [SPAM]  buy\n now\n"
		rest     = "X-Spam-Flag: YES\nX-Spam-Score: 7\nx-internal: secret\nno field\nSUBJECT: other\n"
		received = "Received: y\nReturn-Path: z\n"
	)
	replaced := func(old, new string) string { return subject + strings.Replace(rest, old, new, 1) + received }
	for rules, want := range map[string]string{
		"# nothing\n\n":                                                 subject + rest + received,
		"all add X-Origin: inside, here\n":                              "X-Origin: inside, here\n" + subject + rest + received,
		"all add X-Origin inside\n":                                     "X-Origin: inside\n" + subject + rest + received,
		"all add A 1\nall add B 2\n":                                    "A: 1\nB: 2\n" + subject + rest + received,
		"all add A 1\nall add B 2\nall remove A\nall add C 3\n":         "B: 2\nC: 3\n" + subject + rest + received,
		"all add X-A 1\nall add X-B 2\nall remove X-*\nall add Y 3\n":   "Y: 3\n" + subject + "no field\nSUBJECT: other\n" + received,
		"all remove x-INTERNAL\n":                                       replaced("x-internal: secret\n", ""),
		"all remove X-Spam-*\n":                                         replaced("X-Spam-Flag: YES\nX-Spam-Score: 7\n", ""),
		"all remove X-Spam-* /^[0-9]/\n":                                replaced("X-Spam-Score: 7\n", ""),
		"all remove X-Spam-Flag /yes/\n":                                subject + rest + received,
		"all remove X-Spam-Flag /yes/i\n":                               replaced("X-Spam-Flag: YES\n", ""),
		"all replace X-Spam-Score /(.)/ $$${1}0\n":                      replaced("Score: 7", "Score: $70"),
		"all replace X-Spam-Score /7/ 8\nall remove X-Spam-Score /8/\n": replaced("X-Spam-Score: 7\n", ""),
		`all replace Subject /^\[SPAM\]\s+(.*)$/ Junk: $1` + "\n":       "Subject: Junk: buy now\n" + rest + received,
		`all replace Subject /\[SPAM\] */` + "\n":                       "Subject: buy now\n" + rest + received,
		`all replace Subject /b\/?uy/ s\/ell` + "\n":                    "Subject: [SPAM]  s\\/ell now\n" + rest + received,
		"external add X 1\nexternal remove *\n":                         subject + rest + received,
		// Loops are found by Received: a glob does not take it.
		"local remove *\n": "no field\n" + received,
	} {
		list := assert.Get(parseHeaderRules("header-rules", []byte(rules)))(t)
		assert.Equal(t, string(list.apply(nil, []byte(subject+rest+received), fromHere)), want, "%q", rules)
	}
}

func TestHeaderRulesApplyByOrigin(t *testing.T) {
	list := assert.Get(parseHeaderRules("header-rules", []byte("local add X-Local 1\nexternal add X-External 1\nall add X-All 1\n")))(t)
	for want, msg := range map[string]message{
		"X-Local: 1\nX-All: 1\n":    {trusted: true, head: &envelope.Message{}},
		"X-External: 1\nX-All: 1\n": {external: true, trusted: true, head: &envelope.Message{}},
		"":                          {trusted: true, head: &envelope.Message{Envelope: envelope.Envelope{ErrorMsg: true}}},
	} {
		assert.Equal(t, string(list.apply(nil, nil, msg.origin())), want, "%+v", msg)
		assert.Equal(t, list.concern(&msg), want != "", "%+v", msg)
	}
}

func TestBadHeaderRuleIsNamed(t *testing.T) {
	for rule, want := range map[string]string{
		"some add X 1":                `"some" where local, external or all is wanted`,
		"all":                         `"" where add, remove or replace is wanted`,
		"all keep X":                  `"keep" where add, remove or replace is wanted`,
		"all add":                     `"" is no field name`,
		"all add X":                   "no text behind X",
		"all add X Y: 1\x01":          "control character 0x01",
		"all add J\xf6 x":             "no field name",
		"all add X J\xf6rg":           "not UTF-8",
		"all add Received: by me":     "Received is for mail systems to add",
		"all remove":                  `"" is no field name`,
		"all remove a[":               "syntax error in pattern",
		"all remove Received":         "received cannot be changed",
		"all replace Return-Path /x/": "return-path cannot be changed",
		"all remove X YES":            `"YES" where a pattern must begin with /`,
		"all remove X /YES":           "pattern without / at its end",
		`all remove X /YES\/`:         "pattern without / at its end",
		"all remove X /(/":            "error parsing regexp",
		"all remove X /a/x":           `"x" behind the pattern`,
		"all remove X /a/ b":          "remove takes no text",
		"all replace X":               "replace wants a pattern",
		"all replace X /(a)/ $2":      "$2: the pattern has no such group",
		"all replace X /(a)/ $1st":    "$1st: the pattern has no such group",
		"all replace X /a/ ${name}":   "${name}: the pattern has no such group",
	} {
		_, err := parseHeaderRules("header-rules", []byte("# one\n"+rule+"\n"))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || bad.Line != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want line 2 and %q", rule, err, want)
		}
	}
}

// RFC 5322 §2.1.1, §2.2.3: folding adds line ends and nothing else.
func TestChangedFieldIsFoldedBeforeBlanks(t *testing.T) {
	for _, value := range []string{
		"short", "", "  two  blanks ", strings.Repeat("word ", 60) + "end", strings.Repeat("x", 300), strings.Repeat("x", 300) + " y",
		strings.Repeat(" ", 200) + "x", strings.Repeat("a ", 40) + strings.Repeat(" ", 100),
	} {
		raw := appendField(nil, "Name", []byte(value))
		f := envelope.Fields(raw)
		if len(f) != 1 || f[0].Name != "Name" || f[0].Value() != strings.Trim(value, " ") {
			t.Errorf("%q: got %q", value, raw)
		}
		for line := range strings.Lines(string(raw)) {
			if strings.TrimSpace(line) == "" || len(line) > foldAt+1 && strings.Contains(strings.TrimSpace(line[strings.Index(line, ":")+1:]), " ") && !strings.Contains(value, "  ") {
				t.Errorf("%q: line %q", value, line)
			}
		}
	}
}

// Whatever rules and header hold: what no rule names stays, and the result is one header
// block with as many lines that are no field as before.
func FuzzHeaderRules(f *testing.F) {
	f.Add("all add X 1\nall remove Y\n", "Y: 1\nZ: 2\n z\n")
	f.Add("local replace S* /(a)(b)?/ $2$1\n", "S: ab\nno field\nT: ab\n")
	f.Add("all replace * /./ ${0}\xc3\xa9\n", "A: \xff\x00\nB:\n \n x")
	msg := &message{head: &envelope.Message{}}
	f.Fuzz(func(t *testing.T, text, block string) {
		rules, err := parseHeaderRules("f", []byte(text))
		if err != nil || strings.HasPrefix(block, "\n") || strings.HasPrefix(block, " ") || strings.HasPrefix(block, "\t") || strings.Contains(block, "\n\n") {
			return
		}
		got := rules.apply(nil, []byte(block), msg.origin())
		if len(rules.list) == 0 && string(got) != block {
			t.Fatalf("no rule: got %q, want %q", got, block)
		}
		nameless := func(b []byte) (n int) {
			for _, f := range envelope.Fields(b) {
				if f.Name == "" {
					n++
				}
			}
			return n
		}
		if strings.Contains(string(got), "\n\n") || strings.HasPrefix(string(got), "\n") {
			t.Fatalf("%q on %q: got %q with an empty line", text, block, got)
		}
		if a, b := nameless([]byte(block)), nameless(got); a != b {
			t.Fatalf("%q on %q: got %q, %d lines that are no field, want %d", text, block, got, b, a)
		}
	})
}

// Op13: recipients of a user's mail do not learn where the user was, if HIDECLIENT says so.
func TestOp13ReceivedLineOfAUserNamesNoClient(t *testing.T) {
	const client = "with ESMTPSA\nrcvdfrom laptop (host.example [192.0.2.9]:4711)\n"
	for name, tt := range map[string]struct {
		submitted string
		hide      bool
		hidden    bool
	}{
		"a user":                          {"submitted jane\n", true, true},
		"a user, not configured":          {"submitted jane\n", false, false},
		"a client of HEADERNETS":          {"submitted -\n", true, false},
		"another host, whose traces stay": {"", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.config.HideClient = tt.hide
			m := r.one("external\n" + client + tt.submitted + "from <q@example.net>\nto <a@example.net>\nenv-end\nSubject: x\n\n")
			assert.Must(t, m.Err)
			_, header, _ := strings.Cut(string(m.file), "\nm\n") // the c line is for this host's operators
			if got := !strings.Contains(header, "192.0.2.9") && !strings.Contains(header, "laptop"); got != tt.hidden {
				t.Errorf("hidden %v, want %v:\n%s", got, tt.hidden, m.file)
			}
			if !strings.Contains(string(m.file), "with ESMTPSA") {
				t.Errorf("no protocol:\n%s", m.file)
			}
		})
	}
}
