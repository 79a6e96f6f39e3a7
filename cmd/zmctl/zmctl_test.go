package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/setup"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
)

// TestMain serves as zmctl and, under their names, as the daemons that it starts.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case name == "smtpserver" || name == "router" || name == "scheduler":
		os.Exit(standIn(name))
	case os.Getenv("BE_ZMCTL") != "":
		main()
	}
	os.Exit(m.Run())
}

// standIn is a daemon that says when it comes and goes. DAEMON_name tells how it
// behaves: "" waits for SIGTERM, "stubborn" does not end on it, "78" exits so at
// once, "once" exits with 1 the first time, by the file FIRST_TIME, "once, then 78" with
// 78 later.
func standIn(name string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Fprintf(os.Stderr, "up %s %s %s %s\n", name, os.Getenv("POSTOFFICE"), os.Getenv("ZCONFIG"), strings.Join(os.Args[1:], " "))
	switch os.Getenv("DAEMON_" + name) {
	case "78":
		return config.ExitConfig
	case "once", "once, then 78":
		if err := os.Remove(os.Getenv("FIRST_TIME")); err == nil {
			return 1
		}
		if os.Getenv("DAEMON_"+name) != "once" {
			return config.ExitConfig
		}
	case "stubborn":
		for {
			<-term
			fmt.Fprintf(os.Stderr, "asked %s\n", name)
		}
	}
	<-term
	fmt.Fprintf(os.Stderr, "down %s\n", name)
	return 0
}

// invoke calls a command as from a shell.
func invoke(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	var out bytes.Buffer
	a := app()
	a.Writer, a.ErrWriter = &out, io.Discard
	a.ExitErrHandler = func(*cli.Context, error) {}
	err = a.RunContext(t.Context(), append([]string{"zmctl"}, args...))
	return out.String(), config.Exit(err), err
}

// office is a postoffice with the programs' owner numbers in it.
type office struct {
	*postoffice.PostOffice
	dir   string
	owner *postoffice.Owner
}

func newOffice(t *testing.T) *office {
	t.Helper()
	t.Setenv("ZCONFIG", "")
	dir := filepath.Join(t.TempDir(), "po")
	t.Setenv("POSTOFFICE", dir)
	if err := setup.Make(dir); err != nil {
		t.Fatal(err)
	}
	return openOffice(t, dir, 0)
}

func openOffice(t *testing.T, dir string, levels int) *office {
	t.Helper()
	p, err := postoffice.OpenDir(dir, levels, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFS(p) })
	return &office{PostOffice: p, dir: dir}
}

// run makes an owner number of this role live for the test.
func (o *office) run(t *testing.T, role string) *postoffice.Owner {
	t.Helper()
	w, err := o.Owners.Take(role)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Release() })
	return w
}

// deadOwner leaves an owner number as a killed process does.
func (o *office) deadOwner(t *testing.T, n int, role string) {
	t.Helper()
	o.write(t, postoffice.Owners+"/"+strconv.Itoa(n), role+" pid "+strconv.Itoa(n)+"\n")
}

func (o *office) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (o *office) rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(o.dir, to)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(o.dir, from), filepath.Join(o.dir, to)); err != nil {
		t.Fatal(err)
	}
}

func (o *office) age(t *testing.T, name string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	if err := os.Chtimes(filepath.Join(o.dir, name), at, at); err != nil {
		t.Fatal(err)
	}
}

const plainMail = "from <sender@client.example.net>\nto <user@a.example.com>\nenv-end\nSubject: test\n\nbody\n"

func (o *office) submit(t *testing.T, text string) postoffice.Accepted {
	t.Helper()
	d, err := o.Submissions.NewDraft("test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(d, text); err != nil {
		t.Fatal(err)
	}
	a, err := d.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (o *office) claim(t *testing.T, a postoffice.Accepted) *postoffice.Claim {
	t.Helper()
	if o.owner == nil {
		o.owner = o.run(t, "router")
	}
	c, err := o.Router.Claim(o.owner, filepath.Base(a.Name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// queue submits and routes a message to these recipients over smtp/a.example.com,
// and gives its name below transport/ and the offsets of its recipients.
func (o *office) queue(t *testing.T, rcpts ...string) (a postoffice.Accepted, name string, offsets []int64) {
	t.Helper()
	a = o.submit(t, plainMail)
	c := o.claim(t, a)
	work, err := c.CreateWork()
	if err != nil {
		t.Fatal(err)
	}
	w := workspec.NewWriter(work)
	w.Preamble(&workspec.Spec{Format: workspec.FormatOurs, Message: c.Name(), BodyOffset: a.Size - int64(len("body\n"))})
	var list []workspec.Recipient
	for _, r := range rcpts {
		list = append(list, workspec.Recipient{Tag: workspec.TagToDo, Channel: "smtp", Host: "a.example.com", Address: r, Privilege: "65534"})
	}
	w.Group(workspec.Sender{Channel: "local", Host: "sender@client.example.net", Address: "sender@client.example.net", Privilege: "1"},
		list, []byte("Subject: test\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := work.Close(); err != nil {
		t.Fatal(err)
	}
	if name, err = c.HandOver(); err != nil {
		t.Fatal(err)
	}
	spec := o.spec(t, name)
	for _, g := range spec.Groups {
		for _, r := range g.Recipients {
			offsets = append(offsets, r.Offset)
		}
	}
	return a, name, offsets
}

func (o *office) spec(t *testing.T, name string) *workspec.Spec {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(o.dir, postoffice.Transport, name))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := workspec.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// edit changes a specification as scheduler and agents do.
func (o *office) edit(t *testing.T, name string, change func(s *postoffice.Spec) error) {
	t.Helper()
	s, err := o.Queue.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := change(s); err != nil {
		t.Fatal(err)
	}
}

func (o *office) tag(t *testing.T, name string, offset int64, b []byte) {
	t.Helper()
	o.edit(t, name, func(s *postoffice.Spec) error { return s.SetTag(b, workspec.TagOffset(offset)) })
}

func (o *office) event(t *testing.T, name string, e workspec.Event) {
	t.Helper()
	o.edit(t, name, func(s *postoffice.Spec) error { return s.Append(workspec.AppendEvent(nil, &e)) })
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("got\n%s\nwant %q in it", text, p)
		}
	}
}
