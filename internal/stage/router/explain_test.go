package router

import (
	"context"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
)

// explainer tells what o's router would do, with tables of its own.
func (o *office) explainer(change ...func(*Config)) *route.Explainer {
	o.t.Helper()
	c := o.config()
	for _, f := range change {
		f(&c)
	}
	x, err := route.NewExplainer(c.Config, c.PostOffice, c.HashLevels)
	assert.Must(o.t, err)
	o.t.Cleanup(func() { x.Close() })
	return x
}

// explain explains the message in a file of the postoffice.
func (o *office) explain(x *route.Explainer, name string) *route.Explanation {
	o.t.Helper()
	dir, err := route.OpenMessages(o.dir)
	assert.Must(o.t, err)
	defer dir.Close()
	return x.ExplainFile(context.Background(), dir, name)
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
