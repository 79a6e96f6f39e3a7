package postoffice

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// deadOwner returns an owner number that no process holds: its lock file exists and is free.
func deadOwner(t *testing.T, dir string, n int) *Owner {
	t.Helper()
	assert.Must(t, os.WriteFile(filepath.Join(dir, Owners, fmt.Sprint(n)), nil, 0o644))
	return &Owner{n: n}
}

func complete(b []byte) bool { return strings.HasSuffix(string(b), "z\n") }

func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	assert.Must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && !strings.Contains(path, "/"+Owners+"/") {
			rel, _ := filepath.Rel(dir, path)
			names = append(names, rel)
		}
		return err
	}))
	return strings.Join(names, " ")
}

// M7 K7 K9: every state that a router killed between two steps leaves is taken up, and
// none of a live router's is touched.
func TestDeadRoutersWorkIsTakenUpAndALiveOnesLeft(t *testing.T) {
	steps := map[string]struct {
		leave func(t *testing.T, p *PostOffice, c *Claim)
		want  string // I: inode, P: owner, D: where it was claimed
	}{
		"claimed":                   {func(*testing.T, *PostOffice, *Claim) {}, "D/.tries.I D/I"},
		"work file half written":    {func(t *testing.T, p *PostOffice, c *Claim) { work(t, c, "s x\n") }, "D/.tries.I D/I"},
		"work file whole":           {func(t *testing.T, p *PostOffice, c *Claim) { work(t, c, "s x\nz\n") }, "D/.tries.I D/I"},
		"message moved, work whole": {func(t *testing.T, p *PostOffice, c *Claim) { work(t, c, "s x\nz\n"); toQueue(t, p, c) }, "queue/I-P transport/I-P"},
		"message moved, work torn":  {func(t *testing.T, p *PostOffice, c *Claim) { work(t, c, "s x\n"); toQueue(t, p, c) }, "router/I"},
		"message moved, no work":    {func(t *testing.T, p *PostOffice, c *Claim) { toQueue(t, p, c) }, "router/I"},
		"handed over":               {func(t *testing.T, p *PostOffice, c *Claim) { work(t, c, "s x\nz\n"); handOver(t, c) }, "queue/I-P transport/I-P"},
	}
	for name, step := range steps {
		for levels, from := range []string{Router, Router, Router, "router2"} {
			levels %= 3
			t.Run(fmt.Sprintf("%s/%s/%d", name, from, levels), func(t *testing.T) {
				p, dir := newPostOffice(t, levels)
				assert.Must(t, p.Router.EnsureDirs([]string{"router2"}))
				a := submitInto(t, p, from, "to bond\n\n")
				owner := assert.Get(p.Owners.Take("router"))(t)
				c := assert.Get(p.Router.Claim(owner, a.Name))(t)
				step.leave(t, p, c)
				c.Close()
				before := tree(t, dir)
				recoverAll(t, p)
				assert.Equal(t, tree(t, dir), before, "a live router's files")
				die(t, owner)
				recoverAll(t, p)
				recoverAll(t, p) // a work file is swept one round after its claim
				rel := fmt.Sprintf("%d-%d", c.name.Ino, owner.n)
				if h := HashDir(c.name.Ino, levels); h != "" {
					rel = h + "/" + rel
				}
				want := strings.NewReplacer("D", from, "I-P", rel, "I", fmt.Sprint(c.name.Ino)).Replace(step.want)
				assert.Equal(t, tree(t, dir), want, "after recovery")
			})
		}
	}
}

// die lets an owner's lock go as kill -9 does: the file stays, the lock is free.
func die(t *testing.T, o *Owner) {
	t.Helper()
	assert.Must(t, o.Leave())
}

func recoverAll(t *testing.T, p *PostOffice) []Recovered {
	t.Helper()
	a := assert.Get(p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()}))(t)
	b := assert.Get(p.Queue.Recover(time.Now()))(t)
	for _, r := range append(a, b...) {
		if r.Action == Unreadable {
			t.Errorf("recovery: %v", r)
		}
	}
	return append(a, b...)
}

func work(t *testing.T, c *Claim, text string) {
	t.Helper()
	w := assert.Get(c.CreateWork())(t)
	assert.Get(w.Write([]byte(text)))(t)
	assert.Must(t, w.Close())
}

func toQueue(t *testing.T, p *PostOffice, c *Claim) {
	t.Helper()
	assert.Must(t, p.move(c.path(), Queue+"/"+p.Queue.Place(c.Name())))
}

func handOver(t *testing.T, c *Claim) {
	t.Helper()
	assert.Get(c.HandOver())(t)
}

// M1: an accepted file in public/ is moved on only when its writer is dead and it is
// whole.
func TestPublicIsSweptOfWholeFilesOfDeadWriters(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	file := func(name, text string, mode os.FileMode) {
		t.Helper()
		name = filepath.Join(dir, Public, name)
		assert.Must(t, errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode)))
	}
	file("whole", fmt.Sprintf("comment octets %016d\nto a\n\n", 32+6), 0o700|mark)
	file("foreign", "to a\n\n", 0o700) // without our mark: PickUp copies it
	const text = "to a\n\n"
	sum := crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))
	file("summed", fmt.Sprintf("comment octets %016d %08x\n%s", octetsLine+len(text), sum, text), 0o700|mark)
	file("zeroed", fmt.Sprintf("comment octets %016d %08x\n%s", octetsLine+len(text), sum, "to a\x00\n"), 0o700|mark)
	file("sum-cut-off", fmt.Sprintf("comment octets %016d %07x", octetsLine-2, 1), 0o700|mark)
	file("truncated", fmt.Sprintf("comment octets %016d\nto", 32+6), 0o700|mark)
	file("unsized", "comment octets 0000000000000000\nto a\n\n", 0o700|mark)
	file("empty", "", 0o700|mark)
	file("prefix", "comment oct", 0o700|mark)
	file("writing", fmt.Sprintf("comment octets %016d\nto a\n\n", 32+6), 0o600)
	live := assert.Get(p.Submissions.NewDraft("live"))(t)
	assert.Get(live.Write([]byte("to a\n\n")))(t)
	assert.Must(t, live.complete())
	assert.Must(t, live.f.Chmod(0o700|mark))
	recoverAll(t, p)
	list := assert.Get(p.Router.List(true, time.Now()))(t)
	assert.Equal(t, len(list), 2, "files moved to router/, of: %s", tree(t, dir))
	for _, name := range []string{"truncated", "zeroed", "sum-cut-off", "unsized", "empty", "prefix", "writing", "foreign", live.Name()} {
		if ok, _ := p.exists(Public + "/" + name); !ok {
			t.Errorf("%s was taken from public/", name)
		}
	}
	assert.NoError(t, live.Abort())
}

// K7: crash between the two unlinks of Finish, and between the two renames of Rehash.
func TestInterruptedFinishAndRehashAreFoundAgain(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	put := func(name string) {
		t.Helper()
		assert.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("z\n"), 0o600))
	}
	deadOwner(t, dir, 5)
	put("transport/100-5") // finishing
	put("transport/27-5")  // rehash: the message is at depth 1 already
	put("queue/" + HashDir(27, 1) + "/27-5")
	put("queue/53") // a foreign router's, between its two renames
	done := recoverAll(t, p)
	assert.Equal(t, tree(t, dir), "queue/53 queue/B/27-5 transport/100-5 transport/B/27-5", "after recovery: %v", done)
	found := false
	for _, r := range done {
		found = found || r.Action == Completed && r.Name == "100-5"
	}
	if !found {
		t.Errorf("100-5 is not reported as completed: %v", done)
	}
	assert.Get(p.Queue.Recover(time.Now().Add(2 * foreignGrace)))(t)
	if ok, _ := p.exists("router/53"); !ok {
		t.Errorf("a message without specification was not given back: %s", tree(t, dir))
	}
}

// K10: of message and specification one is in a hash directory that is not its
// own: the specification goes to its message, wherever that is.
func TestHalvesInWrongHashDirectoriesFindEachOther(t *testing.T) {
	for _, wrong := range []string{"Q", "Q/A", "C/B"} {
		for _, stray := range []string{Queue, Transport} {
			t.Run(stray+"/"+wrong, func(t *testing.T) {
				p, dir := newPostOffice(t, 1)
				put := func(name, text string) {
					t.Helper()
					assert.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
					assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
				}
				deadOwner(t, dir, 5)
				put("queue/A", "somebody's notes\n") // where a hash directory might be
				place := map[string]string{Queue: "B/27-5", Transport: "B/27-5"}
				place[stray] = wrong + "/27-5"
				if stray == Transport && wrong == "Q/A" {
					place[Queue] = "C/27-5" // neither is in its place
				}
				put(Queue+"/"+place[Queue], "the message\n")
				put(Transport+"/"+place[Transport], "z\n")
				done := recoverAll(t, p)
				got := strings.Fields(tree(t, dir))
				want := []string{"queue/A", "queue/" + place[Queue], "transport/" + place[Queue]}
				slices.Sort(got)
				slices.Sort(want)
				assert.Same(t, got, want, done)
			})
		}
	}
}

// M21
func TestRehashMovesBothFiles(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	a := submit(t, p, "to bond\n\n")
	owner := assert.Get(p.Owners.Take("router"))(t)
	c := assert.Get(p.Router.Claim(owner, filepath.Base(a.Name)))(t)
	work(t, c, "z\n")
	name := assert.Get(c.HandOver())(t)
	for _, levels := range []int{1, 2, 0, 2, 1, 0} {
		q, err := OpenDir(dir, levels, false)
		assert.Must(t, err)
		name, err = q.Queue.Rehash(name)
		assert.Must(t, err)
		if want := "queue/" + name + " transport/" + name; tree(t, dir) != want || name != q.Queue.Place(name) {
			t.Errorf("at depth %d: %s, want %s at %s", levels, tree(t, dir), want, q.Queue.Place(name))
		}
	}
}

// M35: a prepared report is submitted once, however often that is tried.
func TestPreparedMessageIsSubmittedOnce(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	d := assert.Get(p.Submissions.NewDraft("report"))(t)
	assert.Get(d.Write([]byte("channel error\nto a\nenv-end\n\n")))(t)
	assert.Must(t, d.Prepare())
	recoverAll(t, p)
	assert.Equal(t, tree(t, dir), "public/"+d.Name(), "prepared")
	a := assert.Get(p.Submissions.SubmitPrepared(d.Name()))(t)
	if _, err := p.Submissions.SubmitPrepared(d.Name()); !errors.Is(err, ErrGone) {
		t.Errorf("second submission: %v, want ErrGone", err)
	}
	assert.Equal(t, tree(t, dir), a.Name, "submitted")
}

// M19: a torn last line is ended by the next writer.
func TestAppendEndsATornLine(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "transport/7-1"), []byte("z 1\nd torn"), 0o600))
	s := assert.Get(p.Queue.Open("7-1"))(t)
	defer s.Close()
	for range 2 {
		assert.Must(t, s.Append([]byte("h 1\n")))
	}
	b := assert.Get(s.Read())(t)
	assert.Equal(t, string(b), "z 1\nd torn\x18\nh 1\nh 1\n", "file")
}

var _ durable.FS = (*durable.OS)(nil)
