package router

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// office is a postoffice on the real file system with a router.
type office struct {
	t    testing.TB
	dir  string // of the postoffice
	conf string // of the tables
	disk *faultfs.FS
	po   *postoffice.PostOffice
	r    *Router
	log  logtest.Buffer
}

// newOffice makes a postoffice, the tables and a router. Local users are bond and
// moneypenny, whatever the system has.
func newOffice(t testing.TB, tables map[string]string, change ...func(*Config)) *office {
	t.Helper()
	o := &office{t: t, dir: t.TempDir(), conf: t.TempDir()}
	o.table("users", "bond\nmoneypenny\n")
	o.table("localnames", "example.org\n")
	o.table("zmailer.conf", "POSTOFFICE="+o.dir+"\nHOSTNAME=mx.example.org\nLOCALUSERS="+filepath.Join(o.conf, "users")+
		"\nROUTERPOLL=1s\nROUTERWORKERS=4\nLOG=text\n")
	for name, text := range tables {
		o.table(name, text)
	}
	below, err := durable.NewOS(o.dir)
	assert.Must(t, err)
	t.Cleanup(func() { below.Close() })
	o.disk = faultfs.New(below)
	assert.Must(t, postoffice.Init(o.disk))
	if o.po, err = postoffice.Open(postoffice.Config{FS: o.disk}); err != nil {
		t.Fatal(err)
	}
	o.r = o.router(change...)
	return o
}

func (o *office) config() Config {
	return Config{
		PostOffice: o.dir,
		Config: route.Config{Hostname: "mx.example.org", Log: o.log.Logger(),
			Rules: rules.Config{Dir: o.conf, LocalUsers: filepath.Join(o.conf, "users")}},
	}
}

// router makes one more router.
func (o *office) router(change ...func(*Config)) *Router {
	o.t.Helper()
	c := o.config()
	for _, f := range change {
		f(&c)
	}
	r := assert.Get(New(o.po, c))(o.t)
	o.t.Cleanup(func() { r.Close() })
	return r
}

func (o *office) table(name, text string) {
	o.t.Helper()
	assert.Must(o.t, os.WriteFile(filepath.Join(o.conf, name), []byte(text), 0o644))
}

// submit puts a message file into router/.
func (o *office) submit(text string) postoffice.Accepted {
	o.t.Helper()
	return submit(o.t, o.po, text)
}

func submit(t testing.TB, p *postoffice.PostOffice, text string) postoffice.Accepted {
	t.Helper()
	d := assert.Get(p.Submissions.NewDraft("test"))(t)
	assert.Get(io.WriteString(d, text))(t)
	a := assert.Get(d.Commit())(t)
	return a
}

// submitInto puts a message file into a router directory.
func (o *office) submitInto(dir, text string) postoffice.Accepted {
	o.t.Helper()
	d := assert.Get(o.po.Submissions.NewDraft("test"))(o.t)
	d.Into(dir)
	assert.Get(io.WriteString(d, text))(o.t)
	a := assert.Get(d.Commit())(o.t)
	return a
}

// routed is a message in queue/ with its work specification.
type routed struct {
	name    string
	spec    *workspec.Spec
	file    []byte // the specification
	message []byte // the message file
}

// header returns the header block to be sent.
func (m *routed) header() string {
	g := m.spec.Groups[0]
	return string(m.file[g.HeaderOffset:g.HeaderEnd])
}

// recipients returns what the r lines say.
func (m *routed) recipients() []string {
	var list []string
	for _, g := range m.spec.Groups {
		for _, r := range g.Recipients {
			list = append(list, r.Channel+" "+r.Host+" "+r.Address)
		}
	}
	return list
}

// route routes what is there and gives what was handed over, in no order.
func (o *office) route() []routed {
	o.t.Helper()
	assert.Get(o.r.RouteAll())(o.t)
	return handedOver(o.t, o.po)
}

// one is route for one message.
func (o *office) one(text string) routed {
	o.t.Helper()
	a := o.submit(text)
	for _, m := range o.route() {
		if strings.HasPrefix(m.name, fmt.Sprintf("%d-", a.ID.Ino)) {
			return m
		}
	}
	o.t.Fatalf("%s is not handed over; log:\n%s", a.Name, &o.log)
	return routed{}
}

func handedOver(t testing.TB, p *postoffice.PostOffice) []routed {
	t.Helper()
	var list []routed
	err := p.Queue.List(func(name string) error {
		m := routed{name: name}
		s, err := p.Queue.Open(name)
		if err != nil {
			return err
		}
		defer s.Close()
		if m.file, err = s.Read(); err != nil {
			return err
		}
		if m.spec, err = workspec.Parse(m.file); err != nil {
			return err
		}
		if !workspec.Complete(m.file) {
			return fmt.Errorf("%s is not complete", name)
		}
		f, info, err := p.Queue.OpenMessage(name)
		if err != nil {
			return err
		}
		defer f.Close()
		m.message = make([]byte, info.Size)
		if _, err := io.ReadFull(f, m.message); err != nil {
			return err
		}
		list = append(list, m)
		return nil
	})
	assert.Must(t, err)
	return list
}

// names lists a directory of the postoffice.
func (o *office) names(dir string) []string {
	o.t.Helper()
	entries := assert.Get(os.ReadDir(filepath.Join(o.dir, dir)))(o.t)
	var list []string
	for _, e := range entries {
		// What stands beside a message that was put aside is none.
		if !strings.HasPrefix(e.Name(), "reason.") {
			list = append(list, e.Name())
		}
	}
	return list
}

// expect checks how many names there are in each directory that holds messages.
func (o *office) expect(what string, want map[string]int) {
	o.t.Helper()
	for _, dir := range []string{postoffice.Public, postoffice.Router, postoffice.Queue, postoffice.Transport, postoffice.Deferred, postoffice.Postman, postoffice.Freezer} {
		if got := o.names(dir); len(got) != want[dir] {
			o.t.Errorf("%s: %s: got %q, want %d\n%s", what, dir, got, want[dir], &o.log)
		}
	}
}

// logged checks how many log lines have all the words.
func (o *office) logged(times int, words ...string) {
	o.t.Helper()
	assert.Equal(o.t, o.log.Count(words...), times, "log lines with %q in: %s", words, &o.log)
}

func plain(rcpt string) string {
	return "from <q@example.net>\nto <" + rcpt + ">\nenv-end\nFrom: q@example.net\nSubject: x\n\nbody\n"
}

// Bounds of package route that tests pass.
const (
	manyRecipients = 100
	largeHeader    = 128 << 10
	maxSorted      = 2000
	maxReceived    = 50
	mostForwardedB = 4 << 20
	maxObsoletes   = 10
	maxDecided     = 100
)
