package checks

import (
	"context"
	"testing"

	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
)

func TestDMARCAsksWhoSpeaksForTheAuthor(t *testing.T) {
	_, server := checkstest.Serve(t,
		`_dmarc.a.example. TXT "v=DMARC1; p=reject; sp=quarantine"`,
		`_dmarc.strict.example. TXT "v=DMARC1; p=quarantine; adkim=s; aspf=s"`,
		`_dmarc.none.example. TXT "v=DMARC1; p=none"`,
		`_dmarc.half.example. TXT "v=DMARC1; p=reject; pct=40"`,
		`_dmarc.two.example. TXT "v=DMARC1; p=reject"`, `_dmarc.two.example. TXT "v=DMARC1; p=none"`,
		`_dmarc.wrong.example. TXT "v=DMARC1; p=destroy"`,
		`_dmarc.report.example. TXT "v=DMARC1; rua=mailto:d@report.example; aspf=s"`,
		`_dmarc.report2.example. TXT "v=DMARC1; p=destroy; sp=x; rua=http://a.example/x,mailto:d@report.example"`,
		`_dmarc.noreport.example. TXT "v=DMARC1; rua=nowhere"`, `_dmarc.subwrong.example. TXT "v=DMARC1; p=reject; sp=destroy; rua=mailto:d@report.example"`,
		`_dmarc.other.example. TXT "v=spf1 -all"`,
		`_dmarc.sub.own.example. TXT "v=DMARC1; p=none"`, `_dmarc.own.example. TXT "v=DMARC1; p=reject"`,
		`_dmarc.a.co.uk. TXT "v=DMARC1; p=reject"`,
	)
	spf := func(v Value, domain string) SPF { return SPF{Value: v, Domain: domain} }
	for name, tt := range map[string]struct {
		from   string
		spf    SPF
		dkim   []Signature
		want   Value
		policy string
	}{
		"spf of the domain":               {"a@a.example", spf(Pass, "a.example"), nil, Pass, "reject"},
		"spf of a host below":             {"a@a.example", spf(Pass, "bounce.a.example"), nil, Pass, "reject"},
		"spf of another":                  {"a@a.example", spf(Pass, "b.example"), nil, Fail, "reject"},
		"spf failed":                      {"a@a.example", spf(Fail, "a.example"), nil, Fail, "reject"},
		"dkim of the domain":              {"a@a.example", spf(Fail, "x.example"), []Signature{{Pass, "a.example", ""}}, Pass, "reject"},
		"one signature of several":        {"a@a.example", SPF{}, []Signature{{Fail, "a.example", ""}, {Pass, "list.example", ""}, {Pass, "m.a.example", ""}}, Pass, "reject"},
		"dkim of another":                 {"a@a.example", SPF{}, []Signature{{Pass, "b.example", ""}}, Fail, "reject"},
		"dkim failed":                     {"a@a.example", SPF{}, []Signature{{Fail, "a.example", ""}}, Fail, "reject"},
		"the organisation speaks for all": {"a@news.a.example", spf(Pass, "a.example"), nil, Pass, "quarantine"},
		"strict":                          {"a@strict.example", spf(Pass, "strict.example"), nil, Pass, "quarantine"},
		"strict, spf of a host below":     {"a@strict.example", spf(Pass, "h.strict.example"), nil, Fail, "quarantine"},
		"strict, dkim of a host below":    {"a@strict.example", SPF{}, []Signature{{Pass, "h.strict.example", ""}}, Fail, "quarantine"},
		"p=none":                          {"a@none.example", SPF{}, nil, Fail, "none"},
		"pct spares this one":             {"a@half.example", SPF{}, nil, Fail, "quarantine"},
		"its own record before all":       {"a@sub.own.example", SPF{}, nil, Fail, "none"},
		"two records are none":            {"a@two.example", SPF{}, nil, None, ""},
		"a record that is wrong":          {"a@wrong.example", SPF{}, nil, PermError, ""},
		// Peer8: with an address for reports it is p=none (RFC 7489 section 6.6.3).
		"no policy, but reports":          {"a@report.example", spf(Fail, "report.example"), nil, Fail, "none"},
		"no policy, its other tags hold":  {"a@report.example", spf(Pass, "h.report.example"), nil, Fail, "none"},
		"wrong policy, but reports":       {"a@report2.example", SPF{}, nil, Fail, "none"},
		"wrong sp, but reports":           {"a@subwrong.example", SPF{}, nil, Fail, "none"},
		"no policy, wrong reports":        {"a@noreport.example", SPF{}, nil, PermError, ""},
		"another record":                  {"a@other.example", SPF{}, nil, None, ""},
		"no record":                       {"a@nothing.example", SPF{}, nil, None, ""},
		"a public suffix has no owner":    {"a@x.co.uk", spf(Pass, "a.co.uk"), nil, None, ""},
		"two registered below one suffix": {"a@b.a.co.uk", spf(Pass, "x.co.uk"), nil, Fail, "reject"},
		"the name server fails":           {"a@broken.example", SPF{}, nil, TempError, ""},
		"spf is unknown":                  {"a@a.example", spf(TempError, "a.example"), nil, TempError, "reject"},
		"dkim is unknown":                 {"a@a.example", SPF{}, []Signature{{TempError, "a.example", ""}}, TempError, "reject"},
		"two authors of one domain":       {"a@a.example, b@A.example", spf(Pass, "a.example"), nil, Pass, "reject"},
		"two domains":                     {"a@a.example, b@b.example", spf(Pass, "a.example"), nil, PermError, ""},
		"two fields":                      {"a@a.example\nFrom: b@b.example", spf(Pass, "a.example"), nil, PermError, ""},
		"a name that looks like one":      {`"a@a.example" <x@nothing.example>`, spf(Pass, "nothing.example"), nil, None, ""},
		"no address":                      {"nobody", SPF{}, nil, PermError, ""},
		"nothing":                         {"", SPF{}, nil, PermError, ""},
		"a literal":                       {"a@[192.0.2.1]", SPF{}, nil, PermError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{SPF: true, DKIM: true, DMARC: true, Server: server, Percent: func() int { return 40 }})
			header, _ := parts("To: x@y\nFrom: " + tt.from + "\n\nhi\n")
			got := c.DMARC(context.Background(), header, &Results{SPF: tt.spf, DKIM: tt.dkim})
			if got.Value != tt.want || got.Policy != tt.policy {
				t.Errorf("got %+v, want %s %q", got, tt.want, tt.policy)
			}
		})
	}
	c := New(Config{SPF: true, DMARC: true, Server: server, Percent: func() int { return 39 }})
	header, _ := parts("From: a@half.example\n\n")
	if got := c.DMARC(context.Background(), header, &Results{}); got.Policy != "reject" {
		t.Errorf("with pct: got %+v", got)
	}
	header, _ = parts("To: x@y\n\n")
	if got := c.DMARC(context.Background(), header, &Results{}); got.Value != PermError {
		t.Errorf("without From: got %+v", got)
	}
}
