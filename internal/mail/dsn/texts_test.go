package dsn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func builtIn(t testing.TB) *Texts {
	t.Helper()
	return assert.Get(BuiltIn())(t)
}

func written(t testing.TB, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	assert.Must(t, Write(&b, r))
	return b.String()
}

const ownText = "Subject: Sorry, {{.Host}} could not\n\nHello.\n{{range .Groups}}\n{{range .Recipients}}\n* {{.Address}}: {{.Advice}}\n{{end}}\n{{end}}\n"

// M37: the report has the text that a postmaster replaced, and only what the
// report's values are is put in.
func TestTextsCanBeReplaced(t *testing.T) {
	texts := builtIn(t)
	assert.Must(t, texts.Replace("en", "failed", ownText))
	got := written(t, report(func(r *Report) { r.Texts = texts }))
	for _, want := range []string{"Subject: Sorry, mta.zm.example.org could not\n", "\nHello.\n* fail1@b.example.com: mailbox\n\n--golden", "Content-Language: en\n"} {
		assert.Contains(t, got, want)
	}
	// A value is no template.
	got = written(t, report(func(r *Report) { r.Texts, r.Recipients[0].Final = texts, `"{{.Host}}"@b` }))
	assert.Contains(t, got, "{{.Host}}")
}

// An error in a text is named with its line, and the old text stays.
func TestBadTextsAreRefusedWithTheirLine(t *testing.T) {
	head := "Subject: x\n\n"
	cases := map[string]struct {
		text string
		line int
		want string
	}{
		"no subject":            {"Hello\n\n", 1, "Subject:"},
		"empty subject":         {"Subject: \n\n", 1, "Subject:"},
		"no empty line":         {"Subject: x\nHello\n", 2, "empty line"},
		"open action":           {head + "Hello\n{{.Host\n", 5, "unclosed action"},
		"if without end":        {head + "a\n{{if .ID}}\nb\n", 6, "unexpected EOF"},
		"unknown field":         {head + "{{if .ID}}\nok\n{{end}}\n{{.Hots}}\n", 6, ".Hots is not known"},
		"field of a recipient":  {head + "a\n{{.Address}}\n", 4, "Address"},
		"unknown function":      {head + "{{shout .Host}}\n", 3, `function "shout" not defined`},
		"function of the world": {head + "a\n\n{{printf \"%99999999d\" 1}}\n", 5, "printf is not allowed"},
		"loop without end":      {head + "{{range 1000000000000}}x{{end}}\n", 3, "range goes over"},
		"loop over a variable":  {head + "{{$n := 1000000000000}}\n{{range $n}}x{{end}}\n", 4, "range goes over"},
		"loops within loops":    {head + strings.Repeat("{{range $.Groups}}", 5) + strings.Repeat("{{end}}", 5), 3, "within each other"},
		"calls itself":          {head + "{{template \"text\" .}}\n", 3, "not allowed"},
		"defines":               {head + "{{define \"x\"}}a{{end}}\n", 0, "not allowed"},
		"not UTF-8":             {head + "\xff", 0, "UTF-8"},
		"too long":              {head + strings.Repeat("x", maxTemplate), 0, "longer"},
		"makes too much": {head + strings.Repeat("{{range $.Groups}}{{range .Recipients}}", 2) + strings.Repeat("x", 30000) + strings.Repeat("{{end}}", 4), 0,
			"more than"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			texts := builtIn(t)
			before := texts.texts["en/failed"]
			err := texts.Replace("en", "failed", tt.text)
			e := (*TextError)(nil)
			if !errors.As(err, &e) || e.Line != tt.line && tt.line > 0 || !strings.Contains(e.Reason, tt.want) {
				t.Errorf("got %+v, want line %d and %q", err, tt.line, tt.want)
			}
			if texts.texts["en/failed"] != before {
				t.Error("the text that was there is gone")
			}
		})
	}
	for _, bad := range [][2]string{{"en", "bounced"}, {"", "failed"}, {"EN", "failed"}, {"../../x", "failed"}, {"e", "failed"}} {
		if err := new(Texts).Replace(bad[0], bad[1], ownText); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// A report is never lost for its words: a text that fails on these values gives way
// to the built-in one, and the caller hears of it.
func TestFailingTextGivesWayToTheBuiltInOne(t *testing.T) {
	texts := builtIn(t)
	// The samples have another address, so that only the report comes to the mistake.
	bad := ownText + "{{range .Groups}}{{range .Recipients}}{{if eq .Address \"fail1@b.example.com\"}}{{.Host}}{{end}}{{end}}{{end}}\n"
	assert.Must(t, texts.Replace("de", "failed", bad))
	trouble := ""
	got := written(t, report(func(r *Report) {
		r.Texts, r.Language = texts, "de"
		r.Trouble = func(language, kind string, err error) { trouble = fmt.Sprint(language, " ", kind, ": ", err) }
	}))
	assert.Contains(t, got, "Subject: Ihre Nachricht konnte nicht zugestellt werden\n")
	if !strings.Contains(trouble, "de failed: line 9: ") || !strings.Contains(trouble, "Host") {
		t.Errorf("trouble: got %q", trouble)
	}
}

// RFC 3282: a sender who names a language gets it.
func TestLanguageIsThatOfTheMessage(t *testing.T) {
	texts := builtIn(t)
	for _, l := range []string{"pt-br", "fr"} {
		assert.Must(t, texts.Replace(l, "failed", ownText))
	}
	cases := map[string]struct{ accept, content, fallback, want string }{
		"nothing said":                  {"", "", "", "en"},
		"nothing said, fallback":        {"", "", "de", "de"},
		"written in German":             {"", "de", "", "de"},
		"a region that has no text":     {"", "de-AT-1996", "", "de"},
		"a region that has its own":     {"pt-BR", "", "", "pt-br"},
		"no text for the plain one":     {"pt", "", "", "en"},
		"reads German, wrote English":   {"de", "en", "", "de"},
		"by weight":                     {"fr;q=0.5, de ; q=0.9, en;q=0.1", "", "", "de"},
		"weight 0 is a no":              {"de;q=0, fr;q=0.1", "", "", "fr"},
		"an unknown one first":          {"tlh, de;q=0.1", "", "", "de"},
		"any":                           {"*", "", "de", "de"},
		"several written":               {"", "en, de", "de", "en"},
		"hostile":                       {"../../etc/passwd, de\x00, ,;;q=x", "\xff", "", "en"},
		"fallback that there is not":    {"", "", "tlh", "en"},
		"English asked, other fallback": {"en-GB", "", "de", "en"},
	}
	for name, tt := range cases {
		texts.Language = tt.fallback
		assert.Equal(t, texts.Choose(tt.accept, tt.content), tt.want, name)
	}
}

// Every language has the same sections: no field is forgotten in a translation.
func TestBuiltInTextsSayTheSame(t *testing.T) {
	texts := builtIn(t)
	for _, kind := range Kinds() {
		var first []string
		for _, language := range []string{"en", "de"} {
			tmpl, got := texts.find(language, kind)
			if got != language {
				t.Fatalf("%s/%s: there is none", language, kind)
			}
			var shape []string
			for _, s := range samples() {
				out := assert.Get(render(tmpl, s))(t)
				subject, body := layout(out)
				paragraphs := len(strings.Split(body, "\n\n"))
				shape = append(shape, fmt.Sprint(subject != "", paragraphs))
				if strings.Contains(body, "\n\n\n") || strings.HasSuffix(body, "\n\n") {
					t.Errorf("%s/%s: empty lines in\n%s", language, kind, body)
				}
			}
			if first == nil {
				first = shape
			} else if !slices.Equal(first, shape) {
				t.Errorf("%s/%s: got paragraphs %v, want %v", language, kind, shape, first)
			}
		}
	}
}

// M38: ten thousand failures of hosts that talk without end make a report whose text
// stays readable, and whose memory does not grow with the answers.
func TestManyLongAnswersStayReadable(t *testing.T) {
	long := strings.Repeat("550 no \x1b[2J such\x00 user\r\n--golden-boundary\r\n", 2500) // 100 kB
	r := report(func(r *Report) {
		r.Texts = builtIn(t)
		one := r.Recipients[0]
		one.Text, one.Diagnostic = long, "smtp; "+long
		r.Recipients = nil
		for i := range 10_000 {
			one.Final = fmt.Sprintf("user%d@b.example.com", i)
			r.Recipients = append(r.Recipients, one)
		}
		r.Date = time.Unix(0, 0)
	})
	var b bytes.Buffer
	got := testing.AllocsPerRun(1, func() {
		b.Reset()
		assert.Must(t, Write(&b, r))
	})
	if got > 3_000_000 {
		t.Errorf("%v allocations", got)
	}
	p := assert.Get(parseReport(b.Bytes()))(t)
	assert.Equal(t, len(p.recipients), 10_000)
	human, _, _ := strings.Cut(b.String(), "message/delivery-status")
	if len(human) > 1<<20 || !strings.Contains(human, "There are 9900 more recipients.") {
		t.Errorf("%d bytes of text, or the number of the others is missing", len(human))
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > maxLine+1 || strings.ContainsAny(line, "\x00\x1b\r") {
			t.Fatalf("line of %d bytes: %.200q", len(line), line)
		}
	}
}

// FuzzText: no text that is taken runs for long, fails on the samples or breaks a
// report.
func FuzzText(f *testing.F) {
	f.Add(ownText)
	f.Add("Subject: {{.ID}}\n\n{{with $x := .Arrival}}{{$x.Format \"2006\"}}{{end}}\n")
	f.Add("Subject: x\n\n--golden-boundary--\n{{range .Groups}}{{break}}{{end}}")
	f.Fuzz(func(t *testing.T, text string) {
		texts := &Texts{}
		if err := texts.Replace("en", "failed", text); err != nil {
			if e := (*TextError)(nil); !errors.As(err, &e) {
				t.Errorf("got %T %v, want a *TextError", err, err)
			}
			return
		}
		var b bytes.Buffer
		assert.Must(t, Write(&b, report(func(r *Report) { r.Texts, r.Boundary = texts, "Xy7.fuzz-boundary" })))
		if strings.Contains(text, "Xy7.fuzz") {
			return
		}
		if p, err := parseReport(b.Bytes()); err != nil || len(p.recipients) != 1 {
			t.Fatalf("%v in\n%s", err, b.Bytes())
		}
	})
}
