package access

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
)

// unauthenticated returns the facts of mail to us from an unauthenticated client, with a
// change.
func unauthenticated(change func(*Facts)) *Facts {
	f := &Facts{
		Client: netip.MustParseAddr("198.51.100.7"), Name: "out.example.net", Role: "mx", Helo: "out.example.net",
		From: address.Mailbox{Local: "a", Domain: "example.net"}, To: address.Mailbox{Local: "b", Domain: "example.org"}, Local: true,
	}
	if change != nil {
		change(f)
	}
	return f
}

// elsewhere is a recipient in no domain of ours.
func elsewhere(f *Facts) { f.To, f.Local = address.Mailbox{Local: "b", Domain: "example.com"}, false }

func rules(t testing.TB, text string) *Rules {
	t.Helper()
	return assert.Get(open(t, text))(t)
}

func open(t testing.TB, text string) (*Rules, error) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "access")
	assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
	r, err := Open(Options{Path: path, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { r.Close() })
	}
	return r, err
}

func decide(t testing.TB, r *Rules, f *Facts) Decision {
	t.Helper()
	return assert.Get(r.Decide(context.Background(), f))(t)
}

func TestFirstRuleThatFitsDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		rules string
		facts *Facts
		want  Action
		by    string
	}{
		"no rule, to us":                {"", unauthenticated(nil), Accept, "default"},
		"no rule, elsewhere":            {"", unauthenticated(elsewhere), Reject, "default"},
		"the first of two":              {"reject client=198.51.100.0/24\naccept client=198.51.100.7\n", unauthenticated(nil), Reject, "access:1"},
		"the second":                    {"accept client=192.0.2.1\n# no\n\nreject client=198.51.100.7\n", unauthenticated(nil), Reject, "access:4"},
		"all conditions of a rule":      {"reject client=198.51.100.7 helo=other.example\n", unauthenticated(nil), Accept, "default"},
		"a rule on two lines":           {"reject client=198.51.100.7\n  helo=out.example.net\n", unauthenticated(nil), Reject, "access:1"},
		"comments within":               {"reject client=198.51.100.7 # him\n # and\n  helo=out.example.net # that\n", unauthenticated(nil), Reject, "access:1"},
		"one of several values":         {"reject client=192.0.2.1,2001:db8::/32,198.51.100.0/25\n", unauthenticated(nil), Reject, "access:1"},
		"a Unix socket":                 {"reject client=unix\n", unauthenticated(func(f *Facts) { f.Client = netip.Addr{} }), Reject, "access:1"},
		"an address in IPv6 form":       {"reject client=198.51.100.7\n", unauthenticated(func(f *Facts) { f.Client = netip.MustParseAddr("::ffff:198.51.100.7") }), Reject, "access:1"},
		"not":                           {"reject client!=198.51.100.7\n", unauthenticated(nil), Accept, "default"},
		"a host name":                   {"defer name=OUT.example.net.\n", unauthenticated(nil), Defer, "access:1"},
		"below a domain":                {"defer name=.example.net\n", unauthenticated(nil), Defer, "access:1"},
		"the domain itself":             {"defer name=.out.example.net\n", unauthenticated(nil), Defer, "access:1"},
		"another that ends so":          {"defer name=.ample.net\n", unauthenticated(nil), Accept, "default"},
		"a sender's address":            {"reject from=A@EXAMPLE.net\n", unauthenticated(nil), Reject, "access:1"},
		"a sender's domain":             {"reject from=example.net\n", unauthenticated(nil), Reject, "access:1"},
		"its domain with @":             {"reject from=@example.net\n", unauthenticated(nil), Reject, "access:1"},
		"a local part":                  {"reject from=a@\n", unauthenticated(nil), Reject, "access:1"},
		"the null sender":               {"reject from=<>\n", unauthenticated(func(f *Facts) { f.From = address.Mailbox{} }), Reject, "access:1"},
		"a sender is not the null one":  {"reject from=<>\n", unauthenticated(nil), Accept, "default"},
		"any recipient of ours":         {"reject to=@local\n", unauthenticated(nil), Reject, "access:1"},
		"a domain in U-labels":          {"reject from=bücher.example\n", unauthenticated(func(f *Facts) { f.From.Domain = "xn--bcher-kva.example" }), Reject, "access:1"},
		"a role":                        {"reject role=submission,mx\n", unauthenticated(nil), Reject, "access:1"},
		"an authenticated user":         {"reject user=*\n", unauthenticated(func(f *Facts) { f.User = "bob" }), Reject, "access:1"},
		"no user":                       {"reject user=-\n", unauthenticated(nil), Reject, "access:1"},
		"in the clear":                  {"reject tls=no\n", unauthenticated(nil), Reject, "access:1"},
		"in TLS":                        {"reject tls=no\n", unauthenticated(func(f *Facts) { f.TLS = true }), Accept, "default"},
		"a certificate":                 {"reject cert=" + strings.Repeat("0A:", 31) + "0A\n", unauthenticated(func(f *Facts) { f.Cert = strings.Repeat("0a", 32) }), Reject, "access:1"},
		"frozen":                        {"freeze from=example.net cause=odd\n", unauthenticated(nil), Freeze, "access:1"},
		"checked before":                {"reject spf=fail\n", unauthenticated(func(f *Facts) { f.SPF = "fail" }), Reject, "access:1"},
		"a result after the content":    {"reject dmarc=fail\n", unauthenticated(func(f *Facts) { f.Whole, f.DMARC = true, "fail" }), Reject, "access:1"},
		"not checked is none":           {"reject dkim=none\n", unauthenticated(func(f *Facts) { f.Whole = true }), Reject, "access:1"},
		"a large message":               {"reject size>1k\n", unauthenticated(func(f *Facts) { f.Whole, f.Size = true, 1025 }), Reject, "access:1"},
		"no large message":              {"reject size>1k\n", unauthenticated(func(f *Facts) { f.Whole, f.Size = true, 1024 }), Accept, "default"},
		"many recipients":               {"reject rcpts>2\n", unauthenticated(func(f *Facts) { f.Whole, f.Rcpts = true, 3 }), Reject, "access:1"},
		"etrn is not about mail":        {"etrn client=198.51.100.7\n", unauthenticated(elsewhere), Reject, "default"},
		"trusted, refused nevertheless": {"reject from=example.net\n", unauthenticated(func(f *Facts) { f.Trusted = true }), Reject, "access:1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(t, rules(t, tt.rules), tt.facts)
			if got.Action != tt.want || got.By != tt.by || got.Pending != "" {
				t.Errorf("got %v by %s, pending %q, want %v by %s", got.Action, got.By, got.Pending, tt.want, tt.by)
			}
		})
	}
}

// Without RELAYNETS only a rule that names the recipient lets a client relay.
func TestNoRuleOpensARelayByWhatItLeavesOut(t *testing.T) {
	for name, tt := range map[string]struct {
		rules string
		want  Action
	}{
		"accept of everything":               {"accept\n", Reject},
		"accept of a client":                 {"accept client=198.51.100.7\n", Reject},
		"accept of a sender":                 {"accept from=example.net\n", Reject},
		"accept of a result":                 {"accept spf=pass\n", Reject},
		"accept to anybody":                  {"accept to=*\n", Reject},
		"accept to a local part":             {"accept to=b@\n", Reject},
		"accept to all but one":              {"accept to!=example.edu\n", Reject},
		"accept to ours":                     {"accept to=@local\n", Reject},
		"accept to another":                  {"accept to=example.edu\n", Reject},
		"freeze of a client":                 {"freeze client=198.51.100.7\n", Reject},
		"accept to it":                       {"accept to=example.com\n", Accept},
		"accept to it, among others":         {"accept to=b@,.example.com\n", Accept},
		"accept of a client to it":           {"accept client=198.51.100.0/24 to=b@example.com\n", Accept},
		"relay of the client":                {"relay client=198.51.100.0/24\n", Accept},
		"relay of another":                   {"relay client=192.0.2.0/24\n", Reject},
		"relay behind a reject":              {"reject helo=out.example.net\nrelay client=198.51.100.0/24\n", Reject},
		"accept before a relay passes it on": {"accept client=198.51.100.0/24\nrelay client=198.51.100.7\n", Accept},
	} {
		t.Run(name, func(t *testing.T) {
			whole := func(f *Facts) { elsewhere(f); f.Whole, f.SPF = true, "pass" }
			if got := decide(t, rules(t, tt.rules), unauthenticated(whole)); got.Action != tt.want {
				t.Errorf("got %v by %s, want %v", got.Action, got.By, tt.want)
			}
		})
	}
}

// What an administrator of Postfix writes leads to the name that is right here.
func TestUnknownActionNamesTheRightOne(t *testing.T) {
	for line, want := range map[string]string{
		"reject_unkown_sender_domain":                  "reject_unknown_sender_domain",
		"permit_mynetworks, reject_unauth_destination": "comma: permit_mynetworks",
		"spam@example.com REJECT":                      "check_sender_access",
		"rejct from=a@b":                               "mean reject?",
		"no_such_restriction":                          "docs/access.md",
	} {
		if _, err := open(t, line+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s in it", line, err, want)
		}
	}
}

func TestRuleThatIsWrongIsNamedByItsLine(t *testing.T) {
	for name, rules := range map[string]string{
		"no action":                "# x\nallow client=192.0.2.1\n",
		"no key":                   "reject colour=red\n",
		"no condition":             "reject spam\n",
		"no value":                 "reject from=\n",
		"an empty value":           "reject from=a@b,\n",
		"no network":               "reject client=example.net\n",
		"no result":                "reject spf=bad\n",
		"no fingerprint":           "reject cert=abc\n",
		"relay for everybody":      "relay\n",
		"relay for the world":      "relay client=192.0.2.1,0.0.0.0/0\n",
		"relay for all but one":    "relay client!=192.0.2.1\n",
		"relay without a user":     "relay user=-\n",
		"relay for a sender":       "relay from=example.net\n",
		"relay for a role":         "relay role=lmtp\n",
		"etrn for everybody":       "etrn to=example.net\n",
		"a wrong code":             "reject from=a@b : 450 later\n",
		"a wrong enhanced code":    "defer from=a@b : 450 5.7.1 later\n",
		"accept with a text":       "accept from=a@b : hello\n",
		"a text alone":             ": go away\n",
		"a quote":                  `reject from="a` + "\n",
		"behind the text":          `reject : "a" b` + "\n",
		"a cause for a reject":     "reject cause=x from=a@b\n",
		"a line without beginning": "  from=a@b\n",
		"a list that is not there": "reject from=file:nothing\n",
		"no such source":           "reject from=db:nothing\n",
		"@local of senders":        "reject from=@local\n",
		"size with =":              "reject size=5\n",
		"a number that is none":    "reject rcpts>many\n",
		"a word with >":            "reject helo>5\n",
	} {
		t.Run(name, func(t *testing.T) {
			line := 1 + strings.Count(strings.TrimSuffix(rules, "\n"), "\n")
			_, err := open(t, rules)
			if bad := (*config.Error)(nil); !errors.As(err, &bad) || !strings.HasSuffix(bad.File, "nothing") && bad.Line != line {
				t.Errorf("got %v, want an error of line %d", err, line)
			}
		})
	}
}

func TestReplyTakesCodeAndTextOfTheRule(t *testing.T) {
	for name, tt := range map[string]struct{ rule, want string }{
		"none":             {"reject from=example.net", "550 5.7.1 Access denied"},
		"none, later":      {"defer from=example.net", "450 4.7.1 Try again later"},
		"a text":           {`reject from=example.net : "no: not you"`, "550 5.7.1 no: not you"},
		"without quotes":   {`reject from=example.net : no, not you`, "550 5.7.1 no, not you"},
		"a code":           {`reject from=example.net : "554 no"`, "554 5.7.1 no"},
		"an enhanced code": {`reject from=example.net : "5.7.26 no"`, "550 5.7.26 no"},
		"both":             {`defer from=example.net : 421 4.3.2 later`, "421 4.3.2 later"},
		"a number of ours": {`reject from=example.net : 5 is too many`, "550 5.7.1 5 is too many"},
	} {
		t.Run(name, func(t *testing.T) {
			code, s, text := decide(t, rules(t, tt.rule+"\n"), unauthenticated(nil)).Reply()
			assert.Equal(t, strings.Join([]string{itoa(code), s.String(), text}, " "), tt.want)
		})
	}
}

func itoa(n int) string {
	return string([]byte{byte('0' + n/100), byte('0' + n/10%10), byte('0' + n%10)})
}

// Rules that ask about the content wait for it; a refusal that holds anyway
// does not.
func TestRulesWaitForTheContentOnlyIfItMatters(t *testing.T) {
	for name, tt := range map[string]struct {
		rules   string
		facts   *Facts
		now     Action
		waits   bool
		results string // of dkim, then
		then    Action
	}{
		"reject by a result":           {"reject dkim=fail\n", unauthenticated(nil), Accept, true, "fail", Reject},
		"accept, since there is none":  {"reject dkim=fail\n", unauthenticated(nil), Accept, true, "pass", Accept},
		"reject either way":            {"reject dkim=fail\nreject from=example.net\n", unauthenticated(nil), Reject, false, "", None},
		"relaying denied either way":   {"reject dkim=fail\n", unauthenticated(elsewhere), Reject, false, "", None},
		"relay if it is signed":        {"accept dkim=pass to=example.com\n", unauthenticated(elsewhere), Accept, true, "pass", Accept},
		"no relay if it is not":        {"accept dkim=pass to=example.com\n", unauthenticated(elsewhere), Accept, true, "fail", Reject},
		"another condition fails now":  {"reject dkim=fail from=example.edu\n", unauthenticated(nil), Accept, false, "", None},
		"frozen by a result":           {"freeze dkim=fail\n", unauthenticated(nil), Accept, true, "fail", Freeze},
		"a later rule fits for now":    {"accept dkim=pass\nreject from=example.net\n", unauthenticated(nil), Accept, true, "none", Reject},
		"unsigned mail, not waited on": {"accept from=example.net\nreject dkim=none\n", unauthenticated(nil), Accept, false, "", None},
	} {
		t.Run(name, func(t *testing.T) {
			r := rules(t, tt.rules)
			got := decide(t, r, tt.facts)
			if got.Action != tt.now || (got.Pending != "") != tt.waits {
				t.Fatalf("got %v, pending %q, want %v", got.Action, got.Pending, tt.now)
			}
			if !tt.waits {
				return
			}
			tt.facts.Whole, tt.facts.DKIM = true, tt.results
			if got := decide(t, r, tt.facts); got.Action != tt.then || got.Pending != "" {
				t.Errorf("then got %v, pending %q, want %v", got.Action, got.Pending, tt.then)
			}
		})
	}
}

// A file that turns bad leaves the rules as they were, and a list changes by itself.
func TestRulesAndListsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
		now = now.Add(time.Minute)
		assert.Must(t, os.Chtimes(path, now, now.Add(-time.Second)))
	}
	write("spammers", "# who\nexample.net\n")
	write("access", "reject from=file:spammers\n")
	r := assert.Get(Open(Options{Path: filepath.Join(dir, "access"), Dir: dir, Now: func() time.Time { return now }}))(t)
	defer r.Close()
	want := func(what string, a Action) {
		t.Helper()
		now = now.Add(time.Minute)
		if got := decide(t, r, unauthenticated(nil)); got.Action != a {
			t.Errorf("%s: got %v by %s, want %v", what, got.Action, got.By, a)
		}
	}
	want("at first", Reject)
	write("spammers", "example.edu\n")
	want("off the list", Accept)
	write("access", "defer from=example.net\n")
	want("another rule", Defer)
	write("access", "deny from=example.net\n")
	want("a bad rule", Defer)
	write("access", "reject from=example.net\n")
	want("mended", Reject)
}

func TestQueuesAreStartedByWhomARuleNames(t *testing.T) {
	r := rules(t, "reject client=198.51.100.7\netrn client=198.51.100.7 to=.customer.example\netrn user=admin\n")
	for name, tt := range map[string]struct {
		host string
		f    *Facts
		want bool
	}{
		"its own":        {"customer.example", unauthenticated(nil), true},
		"below":          {"mail.customer.example", unauthenticated(nil), true},
		"another's":      {"example.com", unauthenticated(nil), false},
		"another client": {"customer.example", unauthenticated(func(f *Facts) { f.Client = netip.MustParseAddr("192.0.2.1") }), false},
		"a user":         {"example.com", unauthenticated(func(f *Facts) { f.User = "Admin" }), true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.f.To, tt.f.Local = address.Mailbox{Local: "postmaster", Domain: tt.host}, false
			if got, err := r.MayETRN(context.Background(), tt.f); got != tt.want || err != nil {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

// FuzzRules: any file is rules or an error with a line, and no rules accept mail from an
// unauthenticated client to a domain that they do not name.
func FuzzRules(f *testing.F) {
	for _, s := range []string{
		"reject client=192.0.2.0/24,unix from=<>,a@b,.c,d@ : \"554 5.7.1 no\"\n", "accept to=@local size>10k\n  spf=pass,none\n",
		"relay user=* cert=*\n", "freeze cause=x rcpts>5 dkim!=pass # y\n", "etrn client=::1 to=#q\n", ": x\n", "defer \"helo=a b\"\n", "accept\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// No files: they would be looked for.
		rs, err := parse("access", []byte(s), &sources{instead: func(string, string) (set, error) { return newMembers("to"), nil }})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "access:") {
				t.Errorf("%q: error without a line: %v", s, err)
			}
			return
		}
		for _, r := range rs.rules {
			if r.kind == kindRelay {
				return
			}
			for _, c := range r.conds {
				if c.key == "to" && !c.negate {
					return
				}
			}
		}
		elsewhere := unauthenticated(elsewhere)
		elsewhere.Whole = true
		if d := decideBy(t, rs.rules, elsewhere); d.Action == Accept || d.Action == Freeze {
			t.Errorf("%q: %v for %v", s, d.Action, elsewhere.To)
		}
	})
}

// decideBy decides by rules that no file holds.
func decideBy(t testing.TB, list []*rule, f *Facts) Decision {
	t.Helper()
	return assert.Get(decision(context.Background(), list, f))(t)
}

// Expressions are compared with the whole address or name, as in regexp_table(5): not with the
// domains above it, which a table of keys is asked for, too.
func TestExpressionsSeeTheWholeNameAlone(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("unqualified", "/^[^.]*$/ REJECT needs a dot\n")
	write("others", "!/@example\\.net$/ REJECT not from there\n")
	write("network", "/^198\\.51$/ REJECT\n")
	write("cidr", "192.0.2.0/24 OK\n192.0.2.9 REJECT\n!198.51.100.0/24 REJECT\n")
	write("ours", "!/@example\\.net$/ x\n")
	for name, tt := range map[string]struct {
		rules string
		facts *Facts
		want  Action
	}{
		"not in a network":                {"check_client_access file:cidr", unauthenticated(func(f *Facts) { f.Client = netip.MustParseAddr("203.0.113.1") }), Reject},
		"an address behind its network":   {"check_client_access file:cidr", unauthenticated(func(f *Facts) { f.Client = netip.MustParseAddr("192.0.2.9") }), Accept},
		"a name with dots":                {"check_helo_access regexp:unqualified", unauthenticated(nil), Accept},
		"a name without":                  {"check_helo_access regexp:unqualified", unauthenticated(func(f *Facts) { f.Helo = "out" }), Reject},
		"the same in a file":              {"check_helo_access file:unqualified", unauthenticated(nil), Accept},
		"the same in a unionmap":          {"check_helo_access unionmap:{regexp:unqualified,regexp:network}", unauthenticated(nil), Accept},
		"all but a domain":                {"check_sender_access regexp:others", unauthenticated(nil), Accept},
		"all but a domain, another":       {"check_sender_access regexp:others", unauthenticated(func(f *Facts) { f.From.Domain = "example.com" }), Reject},
		"all but a domain, file":          {"check_sender_access file:others", unauthenticated(nil), Accept},
		"all but a domain, file, another": {"check_sender_access file:others", unauthenticated(func(f *Facts) { f.From.Domain = "example.com" }), Reject},
		"a part of the client's address":  {"check_client_access regexp:network", unauthenticated(nil), Accept},
		"a condition, all but a domain":   {"reject from=regexp:ours", unauthenticated(nil), Accept},
		"a condition, another domain":     {"reject from=regexp:ours", unauthenticated(func(f *Facts) { f.From.Domain = "example.com" }), Reject},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "access")
			assert.Must(t, os.WriteFile(path, []byte(tt.rules+"\n"), 0o644))
			r := assert.Get(Open(Options{Path: path, Dir: dir, Log: slog.New(slog.DiscardHandler)}))(t)
			defer r.Close()
			assert.Equal(t, decide(t, r, tt.facts).Action, tt.want, "action")
		})
	}
}

// A rule's code is about what is refused: while the name server or a next hop does not answer, the
// client tries again (S21).
func TestCodeOfARuleIsNotAboutTrouble(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access")
	assert.Must(t, os.WriteFile(path, []byte("reject_unknown_sender_domain to=dns@example.org : \"550 5.1.8 no\"\nreject_unverified_sender reject_code=550 tempfail_action=defer to=hop@example.org : \"550 5.1.8 no\"\n"), 0o644))
	r := assert.Get(Open(Options{
		Path: path, Dir: dir, DNS: dnsq.New(dnsq.Config{Server: "127.0.0.1:1", Timeout: time.Second}),
		Address: func(context.Context, *Facts, address.Mailbox, bool) (Deliverability, error) {
			return Deliverability{Text: "the next hop is away"}, nil
		},
	}))(t)
	defer r.Close()
	for _, to := range []string{"dns", "hop"} {
		d := decide(t, r, unauthenticated(func(f *Facts) { f.To.Local = to }))
		if code, st, _ := d.Reply(); d.Action != Defer || code != 450 || st.Class != 4 {
			t.Errorf("%s: got %v %d %v, want a deferral", to, d.Action, code, st)
		}
	}
	for _, wrong := range []string{"reject_unverified_sender defer_code=550", "reject_unverified_sender reject_code=250", "reject_unverified_sender tempfail_action=permit", "reject_unlisted_sender reject_code=550"} {
		assert.Must(t, os.WriteFile(path, []byte(wrong+"\n"), 0o644))
		if _, err := Open(Options{Path: path, Dir: dir, Address: r.sources.o.Address}); err == nil {
			t.Errorf("%s: got no error", wrong)
		}
	}
}

// access(5): keys without the tag, behind the whole address and before its domain; parts of an IPv6
// address; networks of one family are not compared with addresses of the other; DEFER_IF_REJECT
// counts under warn_if_reject.
func TestKeysOfAddressesAreThoseOfPostfix(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"user": "jane@tags.example REJECT\njane+ok@tags.example OK\ntags.example DEFER\n", "local": "jane@ REJECT\njane+ok@ OK\n",
		"six": "2001:db8:1 REJECT\n2001:db8 OK\n", "not": "!192.0.2.0/24 REJECT\n", "later": "jane@ DEFER_IF_REJECT later\n",
	} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	from := func(local string) *Facts {
		return unauthenticated(func(f *Facts) { f.From = address.Mailbox{Local: local, Domain: "tags.example"} })
	}
	client := func(a string) *Facts {
		return unauthenticated(func(f *Facts) { f.Client = netip.MustParseAddr(a) })
	}
	for name, tt := range map[string]struct {
		rules, subaddress string
		facts             *Facts
		want              Action
	}{
		"a tag":                      {"check_sender_access file:user", "+", from("jane+news"), Reject},
		"a tag of its own":           {"check_sender_access file:user", "+", from("jane+ok"), Accept},
		"another delimiter":          {"check_sender_access file:user", "-", from("jane+news"), Defer},
		"one of two delimiters":      {"check_sender_access file:user", "-+", from("jane-x+y"), Reject},
		"no tags":                    {"check_sender_access file:user", "", from("jane+news"), Defer},
		"a tag and no user":          {"check_sender_access file:user", "+", from("+jane"), Defer},
		"a tag, any domain":          {"check_sender_access file:local", "+", from("jane+news"), Reject},
		"a tag of its own, anywhere": {"check_sender_access file:local", "+", from("jane+ok"), Accept},
		"a longer IPv6 prefix":       {"check_client_access file:six", "", client("2001:db8:1::7"), Reject},
		"a shorter IPv6 prefix":      {"check_client_access file:six", "", client("2001:db8::1:7"), Accept},
		"outside of a network":       {"check_client_access file:not", "", client("198.51.100.7"), Reject},
		"of another family":          {"check_client_access file:not", "", client("2001:db8::7"), Accept},
		"a warning that defers":      {"warn_if_reject check_sender_access file:later\nreject", "+", from("jane+x"), Defer},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "access")
			assert.Must(t, os.WriteFile(path, []byte(tt.rules+"\n"), 0o644))
			r := assert.Get(Open(Options{Path: path, Dir: dir, Subaddress: tt.subaddress, Log: slog.New(slog.DiscardHandler)}))(t)
			defer r.Close()
			assert.Equal(t, decide(t, r, tt.facts).Action, tt.want, "action")
		})
	}
}
