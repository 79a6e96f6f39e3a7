package router

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
)

// recipes returns the programs of docs/router.star.md, by their numbers.
func recipes(t *testing.T) map[int]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/router.star.md")
	assert.Must(t, err)
	found := map[int]string{}
	for _, m := range regexp.MustCompile("(?s)\n### (\\d+)\\. [^#]*?\n```python\n(.*?)\n```\n").FindAllStringSubmatch(string(page), -1) {
		n := assert.Get(strconv.Atoi(m[1]))(t)
		found[n] = m[2] + "\n"
	}
	return found
}

// Each recipe of the page does what the page says, on mail that it is about and on other
// mail.
func TestRecipesOfThePage(t *testing.T) {
	t.Parallel()
	const branch = "by the hour" // of the message's acceptance
	byHour := func(at time.Time) string {
		if hour := at.Local().Hour(); hour < 6 || hour >= 22 {
			return "smtp backup.branch.example x@branch.example"
		}
		return "smtp branch.example x@branch.example"
	}
	outside := func(from string, rest string, to ...string) string {
		return "external\nrcvdfrom client.example ([192.0.2.7])\nfrom <" + from + ">\nto <" + strings.Join(to, ">\nto <") + ">\nenv-end\n" + rest + "From: q@x\n\n" + "body\n"
	}
	inside := func(rest string, to ...string) string {
		return strings.Replace(strings.Replace(outside("bond@example.org", rest, to...), "external\n", "", 1), "rcvdfrom client.example ([192.0.2.7])\n", "", 1)
	}
	large := strings.Repeat("0123456789\n", 10*1024)
	tests := map[int][]struct {
		mail   string
		want   []string // recipients in the specification
		header string   // a part of its header; with ! in front it must not be there
		frozen string   // the cause
	}{
		1: {{mail: outside("q@x.example", "", "x@branch.example", "y@far.example"), want: []string{branch, "smtp far.example y@far.example"}}},
		2: {
			{mail: outside("s@SHOP.example", "", "x@far.example", "bond@example.org"), want: []string{"local bond@example.org bond@example.org", "smtp relay.shop.example x@far.example"}},
			{mail: outside("s@other.example", "", "x@far.example"), want: []string{"smtp far.example x@far.example"}},
		},
		3: {{mail: outside("q@x.example", "", "x@gmail.example", "x@eu.outlook.example", "x@notgmail.example"),
			want: []string{"bulk gmail.example x@gmail.example", "bulk eu.outlook.example x@eu.outlook.example", "smtp notgmail.example x@notgmail.example"}}},
		5: {
			{mail: outside("q@x.example", "", "x@far.example"), want: []string{"smtp far.example x@far.example", "smtp archive.example archive@archive.example"}, header: "X-Archived: yes\n"},
			{mail: outside("", "", "x@far.example"), want: []string{"smtp far.example x@far.example"}, header: "!X-Archived"},
		},
		6: {{mail: outside("q@x.example", "", "Bond@old.example", "m@old.example", "x@far.example"),
			want: []string{"local bond@example.org bond@example.org", "error 5.1.6:old.example+20is+20no+20more:+20write+20to+20m@example.org m@old.example", "smtp far.example x@far.example"}}},
		7: {
			{mail: outside("q@x.example", "", "staff@example.org"), want: []string{"error 5.7.1:this+20list+20takes+20mail+20from+20inside+20only staff@example.org"}},
			{mail: inside("", "staff@example.org"), want: []string{"local bond@mx.example.org bond@mx.example.org"}},
		},
		8: {
			{mail: outside("q@x.example", "", "x@satellite.example"), want: []string{"smtp satellite.example x@satellite.example"}},
			{mail: outside("q@x.example", "", "x@satellite.example", "x@far.example") + large,
				want: []string{"error 5.3.4:mail+20over+20the+20satellite+20is+20limited+20to+20100+20kB x@satellite.example", "smtp far.example x@far.example"}},
		},
		9: {
			{mail: inside("X-Internal-A: 1\n", "x@far.example"), want: []string{"smtp far.example x@far.example"}, header: " (1 recipients)\n"},
			{mail: inside("X-Internal-A: 1\n", "x@far.example"), want: []string{"smtp far.example x@far.example"}, header: "!X-Internal"},
			{mail: outside("q@x.example", "X-Internal-A: 1\n", "x@far.example"), want: []string{"smtp far.example x@far.example"}, header: "X-Internal-A: 1\n"},
		},
		10: {
			{mail: outside("q@x.example", "Subject: your Invoice\n", "x@far.example"), frozen: "quarantine"},
			{mail: outside("q@x.example", "Subject: hello\n", "x@far.example"), want: []string{"smtp far.example x@far.example"}},
			{mail: inside("Subject: your invoice\n", "x@far.example"), want: []string{"smtp far.example x@far.example"}},
		},
	}
	found := recipes(t)
	if len(found) != 10 {
		t.Fatalf("the page has %d recipes", len(found))
	}
	for n, list := range tests {
		for i, tt := range list {
			t.Run(fmt.Sprintf("%d, mail %d", n, i), func(t *testing.T) {
				t.Parallel()
				o := newOffice(t, map[string]string{
					"router.star": found[n], "aliases": "staff: bond\n", "senders": "# by domain\nshop.example  smtp!relay.shop.example\n",
				})
				if err := route.CheckTables(o.config().Config); err != nil {
					t.Errorf("check: %v", err)
				}
				a := o.submit(tt.mail)
				done := o.route()
				if tt.frozen != "" {
					if got := o.names(postoffice.Freezer); len(got) != 1 || got[0] != fmt.Sprintf("%d.%s", a.ID.Ino, tt.frozen) {
						t.Errorf("freezer/ holds %q\n%s", got, &o.log)
					}
					return
				}
				if len(done) != 1 {
					t.Fatalf("it is not routed:\n%s", &o.log)
				}
				got := done[0].recipients()
				if i := slices.Index(tt.want, branch); i >= 0 {
					tt.want[i] = byHour(a.ID.Time())
				}
				slices.Sort(got)
				slices.Sort(tt.want)
				assert.Same(t, got, tt.want)
				part, not := strings.CutPrefix(tt.header, "!")
				if strings.Contains(done[0].header(), part) == not {
					t.Errorf("want %q in\n%s", tt.header, done[0].header())
				}
			})
		}
	}
}

// Recipe 4: the mail that passes the limit is held, and goes on when an operator says so;
// routed again it does not count again.
func TestRecipeThatHoldsAFlood(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": strings.Replace(recipes(t)[4], `m.login != "root"`, "True", 1)})
	var to strings.Builder
	for i := range 80 {
		fmt.Fprintf(&to, "to <u%d@far.example>\n", i)
	}
	for range 2 {
		o.submit("from <bond@example.org>\n" + to.String() + "env-end\nFrom: q@x\n\n")
		o.route()
	}
	o.expect("160 recipients", map[string]int{postoffice.Queue: 2, postoffice.Transport: 2})
	a := o.submit("from <bond@example.org>\n" + to.String() + "env-end\nFrom: q@x\n\n")
	o.route()
	o.expect("240 recipients", map[string]int{postoffice.Queue: 2, postoffice.Transport: 2, postoffice.Freezer: 1})
	for range 3 {
		assert.Get(o.po.Aside.RecallTo(postoffice.Router, postoffice.Freezer, o.names(postoffice.Freezer)[0], a.ID))(t)
		o.route()
	}
	o.submit("external\nfrom <q@x.example>\n" + to.String() + "env-end\nFrom: q@x\n\n")
	o.route()
	o.expect("others' mail", map[string]int{postoffice.Queue: 3, postoffice.Transport: 3, postoffice.Freezer: 1})
}
