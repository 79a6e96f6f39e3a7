package router

import (
	"zmailer/internal/stage/router/route"

	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// groups are a specification's groups: sender, recipients, and what stands in the header
// between Received and the message's own fields.
func groups(m routed) []string {
	var list []string
	for _, g := range m.spec.Groups {
		s := g.Sender.Address + ":"
		for _, r := range g.Recipients {
			s += " " + r.Channel + "!" + r.Host + "!" + r.Address
			if r.Notary != "" {
				s += "[" + r.Notary + "]"
			}
		}
		header := string(m.file[g.HeaderOffset:g.HeaderEnd])
		header = header[strings.Index(header, "; ")+1:]
		header = header[strings.IndexByte(header, '\n')+1:]
		header, _, _ = strings.Cut(header, "From: q@")
		list = append(list, s+" | "+strings.TrimSpace(strings.ReplaceAll(header, "\n", "; ")))
	}
	return list
}

// Each decision and edit of router.star is in the specification; what it leaves open the
// tables decide.
func TestPolicyDecidesBeforeTheTables(t *testing.T) {
	t.Parallel()
	const aliases = "team: bond, moneypenny\n"
	local := func(user string) string { return "local!" + user + "@example.org!" + user + "@example.org" }
	tests := map[string]struct {
		star string
		to   []string
		want []string
	}{
		"nothing":                    {"def recipient(m, r):\n    return None\n", []string{"bond@example.org"}, []string{"q@example.net: " + local("bond") + " |"}},
		"route with a host":          {"def recipient(m, r):\n    return route(\"smtp!relay.example\")\n", []string{"x@far.example", "bond@example.org"}, []string{"q@example.net: smtp!relay.example!x@far.example smtp!relay.example!bond@example.org |"}},
		"route to the domain itself": {"def recipient(m, r):\n    return route(\"slow!\")\n", []string{"x@Far.Example"}, []string{"q@example.net: slow!far.example!x@Far.Example |"}},
		"reject":                     {"def recipient(m, r):\n    return reject(\"5.7.1\", \"not from you\") if r.domain == \"far.example\" else None\n", []string{"x@far.example", "x@b.example"}, []string{"q@example.net: error!5.7.1:not+20from+20you!x@far.example smtp!b.example!x@b.example |"}},
		"drop":                       {"def recipient(m, r):\n    return drop()\n", []string{"x@far.example"}, []string{"q@example.net: bitbucket!-!x@far.example |"}},
		"redirect, resolved by the tables": {"def recipient(m, r):\n    return redirect(\"team\")\n", []string{"old@far.example"},
			[]string{"q@example.net: local!bond@mx.example.org!bond@mx.example.org[ORCPT=rfc822;old@far.example] local!moneypenny@mx.example.org!moneypenny@mx.example.org[ORCPT=rfc822;old@far.example] |"}},
		"redirect keeps the sender's address": {"def recipient(m, r):\n    return redirect(\"new@b.example\", \"new@c.example\")\n", []string{"old@far.example"},
			[]string{"q@example.net: smtp!b.example!new@b.example[ORCPT=rfc822;old@far.example] smtp!c.example!new@c.example[ORCPT=rfc822;old@far.example] | Delivered-To: old@far.example;"}},
		"of the whole message": {"def message(m):\n    return reject(\"5.7.1\", \"no\")\ndef recipient(m, r):\n    fail(\"is not asked\")\n", []string{"x@far.example", "bond@example.org"},
			[]string{"q@example.net: error!5.7.1:no!x@far.example error!5.7.1:no!bond@example.org |"}},
		"accept ends the questions": {"def message(m):\n    return accept()\ndef recipient(m, r):\n    fail(\"is not asked\")\n", []string{"x@far.example"}, []string{"q@example.net: smtp!far.example!x@far.example |"}},
		"a header for all": {"def message(m):\n    return add_header(\"X-A\", \"1\")\n", []string{"x@far.example", "bond@example.org"},
			[]string{"q@example.net: " + local("bond") + " smtp!far.example!x@far.example | X-A: 1;"}},
		"a header for one parts it": {"def message(m):\n    return add_header(\"X-A\", \"1\")\ndef recipient(m, r):\n    return add_header(\"X-B\", \"2\") if r.domain == \"b.example\" else None\n",
			[]string{"x@b.example", "x@c.example", "y@b.example"},
			[]string{"q@example.net: smtp!c.example!x@c.example | X-A: 1;", "q@example.net: smtp!b.example!x@b.example smtp!b.example!y@b.example | X-A: 1; X-B: 2;"}},
		"one place, two variants": {"def recipient(m, r):\n    return [redirect(\"z@z.example\"), add_header(\"X-For\", r.domain)]\n", []string{"x@b.example", "x@c.example", "y@c.example"},
			[]string{"q@example.net: smtp!z.example!z@z.example[ORCPT=rfc822;x@b.example] | Delivered-To: x@b.example; X-For: b.example;", "q@example.net: smtp!z.example!z@z.example[ORCPT=rfc822;x@c.example] | Delivered-To: x@c.example; X-For: c.example;"}},
		"a field is removed": {"def message(m):\n    return [remove_header(\"X-Secret\"), add_header(\"X-Was\", \", \".join(m.headers(\"x-secret\")))]\n", []string{"x@far.example"},
			[]string{"q@example.net: smtp!far.example!x@far.example | X-Was: 1, 2;"}},
		"split": {"def recipient(m, r):\n    return split(r.local)\n", []string{"a@far.example", "b@far.example", "a@b.example"},
			[]string{"q@example.net: smtp!b.example!a@b.example smtp!far.example!a@far.example |", "q@example.net: smtp!far.example!b@far.example |"}},
		"another sender": {"def message(m):\n    return set_sender(\"shop@example.com\")\ndef recipient(m, r):\n    return set_sender(\"vip@example.com\") if r.local == \"b\" else None\n",
			[]string{"a@far.example", "b@far.example"},
			[]string{"shop@example.com: smtp!far.example!a@far.example |", "vip@example.com: smtp!far.example!b@far.example |"}},
		"copies of all": {"def message(m):\n    return copy(\"bond@example.org\", \"a@arch.example\")\n", []string{"bond@example.org", "x@far.example"},
			[]string{"q@example.net: " + local("bond") + " smtp!arch.example!a@arch.example[NOTIFY=NEVER] smtp!far.example!x@far.example |"}},
		"a copy of one's": {"def recipient(m, r):\n    return [copy(\"a@arch.example\"), add_header(\"X-For\", r.address)] if not r.is_local else None\n", []string{"bond@example.org", "x@far.example"},
			[]string{"q@example.net: " + local("bond") + " |", "q@example.net: smtp!arch.example!a@arch.example[NOTIFY=NEVER] smtp!far.example!x@far.example | X-For: x@far.example;"}},
		"dropped, but for a copy":                    {"def message(m):\n    return [drop(), copy(\"a@arch.example\")]\n", []string{"x@far.example"}, []string{"q@example.net: bitbucket!-!x@far.example smtp!arch.example!a@arch.example[NOTIFY=NEVER] |"}},
		"what the tables say is known to the policy": {"def recipient(m, r):\n    return route(\"smtp!\" + resolve(r.address)[0].channel + \".example\") if is_local(r.domain) else None\n", []string{"bond@example.org"}, []string{"q@example.net: smtp!local.example!bond@example.org |"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"router.star": tt.star, "aliases": aliases})
			m := o.one("external\nfrom <q@example.net>\nto <" + strings.Join(tt.to, ">\nto <") + ">\nenv-end\nX-Secret: 1\nX-Secret: 2\nFrom: q@example.net\n\nbody\n")
			for i := range tt.want {
				if !strings.Contains(tt.star, "secret") {
					tt.want[i] += " X-Secret: 1; X-Secret: 2;"
				}
			}
			if diff := cmp.Diff(tt.want, groups(m)); diff != "" {
				t.Errorf("want -, got +\n%s", diff)
			}
			if n := strings.Count(tt.star, "return None"); n == 0 {
				if o.log.Count("msg=policy", "id=", "decision=", "rule=router.star:") == 0 {
					t.Errorf("no decision stands in the log:\n%s", &o.log)
				}
			}
		})
	}
}

// Reports of what has another sender go to that sender: it stands in an e line.
func TestPolicysSenderHearsOfItsMail(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def recipient(m, r):\n    return set_sender(\"vip@example.com\") if r.local == \"b\" else None\n"})
	m := o.one("external\nfrom <q@example.net>\nto <a@far.example>\nto <b@far.example>\nenv-end\nFrom: q@example.net\n\n")
	if got, want := m.spec.ErrorTo, []string{"q@example.net", "vip@example.com"}; !slices.Equal(got, want) {
		t.Errorf("e lines: got %q, want %q", got, want)
	}
	// A report keeps the null sender, RFC 5321 §4.5.5.
	m = o.one("external\nfrom <>\nto <b@far.example>\nenv-end\nFrom: q@example.net\n\n")
	if got := m.spec.Groups[0].Sender.Address; got != "<>" || len(m.spec.ErrorTo) > 0 {
		t.Errorf("of a report: sender %q, e lines %q", got, m.spec.ErrorTo)
	}
}

// Variants hold also where recipients are written as they are found.
func TestManyRecipientsInVariants(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def recipient(m, r):\n    return add_header(\"X-Odd\", \"yes\") if int(r.local[1:]) % 2 else None\n"})
	const n = maxSorted + 50
	var b strings.Builder
	b.WriteString("external\nfrom <q@example.net>\n")
	for i := range n {
		b.WriteString("to <u" + string(rune('0'+i/1000)) + string(rune('0'+i/100%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10)) + "@far.example>\n")
	}
	m := o.one(b.String() + "env-end\nFrom: q@example.net\n\n")
	got := 0
	for _, g := range m.spec.Groups {
		odd := strings.Contains(string(m.file[g.HeaderOffset:g.HeaderEnd]), "X-Odd: yes\n")
		for _, r := range g.Recipients {
			got++
			if is := (r.Address[4]-'0')%2 == 1; is != odd {
				t.Fatalf("%s: the header is that of the others", r.Address)
			}
		}
	}
	if got != n || !workspec.Complete(m.file) {
		t.Errorf("got %d recipients, want %d", got, n)
	}
}

// M13, M10: what is put aside, where, and why; and how it comes back.
func TestPolicyPutsMessagesAside(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		star, dir, name string
		reason          string // in the text beside it
	}{
		"message freezes":      {"def message(m):\n    return freeze(\"flood\", \"too much\")\n", postoffice.Freezer, ".flood", "flood: router.star:2: too much"},
		"recipient freezes":    {"def recipient(m, r):\n    return freeze(\"odd\") if r.local == \"b\" else None\n", postoffice.Freezer, ".odd", "odd: router.star:2: odd"},
		"message defers":       {"def message(m):\n    return defer(\"not now\")\n", postoffice.Deferred, ".policy", "policy: router.star:2: not now"},
		"recipient defers":     {"def recipient(m, r):\n    return defer(\"not now\") if r.local == \"b\" else None\n", postoffice.Deferred, ".policy", "policy: router.star:2: not now"},
		"an error":             {"def f(x):\n    return 1 // x\ndef message(m):\n    f(0)\n", postoffice.Deferred, ".policy", "router.star:2:14: floored division by zero (router.star:4:6 in message, router.star:2:14 in f)"},
		"no decision":          {"def message(m):\n    x = 7\n    return x\n", postoffice.Deferred, ".policy", "router.star:1:1: message returned a value of type int"},
		"two decisions":        {"def message(m):\n    return [drop(), freeze(\"x\")]\n", postoffice.Deferred, ".policy", "two decisions: drop in line 2 and freeze in line 2"},
		"an endless loop":      {"def message(m):\n    for i in range(1000000000):\n        pass\n", postoffice.Deferred, ".policy", "more than 1000000 steps"},
		"a channel of ours":    {"def message(m):\n    return route(\"pipe!x\")\n", postoffice.Deferred, ".policy", "channel pipe is not for programs"},
		"recursion":            {"def f(x):\n    return f(x)\ndef message(m):\n    f(1)\n", postoffice.Deferred, ".policy", "called recursively"},
		"a value that doubles": {"def message(m):\n    x = \"x\"\n    for i in range(60):\n        x += x\n", postoffice.Deferred, ".policy", "MB of memory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"router.star": tt.star})
			a := o.submit("external\nfrom <q@example.net>\nto <a@far.example>\nto <b@far.example>\nenv-end\nFrom: q@example.net\n\nbody\n")
			e := o.explain(o.explainer(), a.Name)
			o.route()
			o.expect(name, map[string]int{tt.dir: 1})
			if got := o.names(tt.dir); len(got) != 1 || !strings.HasSuffix(got[0], tt.name) {
				t.Fatalf("%s holds %q", tt.dir, got)
			}
			list, err := o.po.Aside.Reasons(a.ID)
			if err != nil || len(list) != 1 || !strings.Contains(list[0].Text, tt.reason) {
				t.Errorf("the text beside it: %v, %v", list, err)
			}
			want := map[string]string{postoffice.Freezer: route.VerdictFrozen, postoffice.Deferred: route.VerdictDeferred}[tt.dir]
			if _, reason, _ := strings.Cut(list[0].Text, ": "); e.Verdict != want || e.Why != tt.name[1:] || e.Reason != reason {
				t.Errorf("explained as %s (%s): %s", e.Verdict, e.Why, e.Reason)
			}
		})
	}
}

// A report of this mail system is not kept from its reader, whatever the program says of
// other mail; what an operator has thawed is not frozen again.
func TestPolicyHasBounds(t *testing.T) {
	t.Parallel()
	const own = "errormsg\nchannel error\nto <bond@example.org>\nenv-end\nFrom: q@example.net\n\n"
	for _, call := range []string{`drop()`, `freeze("x")`, `defer("x")`, `reject("5.7.1", "x")`} {
		for _, hook := range []string{"message(m)", "recipient(m, r)"} {
			o := newOffice(t, map[string]string{"router.star": "def " + hook + ":\n    return " + call + "\n"})
			m := o.one(own)
			if got := m.recipients(); len(got) != 1 || got[0] != "local bond@example.org bond@example.org" {
				t.Errorf("%s: %s: got %q", hook, call, got)
			}
			o.logged(1, "policy-passed-over", "rule=router.star:2")
		}
	}
	o := newOffice(t, map[string]string{"router.star": "def message(m):\n    return freeze(\"x\")\ndef recipient(m, r):\n    return add_header(\"X-A\", \"1\")\n"})
	a := o.submit(plain("x@far.example"))
	o.route()
	o.expect("frozen", map[string]int{postoffice.Freezer: 1})
	if err := o.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "root", What: postoffice.WasThawed}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.po.Aside.RecallTo(postoffice.Router, postoffice.Freezer, o.names(postoffice.Freezer)[0], a.ID); err != nil {
		t.Fatal(err)
	}
	x := o.explainer()
	list := o.names(postoffice.Router)
	if e := o.explain(x, postoffice.Router+"/"+list[0]); e.Verdict != route.VerdictRouted {
		t.Errorf("thawed, it is explained as %s: %s", e.Verdict, e.Reason)
	}
	if m := o.route(); len(m) != 1 || !strings.Contains(m[0].header(), "X-A: 1\n") {
		t.Errorf("thawed, it is not routed:\n%s", &o.log)
	}
}

// Asking what would be neither counts nor logs.
func TestPolicyInPlayCountsNothing(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def message(m):\n    log(\"asked\")\n    return freeze(\"flood\") if rate(m.sender, 1, \"1h\") else None\n"})
	a := o.submit(plain("x@far.example"))
	x := o.explainer()
	for range 3 {
		if e := o.explain(x, a.Name); e.Verdict != route.VerdictRouted {
			t.Fatalf("got %s: %s", e.Verdict, e.Reason)
		}
	}
	o.logged(0, "policy-said")
	o.route()
	o.submit(plain("y@far.example"))
	o.route()
	o.expect("of two one is too many", map[string]int{postoffice.Queue: 1, postoffice.Transport: 1, postoffice.Freezer: 1})
	o.logged(2, "policy-said", "text=asked")
}
