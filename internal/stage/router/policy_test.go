package router

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
)

// explainer returns an Explainer with o's configuration and tables of its own.
func (o *office) explainer() *route.Explainer {
	o.t.Helper()
	c := o.config()
	x := assert.Get(route.NewExplainer(c.Config, c.PostOffice, c.HashLevels))(o.t)
	o.t.Cleanup(func() { x.Close() })
	return x
}

// explain explains the message in a file of the postoffice.
func (o *office) explain(x *route.Explainer, name string) *route.Explanation {
	o.t.Helper()
	dir := assert.Get(route.OpenMessages(o.dir))(o.t)
	defer dir.Close()
	return x.ExplainFile(context.Background(), dir, name)
}

// M13, M10: what is put aside, where, and why. Package route has all decisions.
func TestPolicyPutsMessagesAside(t *testing.T) {
	t.Parallel()
	for dir, tt := range map[string]struct{ star, name, reason string }{
		postoffice.Freezer:  {"def message(m):\n    return freeze(\"flood\", \"too much\")\n", ".flood", "flood: router.star:2: too much"},
		postoffice.Deferred: {"def recipient(m, r):\n    return defer(\"not now\") if r.local == \"b\" else None\n", ".policy", "policy: router.star:2: not now"},
	} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"router.star": tt.star})
			a := o.submit("external\nfrom <q@example.net>\nto <a@far.example>\nto <b@far.example>\nenv-end\nFrom: q@example.net\n\nbody\n")
			o.route()
			o.expect("aside", map[string]int{dir: 1})
			assert.Equal(t, o.names(dir)[0], fmt.Sprint(a.ID.Ino)+tt.name, "name")
			list := assert.Get(o.po.Aside.Reasons(a.ID))(t)
			assert.Equal(t, list[0].Text, tt.reason, "reason")
		})
	}
}

// What an operator has thawed is not frozen again.
func TestPolicyLeavesThawedMessagesAlone(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def message(m):\n    return freeze(\"x\")\ndef recipient(m, r):\n    return add_header(\"X-A\", \"1\")\n"})
	a := o.submit(plain("x@far.example"))
	o.route()
	o.expect("frozen", map[string]int{postoffice.Freezer: 1})
	assert.Must(t, o.po.Aside.Explain(postoffice.Freezer, postoffice.Reason{ID: a.ID, Time: time.Now(), Who: "root", What: postoffice.WasThawed}))
	_, err := o.po.Aside.RecallTo(postoffice.Router, postoffice.Freezer, o.names(postoffice.Freezer)[0], a.ID)
	assert.Must(t, err)
	assert.Equal(t, o.explain(o.explainer(), postoffice.Router+"/"+o.names(postoffice.Router)[0]).Verdict, route.VerdictRouted, "thawed, verdict")
	if m := o.route(); len(m) != 1 || !strings.Contains(m[0].header(), "X-A: 1\n") {
		t.Errorf("thawed, it is not routed:\n%s", &o.log)
	}
}

// snapshot is each name below the postoffice with its mode, time and size.
func (o *office) snapshot() string {
	o.t.Helper()
	var b strings.Builder
	assert.Must(o.t, filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		fmt.Fprintln(&b, path, info.Mode(), info.ModTime().UnixNano(), info.Size())
		return err
	}))
	return b.String()
}

// Explaining a message counts, logs and changes nothing.
func TestExplanationHasNoEffect(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def message(m):\n    log(\"asked\")\n    return freeze(\"flood\") if rate(m.sender, 1, \"1h\") else None\n"})
	a := o.submit(plain("x@far.example"))
	x, before := o.explainer(), o.snapshot()
	for range 3 {
		assert.Equal(t, o.explain(x, a.Name).Verdict, route.VerdictRouted, "verdict")
	}
	assert.Equal(t, o.snapshot(), before, "postoffice")
	o.logged(0, "policy-said")
	o.route()
	o.submit(plain("y@far.example"))
	o.route()
	o.expect("of two one is too many", map[string]int{postoffice.Queue: 1, postoffice.Transport: 1, postoffice.Freezer: 1})
	o.logged(2, "policy-said", "text=asked")
}
