package contentrules

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// scan returns what is decided about a message from outside.
func scan(r *Rules, message string, limit int) *Outcome {
	s := r.Scan(External, limit)
	_, _ = s.Write([]byte(message))
	return s.End()
}

// Op10: each action, in both forms, where it may be.
func TestOp10ActionsDecide(t *testing.T) {
	const message = "Subject: buy now\nX-A: 1\nContent-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Disposition: attachment; filename=a.exe\n\nMZ spam\n--ab\nContent-Type: message/rfc822\n\nSubject: inner\n\ntext\n--ab--\n"
	refused := func(rule string, code status.Code, text string) Outcome {
		return Outcome{Action: Reject, Final: Decision{Rule: rule, Code: code, Text: text}}
	}
	c571 := status.Code{Class: 5, Subject: 7, Detail: 1}
	one := func(set func(o *Outcome, d *Decision), text string) (o Outcome) {
		set(&o, &Decision{Rule: "header-rules:1", Text: text})
		return o
	}
	holds := func(o *Outcome, d *Decision) { o.Hold = d }
	redirects := func(o *Outcome, d *Decision) { o.Redirect = d }
	filters := func(o *Outcome, d *Decision) { o.Filter = d }
	for rules, want := range map[string]Outcome{
		"external reject Subject /buy (.*)/ 5.7.9 no $1": refused("header-rules:1", status.Code{Class: 5, Subject: 7, Detail: 9}, "no now"),
		"all reject X-A":                                          refused("header-rules:1", c571, "Message content rejected"),
		"all reject X-* 550 5.6.0 odd":                            refused("header-rules:1", status.Code{Class: 5, Subject: 6, Detail: 0}, "odd"),
		"all reject Subject 4.7.1 later":                          refused("header-rules:1", status.Code{Class: 4, Subject: 7, Detail: 1}, "later"),
		"local reject X-A":                                        {},
		"all reject mime:Content-Disposition /\\.exe$/i":          refused("header-rules:1", c571, "Message content rejected"),
		"all reject Content-Disposition":                          {}, // a part's
		"all reject nested:Subject /inner/ x":                     refused("header-rules:1", c571, "x"),
		"all reject mime:Subject":                                 {},
		"all reject body /spam/ no":                               refused("header-rules:1", c571, "no"),
		"all reject body /inner/":                                 {},
		"all hold Subject /buy/ look":                             one(holds, "look"),
		"all redirect X-A abuse@example.org":                      one(redirects, "abuse@example.org"),
		"all filter X-A smtp![127.0.0.1]:10025":                   one(filters, "smtp![127.0.0.1]:10025"),
		"all bcc X-A log@example.org":                             {Copies: []string{"log@example.org"}},
		"all discard body /MZ/":                                   {Action: Discard, Final: Decision{Rule: "header-rules:1"}},
		"all warn X-A /(.)/ it is $1":                             {Notes: []Note{{Decision{Rule: "header-rules:1", Text: "it is 1"}, true}}},
		"/^subject:.*buy/ REJECT 5.7.9 no":                        refused("header-rules:1", status.Code{Class: 5, Subject: 7, Detail: 9}, "no"),
		"/\\.exe/ REJECT":                                         refused("header-rules:1", c571, "Message content rejected"), // as header_checks
		"/^subject/ DUNNO\n/buy/ REJECT":                          {},
		"/^subject/ DUNNO\nall reject Subject":                    refused("header-rules:2", c571, "Message content rejected"),
		"/^x-a/ HOLD":                                             one(holds, ""),
		"/^x-a/ REDIRECT abuse@example.org":                       one(redirects, "abuse@example.org"),
		"/^x-a/ FILTER smtp:[127.0.0.1]:10025":                    one(filters, "smtp:[127.0.0.1]:10025"),
		"/^x-a: (.)/ INFO $1":                                     {Notes: []Note{{Decision{Rule: "header-rules:1", Text: "1"}, false}}},
		"/^x-a/ DISCARD\nall reject Subject":                      {Action: Discard, Final: Decision{Rule: "header-rules:1"}},
		"all remove X-A\nall reject X-A":                          {}, // each on what the one before has left
		"all replace X-A /1/ 2\nall reject X-A /2/ two":           refused("header-rules:2", c571, "two"),
		"if /^x-/\nif !/^x-b/\n/./ REJECT nested\nendif\nendif\n": refused("header-rules:3", c571, "nested"),
	} {
		got := *scan(read(t, HeaderFile, rules), message, 0)
		for _, d := range []*Decision{&got.Final, got.Hold, got.Redirect, got.Filter} {
			if d != nil {
				d.Where = ""
			}
		}
		for i := range got.Notes {
			got.Notes[i].Where = ""
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", rules, d)
		}
	}
}

// Op10: header_checks(5): parts have their own table, or that of the header.
func TestOp10PartsFollowTheirOwnFile(t *testing.T) {
	const message = "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nContent-Disposition: attachment; filename=a.exe\n\n"
	assert.Equal(t, scan(readAll(t, map[string]string{HeaderFile: "/exe/ REJECT\n"}), message, 0).Action, Reject)
	assert.Equal(t, scan(readAll(t, map[string]string{HeaderFile: "/exe/ REJECT\n", MIMEFile: "/com/ REJECT\n"}), message, 0).Action, None)
	assert.Equal(t, scan(readAll(t, map[string]string{MIMEFile: "/exe/ REJECT\n"}), message, 0).Action, Reject)
	assert.Equal(t, scan(readAll(t, map[string]string{BodyFile: "/exe/ REJECT\n"}), message, 0).Action, None)
}

// Op10: body_checks_size_limit is about each part.
func TestOp10OnlyTheBeginOfEachBodyIsLookedAt(t *testing.T) {
	rules := read(t, BodyFile, "/spam/ REJECT\n")
	filler := strings.Repeat("filler\n", 20)
	for message, want := range map[string]Action{
		"A: b\n\nspam\n" + filler:      Reject,
		"A: b\n\n" + filler + "spam\n": None,
		"Content-Type: multipart/mixed; boundary=ab\n\n" + filler + "--ab\n\nspam\n":              Reject,
		"Content-Type: multipart/mixed; boundary=ab\n\n--ab\n\n" + filler + "spam\n--ab\n\nham\n": None,
	} {
		assert.Equal(t, scan(rules, message, 50).Action, want, "%q", message)
	}
}

// Op10: whatever comes, a scan keeps a header and a line.
func TestOp10ScanIsBounded(t *testing.T) {
	rules := readAll(t, map[string]string{HeaderFile: "/^never$/ REJECT\n", BodyFile: "/^never$/ REJECT\n"})
	chunk := []byte(strings.Repeat("x", 1<<16))
	for name, begin := range map[string]string{
		"a body without line ends":       "A: b\n\n",
		"a part's header without end":    "Content-Type: multipart/mixed; boundary=ab\n\n--ab\nX: ",
		"a header without end":           "",
		"a nested header that is folded": "Content-Type: message/rfc822\n\nX: y\n ",
	} {
		s := rules.Scan(External, 1<<40)
		_, _ = s.Write([]byte(begin))
		for range 256 { // 16 MiB
			_, _ = s.Write(chunk)
		}
		again := &Scanner{rules: rules, from: External, limit: s.limit, below: true, copy: &copyWriter{w: bufio.NewWriter(io.Discard)}}
		_, _ = again.Write([]byte(begin))
		for range 256 {
			_, _ = again.Write(chunk)
		}
		if n := cap(s.head) + cap(s.line) + cap(s.top) + cap(again.head) + cap(again.line); n > 3*MaxHeader {
			t.Errorf("%s: %d bytes are kept", name, n)
		}
		assert.Equal(t, s.TooLong(), begin == "", "%s", name)
	}
	many := rules.Scan(External, 0)
	_, _ = many.Write([]byte(strings.Repeat("a:\n", maxFields+1)))
	assert.Equal(t, many.TooLong(), true)
	deep := rules.Scan(External, 0)
	for range 1000 {
		_, _ = deep.Write([]byte("Content-Type: multipart/mixed; boundary=a\n\n--a\n"))
	}
	assert.Equal(t, len(deep.bounds) <= maxDepth, true)
}

// Op10: a long line that is no field ends the header of a part or an attached message: what follows
// is its body, for whose rules nothing is hidden.
func TestOp10LongLineThatIsNoFieldIsOfTheBody(t *testing.T) {
	rules := readAll(t, map[string]string{BodyFile: "/bad/ REJECT\n"})
	for _, begin := range []string{"Content-Type: message/rfc822\n\n", "Content-Type: multipart/mixed; boundary=ab\n\n--ab\n"} {
		for _, line := range []string{"bad " + strings.Repeat("x ", maxLine), strings.Repeat("x ", maxLine) + " bad", strings.Repeat("x ", maxLine) + "\nbad"} {
			if o := scan(rules, begin+line+"\n", 1<<20); !o.final() {
				t.Errorf("after %q %.10q is not looked at", begin, line)
			}
		}
	}
}

func TestOp10EditsOfPostfixTables(t *testing.T) {
	const block = "Received: x\nSubject: a\n b\nX-Mailer: Y\n"
	for rules, want := range map[string]string{
		"/^x-mailer:/ IGNORE":                           "Received: x\nSubject: a\n b\n",
		"/^x-mailer: (.*)/ REPLACE X-Program: $1":       "Received: x\nSubject: a\n b\nX-Program: Y\n",
		"/^subject: (.*)$/ REPLACE Subject: [EXT] $(1)": "Received: x\nSubject: [EXT] a\n b\nX-Mailer: Y\n",
		"/^subject/ PREPEND X-Seen: yes":                "Received: x\nX-Seen: yes\nSubject: a\n b\nX-Mailer: Y\n",
		"/^received:/ IGNORE":                           block,
		"/^subject: (.*)/ PREPEND X-$1: evil":           block, // no name of a field
		"/^x/ STRIP":                                    "Received: x\nSubject: a\n b\n",
	} {
		assert.Equal(t, edit(read(t, HeaderFile, rules), block, External), want, "%s", rules)
	}
}

// rewrite returns a message as the rules leave it below its header.
func rewrite(t testing.TB, r *Rules, message string) (string, *Outcome) {
	s := r.Scan(External, 0)
	_, _ = s.Write([]byte(message))
	o := s.End()
	if !s.Edits() {
		return message, o
	}
	var out strings.Builder
	assert.Must(t, s.Rewrite(&out, iotest.OneByteReader(strings.NewReader(message)), true))
	return out.String(), o
}

// Op10: in both forms, in each place. What Postfix makes of tables is compared in test/filters.
func TestOp10RulesChangePartsAndLines(t *testing.T) {
	const message = "Subject: top\nContent-Type: multipart/mixed; boundary=ab\n\npre spam\n--ab\nContent-Disposition: attachment;\n filename=a.exe\nX-A: 1\n\nspam\n\nham\n--ab\n" +
		"Content-Type: message/rfc822\n\nSubject: inner\nReceived: x\n\ntext\n--ab--\n"
	for rules, want := range map[string][]string{ // what is replaced by what
		"all remove mime:X-A":                                              {"X-A: 1\n", ""},
		"all replace mime:Content-Disposition /\\.exe/ .txt":               {"Content-Disposition: attachment;\n filename=a.exe", "Content-Disposition: attachment; filename=a.txt"},
		"all remove nested:Received":                                       {"Received: x\n", ""},
		"all replace body /spam/ s***":                                     {"pre spam\n", "pre s***\n", "\nspam\n", "\ns***\n"},
		"all remove body /^ham$/":                                          {"ham\n", ""},
		"all replace body /^$/ .":                                          {"\n\nham", "\n.\nham"},
		"local remove body /ham/":                                          {},
		"all replace body /spam/ eggs\nall replace body /eggs/ bacon":      {"pre spam\n", "pre bacon\n", "\nspam\n", "\nbacon\n"},
		"/^x-a: (.)/ REPLACE X-B: $1 $$":                                   {"X-A: 1\n", "X-B: 1 $\n"},
		"/^received/ IGNORE":                                               {"Received: x\n", ""}, // of an attached message
		"/^x-a/ PREPEND X-B: 2":                                            {"X-A: 1\n", "X-B: 2\nX-A: 1\n"},
		"/^subject: inner/ STRIP":                                          {"Subject: inner\n", ""},
		"/^content-disposition: (.*)/ REPLACE X-Was: $1":                   {"Content-Disposition: attachment;", "X-Was: attachment;"},
		"/^x-a: (.)/ REPLACE $1: no":                                       {"X-A: 1", "1: no"},
		"/^x-a:( .)/ REPLACE a$1: 1":                                       {}, // no name of a field
		"all remove mime:X-A\nall reject mime:X-A":                         {"X-A: 1\n", ""},
		"/^x-a/ PREPEND X-B: 2\nall remove mime:X-B\nall hold mime:X-A no": {}, // what a line makes is removed by the next one
	} {
		expected := message
		for i := 0; i < len(want); i += 2 {
			expected = strings.Replace(expected, want[i], want[i+1], 1)
		}
		got, o := rewrite(t, read(t, HeaderFile, rules+"\n"), message)
		assert.Equal(t, got, expected, "%s", rules)
		assert.Equal(t, o.Action, None, "%s", rules)
		if len(want) > 0 && (o.Edits == 0 || len(o.EditedBy) == 0) {
			t.Errorf("%s: the changes are not counted", rules)
		}
	}
	body := read(t, BodyFile, "/spam/ PREPEND > \\$0\n/^ham/ REPLACE $$1\n/text/ IGNORE\n/(x?)$/ REPLACE $1\n")
	got, _ := rewrite(t, body, message)
	assert.Equal(t, got, strings.NewReplacer("pre spam\n", "> \\spam\npre spam\n", "\nspam\n", "\n> \\spam\nspam\n", "ham\n", "$1\n", "text\n", "").Replace(message))
}

// Op10: header_checks(5) gives the fields of MIME in each header to mime_header_checks.
func TestOp10FieldsOfMIMEAreForTheirOwnFile(t *testing.T) {
	const message = "Content-Type: text/plain\nX-A: b\n\n"
	both := map[string]string{HeaderFile: "/^/ WARN header\n", MIMEFile: "/^/ WARN mime\n"}
	var got []string
	for _, n := range scan(readAll(t, both), message, 0).Notes {
		got = append(got, n.Where+" "+n.Text)
	}
	assert.Equal(t, strings.Join(got, "|"), "X-A: b header|Content-Type: text/plain mime")
}

// Op10: no rule matches, and whatever comes out is what came in.
func FuzzRewriteKeepsWhatNoRuleChanges(f *testing.F) {
	for _, m := range messages {
		f.Add(m, true)
	}
	f.Add("Content-Type: multipart/mixed; boundary=a\n\n--a\nX: "+strings.Repeat("x", 5000)+"\n y\nZ: "+strings.Repeat("z\n ", 60000)+"\n\n"+strings.Repeat("b", 5000), true)
	f.Add("\n\nno header\n", false)
	rules := readAll(f, map[string]string{HeaderFile: "/^x-never-there: y/ IGNORE\n", BodyFile: "/never there/ REPLACE x\n"})
	f.Fuzz(func(t *testing.T, message string, whole bool) {
		s := rules.Scan(External, 0)
		_, _ = s.Write([]byte(message))
		if o := s.End(); s.TooLong() || o.Edits > 0 || !strings.Contains(message, "\n\n") && !strings.HasPrefix(message, "\n") {
			return
		}
		want := message
		if !whole && strings.HasPrefix(message, "\n") {
			want = message[1:]
		} else if !whole {
			_, want, _ = strings.Cut(message, "\n\n")
		}
		var out strings.Builder
		assert.Must(t, s.Rewrite(&out, strings.NewReader(message), whole))
		if out.String() != want {
			t.Fatalf("got %q, want %q", out.String(), want)
		}
	})
}

// Op10: check-config and the daemons read with the same parser.
func TestOp10BadTableIsNamedWithItsLine(t *testing.T) {
	for text, at := range map[string]place{
		"/x":                              inHeader,
		"/(/ REJECT":                      inHeader,
		"/(?!x)/ REJECT":                  inHeader, // RE2 has no look-ahead
		"/x/ OBEY":                        inHeader,
		"/x/":                             inHeader,
		"/x/x REJECT":                     inHeader,
		"/x/ REDIRECT nobody":             inHeader,
		"/(x)/ REDIRECT $1@example.org":   inHeader,
		"/x/ BCC a@b c@d":                 inHeader,
		"/x/ FILTER nothing":              inHeader,
		"/x/ FILTER local:x":              inHeader,
		"/x/ PREPEND Received: x":         inHeader,
		"/x/ REJECT $2":                   inHeader,
		"endif":                           inHeader,
		"if /x/":                          inHeader,
		"if /x/ REJECT":                   inHeader,
		"/x/ REPLACE":                     inBody,
		"/x/ PREPEND":                     inBody,
		"/x/ REPLACE no field":            inPart,
		"/x/ PREPEND no field ":           inNested,
		"all add mime:X-A 1":              inHeader,
		"all remove body":                 inHeader,
		"all replace body x":              inHeader,
		"all reject body":                 inHeader,
		"all reject mime:":                inHeader,
		"all redirect X-A nobody":         inHeader,
		"all filter X-A file!/etc/passwd": inHeader,
		"all filter X-A pipe!x":           inHeader,
		"all discard X-A /x":              inHeader,
	} {
		_, err := parseFile(at, "f", []byte("# one\n"+text+"\n"))
		bad := (*config.Error)(nil)
		if !errors.As(err, &bad) || bad.Line != 2 {
			t.Errorf("%q: got %v, want an error of line 2", text, err)
		}
	}
}
