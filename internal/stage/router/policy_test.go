package router

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
)

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
	assert.Must(t, o.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "root", What: postoffice.WasThawed}))
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
