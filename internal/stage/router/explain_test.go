package router

import (
	"zmailer/internal/stage/router/route"

	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/postoffice"
)

// explainer tells what o's router would do, with tables of its own.
func (o *office) explainer(change ...func(*Config)) *route.Explainer {
	o.t.Helper()
	c := o.config()
	for _, f := range change {
		f(&c)
	}
	x, err := route.NewExplainer(c.Config, c.PostOffice, c.HashLevels)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { x.Close() })
	return x
}

// explain explains the message in a file of the postoffice.
func (o *office) explain(x *route.Explainer, name string) *route.Explanation {
	o.t.Helper()
	dir, err := route.OpenMessages(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	defer dir.Close()
	return x.ExplainFile(context.Background(), dir, name)
}

// everything is each name below some directories, with mode, time and bytes.
func everything(t *testing.T, dirs ...string) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			fmt.Fprintln(&b, path, info.Mode(), info.ModTime().UnixNano())
			if info.Mode().IsRegular() {
				text, err := os.ReadFile(path)
				fmt.Fprintf(&b, "%q\n", text)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// targetsOf are the targets of an explanation, as routed.recipients has those of a
// specification.
func targetsOf(e *route.Explanation) []string {
	var list []string
	for _, r := range e.Recipients {
		for _, t := range r.Targets {
			list = append(list, t.Channel+" "+t.Host+" "+t.User)
		}
	}
	slices.Sort(list)
	return list
}

const explainedAliases = `sales: bond, moneypenny, all@far.example
one: two
two: three
three: one
self: self, bond
copy: \bond, other@far.example
program: |"/bin/cat x"
nothing: /dev/null
`

// What is explained of a message is what the router then does with it, whatever it is:
// its own engine is asked. Asking leaves every byte and time of the postoffice as it was.
func TestExplanationIsWhatTheRouterDoes(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"remote":                     "from <a@b.example>\nto <x@far.example>\n",
		"several, of one twice":      "from <a@b.example>\nto <x@far.example>\nto <y@far.example>\nto <X@FAR.example>\nto <x@FAR.example>\n",
		"an alias":                   "from <a@b.example>\nto <sales@example.org>\n",
		"an alias with success":      "from <a@b.example>\ntodsn NOTIFY=SUCCESS\nto <sales@example.org>\n",
		"aliases in a circle":        "from <a@b.example>\nto <one@example.org>\nto <self@example.org>\n",
		"a copy":                     "from <a@b.example>\nto <copy@example.org>\n",
		"a program, and nothing":     "from <a@b.example>\nto <program@example.org>\nto <nothing>\n",
		"nobody there":               "from <a@b.example>\nto <nosuch@example.org>\n",
		"a source route":             "from <a@b.example>\nto <@relay.example,@other.example:x@far.example>\n",
		"a quoted local part":        "from <a@b.example>\nto <\"x y@z\"@far.example>\n",
		"an IDNA domain":             "from <a@b.example>\nto <zoë@bücher.example>\nto <x@xn--bcher-kva.example>\n",
		"a literal":                  "from <a@b.example>\nto <x@[192.0.2.1]>\nto <x@[IPv6:2001:db8::1]>\n",
		"a report":                   "channel error\nto <x@far.example>\n",
		"no sender":                  "to <x@far.example>\n",
		"recipients of the header":   "from <a@b.example>\n",
		"an unknown keyword":         "from <a@b.example>\nnonsense\nto <x@far.example>\n",
		"what went round in circles": "from <a@b.example>\nto <x@far.example>\nenv-end\n" + strings.Repeat("Received: by x\n", maxReceived+1),
	}
	for name, head := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{
				"aliases": explainedAliases, "routes": "far.example smtp!relay.example\n.:ERROR smtp!reports.example\n",
			})
			a := o.submit(head + "env-end\nFrom: a@b.example\nTo: Bond <bond@example.org>, x@far.example, broken@@address\n\nbody\n")
			x := o.explainer()
			before := everything(t, o.dir, o.conf)
			e := o.explain(x, a.Name)
			again := o.explain(x, a.Name)
			if diff := cmp.Diff(before, everything(t, o.dir, o.conf)); diff != "" {
				t.Fatalf("the postoffice has changed:\n%s", diff)
			}
			if diff := cmp.Diff(targetsOf(e), targetsOf(again)); diff != "" {
				t.Errorf("asked again it is another:\n%s", diff)
			}
			if e.ID != a.ID.String() || e.File != a.Name {
				t.Errorf("got %s %s, want %s", e.ID, e.File, a.Name)
			}
			done := o.route()
			if len(done) != 1 {
				t.Fatalf("it is not handed over:\n%s", &o.log)
			}
			want := done[0].recipients()
			slices.Sort(want)
			if diff := cmp.Diff(want, targetsOf(e)); diff != "" {
				t.Errorf("routed -, explained +\n%s", diff)
			}
			sender := done[0].spec.Groups[0].Sender.Address
			if sender == "<>" {
				sender = ""
			}
			if e.Sender != sender {
				t.Errorf("sender: explained %q, routed %q", e.Sender, sender)
			}
		})
	}
}

// What the router does not route is explained with where it goes and why.
func TestExplanationOfWhatIsNotRouted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text, aliases string
		verdict, why  string
		reason        string // a part of it
		dir           string // where the router puts it
	}{
		"a broken envelope":   {"from <a@b.example>\nto <a b@@>\nenv-end\n\n", "", route.VerdictSetAside, "", "a b@@", postoffice.Postman},
		"nobody is named":     {"from <a@b.example>\nenv-end\nSubject: x\n\n", "", route.VerdictSetAside, "", "names a recipient", postoffice.Postman},
		"a list out of reach": {"from <a@b.example>\nto <x@far.example>\nto <list>\nto <bond>\nenv-end\n\n", "list: :include:/nonexistent/list\n", route.VerdictDeferred, "include", "/nonexistent/list", postoffice.Deferred},
		"nobody who is there": {"from <a@b.example>\nto <nosuch>\nenv-end\n\n", "", route.VerdictRejected, "", "", postoffice.Queue},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"aliases": tt.aliases})
			a := o.submit(tt.text)
			e := o.explain(o.explainer(), a.Name)
			if e.Verdict != tt.verdict || e.Why != tt.why || !strings.Contains(e.Reason, tt.reason) {
				t.Errorf("got %s (%s): %s", e.Verdict, e.Why, e.Reason)
			}
			o.route()
			if got := o.names(tt.dir); len(got) != 1 || !strings.HasSuffix(got[0], tt.why) {
				t.Errorf("the router has put into %s: %q", tt.dir, got)
			}
		})
	}
}

// A file that is not there has moved on; what is no file is not waited for.
func TestExplanationOfNoFile(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	x := o.explainer()
	if e := o.explain(x, "queue/123-4"); e.Verdict != route.VerdictGone {
		t.Errorf("got %+v", e)
	}
	if e := o.explain(x, "queue"); e.Verdict != route.VerdictUnreadable || !strings.Contains(e.Reason, "not a regular file") {
		t.Errorf("got %+v", e)
	}
}

// Whose privileged lines count is told, as the router sees the file's owner.
func TestExplanationTellsWhomTheRouterTrusts(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("giving files to other users needs root")
	}
	uid, login := somebody(t)
	o := newOffice(t, nil)
	a := o.submit("external\nfrom <boss@far.example>\nto <x@far.example>\nenv-end\n\n")
	x := o.explainer(func(c *Config) { c.OwnSenders = true })
	if e := o.explain(x, a.Name); !e.Trusted || !e.External || e.Sender != "boss@far.example" {
		t.Errorf("of root: got %+v", e)
	}
	o.asUser(a, uid)
	e := o.explain(x, a.Name)
	if e.Trusted || e.External || e.Sender != login+"@mx.example.org" || e.Claimed != "<boss@far.example>" || e.Login != login {
		t.Errorf("of %s: got %+v", login, e)
	}
	if e := o.explain(o.explainer(), a.Name); e.Trusted || e.External || e.Sender != "boss@far.example" || e.Claimed != "" {
		t.Errorf("of %s, by default: got %+v", login, e)
	}
	if o.log.Count("sender-replaced") != 0 {
		t.Errorf("asking stands in the log:\n%s", &o.log)
	}
	// Who asks as somebody else is not trusted for that.
	if err := os.Chown(o.dir, uid, -1); err != nil {
		t.Fatal(err)
	}
	if e := o.explain(o.explainer(), a.Name); !e.Trusted {
		t.Errorf("of the uid that the postoffice belongs to: got %+v", e)
	}
}
