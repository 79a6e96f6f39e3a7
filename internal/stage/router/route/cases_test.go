package route

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/workspec"
)

var update = flag.Bool("update", false, "rewrite what is expected in testdata/*.txt")

// rig is a postoffice in memory, and the tables of an engine.
type rig struct {
	testing.TB
	conf   string
	config Config
	disk   *cutfs.FS
	po     *postoffice.PostOffice
	owner  *postoffice.Owner
}

// newRig has the local users bond and moneypenny in example.org and mx.example.org.
func newRig(t testing.TB) *rig {
	r := &rig{TB: t, conf: t.TempDir(), disk: cutfs.New()}
	r.config = Config{Hostname: "mx.example.org", Trusted: []uint32{7}, Rules: rules.Config{Dir: r.conf, LocalUsers: filepath.Join(r.conf, "users"), Forward: r.conf + "/forward/%u"}}
	r.table("users", "bond\nmoneypenny\n")
	r.table("localnames", "example.org\n")
	assert.Must(t, os.Mkdir(r.conf+"/forward", 0o755))
	assert.Must(t, postoffice.Init(r.disk))
	var err error
	r.po, err = postoffice.Open(postoffice.Config{FS: r.disk})
	assert.Must(t, err)
	r.owner, err = r.po.Owners.Take("router")
	assert.Must(t, err)
	return r
}

func (r *rig) table(name, text string) {
	r.Helper()
	path := filepath.Join(r.conf, name)
	if text == "" {
		assert.Must(r, os.Remove(path))
		return
	}
	settled := time.Now().Add(-time.Hour)
	assert.Must(r, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, settled, settled)))
}

// engine reads the tables. root and daemon have the same uids on all systems.
func (r *rig) engine() *Engine {
	r.Helper()
	en := assert.Get(New(r.po, r.config))(r)
	r.Cleanup(func() { en.Close() })
	for uid, login := range map[uint32]string{en.self: "root", 0: "root", 1: "daemon", 7: "lp"} {
		en.logins.kept[uid] = keptLogin{login, time.Now().Add(time.Hour)}
	}
	return en
}

// claim submits a message file of a user's, and claims it.
func (r *rig) claim(uid uint32, text string) *postoffice.Claim {
	r.Helper()
	d, err := r.po.Submissions.NewDraft("test")
	assert.Must(r, err)
	_, err = io.WriteString(d, text)
	assert.Must(r, err)
	a := assert.Get(d.Commit())(r)
	c := assert.Get(r.po.Router.Claim(r.owner, filepath.Base(a.Name)))(r)
	c.Info.UID = uid
	return c
}

// routed is what the engine makes of a message.
type routed struct {
	Result
	spec *workspec.Spec
	file []byte // the specification
}

// route routes a claimed message; one that has a specification leaves the router.
func (r *rig) route(en *Engine, c *postoffice.Claim) routed {
	r.Helper()
	m := routed{Result: en.Route(context.Background(), table.NoWaiter{}, c, false)}
	if m.Err != nil || m.Aside != "" || m.Panic != nil {
		assert.Must(r, c.Release())
		return m
	}
	name := assert.Get(c.HandOver())(r)
	s, err := r.po.Queue.Open(name)
	assert.Must(r, err)
	m.file, err = s.Read()
	assert.Must(r, errors.Join(err, s.Close()))
	m.spec, err = workspec.Parse(m.file)
	assert.Must(r, err)
	if !workspec.Complete(m.file) {
		r.Errorf("not complete:\n%s", m.file)
	}
	return m
}

// one is route for a message of ours.
func (r *rig) one(text string) routed {
	r.Helper()
	m := r.route(r.engine(), r.claim(uint32(os.Geteuid()), text))
	if m.spec == nil {
		r.Fatalf("not routed: %+v", m.Result)
	}
	return m
}

// header returns the first header block.
func (m *routed) header() string {
	g := m.spec.Groups[0]
	return string(m.file[g.HeaderOffset:g.HeaderEnd])
}

// recipients are channel, host and user of each.
func (m *routed) recipients() []string {
	var list []string
	for _, g := range m.spec.Groups {
		for _, r := range g.Recipients {
			list = append(list, r.Channel+" "+r.Host+" "+r.Address)
		}
	}
	return list
}

// show returns a specification, or why there is none, without what differs in every run.
func (m *routed) show(conf string) string {
	trouble, deferred := rules.IsTrouble(m.Err)
	frozen, held := IsFrozen(m.Err)
	switch {
	case held:
		return "frozen " + frozen.Cause + ": " + frozen.Reason + "\n"
	case deferred:
		return "deferred " + trouble.Why + ": " + trouble.Err.Error() + "\n"
	case m.Err != nil || m.Aside != "":
		return strings.TrimSpace(fmt.Sprint("set aside: ", m.Aside, m.Err)) + "\n"
	}
	text := strings.ReplaceAll(string(m.file), conf, "DIR")
	for _, r := range []struct{ from, to string }{
		{`S[0-9]+A[0-9A-Za-z]+`, "SPOOLID"},
		{`[A-Z][a-z]{2}, [0-9]+ [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} [-+][0-9]{4}`, "DATE"},
		{`(?m)^Received: by mx.example.org( \(from userid ` + strconv.Itoa(os.Geteuid()) + `\))?\n\tid SPOOLID; DATE\n`, ""},
		{fmt.Sprintf(`(?m)^([sr] .*) %d$`, os.Geteuid()), "$1 UID"},
		{fmt.Sprintf(`(file|pipe)\.%d `, os.Geteuid()), "$1.UID "},
		{`(?m)^h [0-9]+ `, "h TIME "},
		{`(?m)^r +`, "r "},
		{`(?m)^(@ 0x.*|z .*|[io] .*|m)\n`, ""},
	} {
		text = regexp.MustCompile(r.from).ReplaceAllString(text, r.to)
	}
	return strings.TrimRight(text, "\n") + "\n"
}

// explained returns the targets that an Explainer names for a message file.
func (r *rig) explained(en *Engine, uid uint32, text string) (e *Explanation, targets []string) {
	r.Helper()
	c := r.claim(uid, text)
	x := &Explainer{en: en, w: en.idle.New().(*worker)}
	e = x.Explain(context.Background(), Question{Message: &SpoolFile{Name: c.Name(), Info: c.Info, File: c.File}})
	assert.Must(r, c.Discard())
	for _, to := range e.Recipients {
		for _, t := range to.Targets {
			targets = append(targets, t.Channel+" "+t.Host+" "+t.User)
		}
	}
	slices.Sort(targets)
	return e, targets
}

// section is a part of a file of cases, below a line "-- TITLE --".
type section struct{ title, text string }

var titleLine = regexp.MustCompile(`(?m)^-- (.*) --\n`)

func sections(text string) (comment string, list []section) {
	at := titleLine.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		list = append(list, section{text[m[2]:m[3]], text[m[1]:end]})
	}
	return text[:at[0][0]], list
}

// Each file of testdata has tables and messages, and what becomes of a message below it. A
// table holds until the file has another of its name. The Explainer names the same targets.
// M16 M37 M47 Atk3 Atk7 Loc5: the files say which.
func TestMessagesAreRoutedAsTheCasesShow(t *testing.T) {
	if os.Geteuid() == rules.Nobody {
		t.Skip("nobody's own files look like those of others")
	}
	files, err := filepath.Glob("testdata/*.txt")
	assert.Must(t, err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text := assert.Get(os.ReadFile(file))(t)
			comment, list := sections(string(text))
			r := newRig(t)
			r.config.OwnSenders = strings.Contains(comment, "SENDERCHECK=owner")
			for i := range list {
				switch kind, name, _ := strings.Cut(list[i].title, " "); kind {
				case "table":
					r.table(name, list[i].text)
				case "message":
					t.Run(name, func(t *testing.T) { r.check(t, name, list[i].text, &list[i+1]) })
				}
			}
			if *update {
				out := comment
				for _, s := range list {
					out += "-- " + s.title + " --\n" + s.text
				}
				assert.Must(t, os.WriteFile(file, []byte(out), 0o644))
			}
		})
	}
}

// check routes a message and compares what becomes of it with the section below it. ", uid
// N" in the name gives the message to another user.
func (r rig) check(t *testing.T, name, text string, want *section) {
	r.TB = t
	uid := uint32(os.Geteuid())
	if _, number, ok := strings.Cut(name, ", uid "); ok {
		n := assert.Get(strconv.Atoi(number))(t)
		uid = uint32(n)
	}
	en := r.engine()
	m := r.route(en, r.claim(uid, text))
	got := m.show(r.conf)
	if *update {
		want.text = got
	}
	assert.Equal(t, got, want.text, "specification")
	en = r.engine()
	en.dryRun = true
	e, targets := r.explained(en, uid, text)
	if m.spec == nil {
		assert.Equal(t, strings.HasPrefix(strings.ReplaceAll(got, " ", "-"), e.Verdict), true, "explained as %s", e.Verdict)
		return
	}
	list := m.recipients()
	slices.Sort(list)
	assert.Same(t, targets, list, "explained targets")
	failed := slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, rules.Error+" ") })
	if verdict := e.Verdict; verdict == VerdictRejected && !failed || verdict != VerdictRejected && verdict != VerdictRouted {
		t.Errorf("explained as %s", verdict)
	}
	senders := slices.Clone(m.spec.ErrorTo)
	for _, g := range m.spec.Groups {
		senders = append(senders, strings.Trim(g.Sender.Address, "<>"))
	}
	assert.Equal(t, slices.Contains(senders, e.Sender), true, "explained sender %s", e.Sender)
}
