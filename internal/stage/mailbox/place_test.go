package mailbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// forget takes back the tag that says delivered, as if the agent had been killed before
// it set it, with the history that it had written.
func (p *post) forget(name string) {
	p.Helper()
	p.Mark(name, 0, workspec.TagBytes(p.Spec(name).Format, workspec.TagToDo))
}

// again delivers a message whose first delivery was not marked, and reports whether that
// was in doubt.
func (p *post) again(name string) (doubt bool) {
	p.Helper()
	p.forget(name)
	p.one(p.do(name), "\tok3 ")
	for _, e := range p.Spec(name).History {
		doubt = doubt || e.Event == workspec.EventInDoubt
	}
	return doubt
}

// M18: an agent that was killed between the delivery and its tag leaves a message that
// is not delivered again, unless its reader has taken away what would show it.
func TestDeliveryToMaildirIsFoundByItsName(t *testing.T) {
	dir := func(p *post, sub string) string { return filepath.Join(p.mail, "jim", sub) }
	for name, c := range map[string]struct {
		meanwhile func(p *post, name string)
		doubt     bool
		in        string // where the one copy is afterwards
	}{
		"nothing":           {func(*post, string) {}, false, "new"},
		"it has been read":  {func(p *post, n string) { p.must(os.Rename(dir(p, "new/"+n), dir(p, "cur/"+n+":2,S"))) }, false, "cur"},
		"it was not moved":  {func(p *post, n string) { p.must(os.Rename(dir(p, "new/"+n), dir(p, "tmp/"+n))) }, false, "new"},
		"it was half moved": {func(p *post, n string) { p.must(os.Link(dir(p, "new/"+n), dir(p, "tmp/"+n))) }, false, "new"},
		"it was removed":    {func(p *post, n string) { p.must(os.Remove(dir(p, "new/"+n))) }, true, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u/")
			id := p.queue("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
			p.do(id)
			c.meanwhile(p, p.names(dir(p, "new"))[0])
			assert.Equal(t, p.again(id), c.doubt, "in doubt")
			copies := append(p.names(dir(p, "new")), p.names(dir(p, "cur"))...)
			if len(copies) != 1 || len(p.names(dir(p, c.in))) != 1 {
				t.Errorf("got %q, want one copy in %s", copies, c.in)
			}
			assert.Equal(t, p.read(dir(p, c.in+"/"+copies[0])), top+"Subject: x\n\nbody\n")
			if left := p.names(dir(p, "tmp")); c.in == "new" && name != "it was half moved" && len(left) > 0 {
				t.Errorf("left in tmp/: %q", left)
			}
		})
	}
}

// A name that is taken in new/ is this message: no other has its identity.
func TestMaildirNameInNewIsThisDelivery(t *testing.T) {
	p := newPost(t, "$MAIL/%u/")
	id := p.queue("s@example.org", "Subject: x\n\n", "body\n", mailTo("jim@example.org"))
	p.do(id)
	// A power loss has taken the history, and the tag with it.
	spec := filepath.Join(p.Dir, "transport", id)
	text := p.read(spec)
	p.must(os.WriteFile(spec, []byte(text[:strings.Index(text, "\nh ")+1]), 0o600))
	if p.again(id) {
		t.Error("there is a doubt, want none: the message is there")
	}
	if got := p.maildir(filepath.Join(p.mail, "jim")); len(got) != 1 {
		t.Errorf("got %d messages, want 1", len(got))
	}
}

// M18: the same for an mbox, whose place the history names; what is torn is cut off.
func TestDeliveryToMboxIsFoundAtItsPlace(t *testing.T) {
	const before = "From other Sat Nov 21 00:00:00 2026\n\nx\n\n"
	cut := func(n int) func(box string) string {
		return func(box string) string { return box[:len(before)+n] }
	}
	for name, c := range map[string]struct {
		meanwhile func(box string) string
		doubt     bool
		copies    int
		before    string // what stands before the first copy afterwards
	}{
		"nothing":                        {func(box string) string { return box }, false, 1, before},
		"another message was added":      {func(box string) string { return box + before }, false, 1, before},
		"it was not written":             {cut(0), false, 1, before},
		"it was torn":                    {cut(60), false, 1, before},
		"one byte is missing":            {func(box string) string { return box[:len(box)-1] }, false, 1, before},
		"the reader has taken all":       {func(string) string { return "" }, true, 1, ""},
		"the reader has removed another": {func(box string) string { return box[len(before):] + before + before }, true, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/%u")
			box := filepath.Join(p.mail, "jim")
			p.must(os.WriteFile(box, []byte(before), 0o600))
			id := p.queue("s@example.org", "Subject: x\n\n", "From b\n", mailTo("jim@example.org"))
			p.do(id)
			// In place: the file is the same for whoever has it open.
			p.must(os.WriteFile(box, []byte(c.meanwhile(p.read(box))), 0o600))
			assert.Equal(t, p.again(id), c.doubt, "in doubt")
			got := p.read(box)
			want := c.before + "From s@example.org Sat Nov 21 00:12:50 2026\n" + top + "Subject: x\n\n>From b\n\n"
			if !strings.HasPrefix(got, want) || strings.Count(got, "Subject: x\n") != c.copies || strings.Contains(got, "\n\n\n") {
				t.Errorf("got %q, want %d copies", got, c.copies)
			}
		})
	}
}

// A process that is killed before its lock file has its pid leaves no lock: with the
// name comes the content.
func TestLockFileHasItsPidFromTheStart(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	dir, err := openAbove(filepath.Join(p.mail, "jim"), os.Geteuid())
	p.must(err)
	b := &mbox{m: p.mailbox, t: target{path: filepath.Join(p.mail, "jim")}, dir: dir, base: "jim", fd: -1}
	defer b.close()
	l, ok, err := b.takeDotLock()
	if err != nil || !ok || l == nil {
		t.Fatalf("got %v, %v, %v, want the lock", l, ok, err)
	}
	b.dot = l
	if got, want := p.read(filepath.Join(p.mail, "jim.lock")), "mta.example.org\n"; !strings.HasSuffix(got, " "+want) {
		t.Errorf("got %q, want pid and %s", got, want)
	}
	if _, ok, err := (&mbox{m: p.mailbox, t: b.t, dir: dir, base: "jim", fd: -1}).takeDotLock(); ok || err != nil {
		t.Errorf("a second lock: got %v, %v, want it held", ok, err)
	}
}
