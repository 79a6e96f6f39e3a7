package repair_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// full puts messages of every state into a postoffice, none of them held by a process
// when it returns. sent are the recipients that must get it yet.
func full(t *testing.T, o *office.Office) (sent []string) {
	t.Helper()
	dead := o.Run(t, "ta-smtp")
	router := o.Run(t, "router")
	o.Routing = router
	for i := range 12 {
		a := fmt.Sprintf("a%d@a.example.com", i)
		b := fmt.Sprintf("b%d@a.example.com", i)
		_, name, off := o.Enqueue(t, a, b)
		o.Tag(t, name, off[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
		o.Event(t, name, workspec.DeferredEvent(time.Now(), off[1], i, time.Now().Add(time.Hour), status.NoAnswer, "no answer"))
		if i == 3 {
			o.Tag(t, name, off[1], workspec.LockBytes(dead.Number()))
		}
		sent = append(sent, b)
	}
	for range 3 {
		o.Submit(t, office.PlainMail)
		c := o.Claim(t, o.Submit(t, office.PlainMail))
		c.Close()
	}
	for range 3 {
		for _, aside := range []func(c *postoffice.Claim) error{
			func(c *postoffice.Claim) error { return c.Defer("routes") },
			func(c *postoffice.Claim) error { return c.Freeze("policy") },
			func(c *postoffice.Claim) error { return c.ToPostman() },
		} {
			assert.Must(t, aside(o.Claim(t, o.Submit(t, office.PlainMail))))
		}
	}
	// A hand-over whose router died, and one whose work file is not whole.
	for _, cut := range []bool{false, true} {
		_, name, _ := o.Enqueue(t, fmt.Sprintf("handed%v@a.example.com", cut))
		o.Rename(t, "transport/"+name, "router/.."+name)
		if cut {
			o.Write(t, "router/.."+name, "@ 0x00000007\nz -\n")
		} else {
			sent = append(sent, "handedfalse@a.example.com")
		}
	}
	for _, w := range []*postoffice.Owner{dead, router} {
		o.Write(t, "owners/"+strconv.Itoa(w.Number()), "router pid 1\n")
	}
	o.Routing = nil
	return sent
}

// rightNames wants every message file to have its inode's number, every pair whole
// and at its place, and gives the open recipients in transport/.
func rightNames(t *testing.T, o *office.Office, levels int) (open []string) {
	t.Helper()
	for _, rel := range o.Files(t) {
		dir, base := strings.SplitN(rel, "/", 2)[0], filepath.Base(rel)
		info, err := os.Stat(filepath.Join(o.Dir, rel))
		assert.Must(t, err)
		digits := strings.TrimLeft(base, ".")
		end := strings.IndexFunc(digits+"x", func(r rune) bool { return r < '0' || r > '9' })
		n, _ := strconv.ParseUint(digits[:end], 10, 64)
		if dir != "transport" && dir != "removed" && !strings.HasPrefix(base, ".") && n != inodeOf(info) {
			t.Errorf("%s has the inode number %d", rel, inodeOf(info))
		}
		if dir == "queue" {
			if want := filepath.Join(postoffice.HashDir(n, levels), base); rel != "queue/"+want {
				t.Errorf("%s stands elsewhere than %s", rel, want)
			}
		}
		if dir != "transport" {
			continue
		}
		spec := o.Spec(t, strings.TrimPrefix(rel, "transport/"))
		if !spec.Complete || spec.Message != base {
			t.Errorf("%s: complete %v, names %s", rel, spec.Complete, spec.Message)
		}
		if _, err := os.Stat(filepath.Join(o.Dir, "queue", strings.TrimPrefix(rel, "transport/"))); err != nil {
			t.Errorf("%s has no message: %v", rel, err)
		}
		for _, g := range spec.Groups {
			for _, r := range g.Recipients {
				if r.Tag != workspec.TagOK && r.Tag != workspec.TagFailed {
					open = append(open, r.Address)
				}
			}
			for _, e := range spec.History {
				if e.Event == workspec.EventDeferred && e.Recipient != g.Recipients[1].Offset {
					t.Errorf("%s: a deferral is about byte %d, which is not %s", rel, e.Recipient, g.Recipients[1].Address)
				}
			}
		}
	}
	sort.Strings(open)
	return open
}

// K7 and the trap "inode changed by copy or restore": after cp -a names follow the
// new inode numbers everywhere, tags and history stay with their recipients, and
// times with their messages.
func TestCopiedPostofficeIsRenumbered(t *testing.T) {
	for _, levels := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("%d levels", levels), func(t *testing.T) {
			old := office.New(t)
			want := full(t, old)
			sort.Strings(want)
			o := old.Copy(t, levels)
			if bad, _ := problems(t, o, check.Options{}); !slices.Contains(slices.Concat(slices.Collect(maps.Values(bad))...), check.Misnumbered) {
				t.Errorf("check of the copy: got %v", bad)
			}
			before := times(t, o)
			steps := mended(t, o)
			if len(steps) < 12+3+9 {
				t.Errorf("only %d steps: %+v", len(steps), steps)
			}
			assert.Equal(t, times(t, o), before, "times of messages")
			if got := rightNames(t, o, levels); cmp.Diff(got, want) != "" {
				t.Errorf("open recipients, got - want +\n%s", cmp.Diff(got, want))
			}
			if bad, _ := problems(t, o, check.Options{}); slices.Contains(slices.Concat(slices.Collect(maps.Values(bad))...), check.Misnumbered) {
				t.Errorf("check after the repair: got %v", bad)
			}
		})
	}
}

// Two repairs at once: each message is mended by one of them, once.
func TestTwoRepairsAtOnceDoNotMeet(t *testing.T) {
	o := office.New(t)
	full(t, o)
	o = o.Copy(t, 0)
	var both sync.WaitGroup
	for range 2 {
		po := office.Open(t, o.Dir, 0)
		both.Go(func() {
			if _, err := repair.Do(po.PostOffice, time.Now(), nil); err != nil && !errors.Is(err, repair.ErrNotBegun) {
				t.Error(err)
			}
		})
	}
	both.Wait()
	steps, err := repair.Do(o.PostOffice, time.Now(), nil)
	if again, perr := repair.Plan(o.PostOffice, time.Now(), nil); err != nil || perr != nil || left(steps) || len(again) > 0 {
		t.Errorf("a third repair: %v, %+v, and then %+v, %v", err, steps, again, perr)
	}
	if got := rightNames(t, o, 0); len(got) != 13 {
		t.Errorf("%d recipients are open, want 13: %q", len(got), got)
	}
}

// times returns those of the message files, sorted.
func times(t *testing.T, o *office.Office) string {
	t.Helper()
	var list []string
	for _, rel := range o.Files(t) {
		if strings.HasPrefix(rel, "transport/") || strings.Contains(rel, "/..") {
			continue
		}
		info, err := os.Stat(filepath.Join(o.Dir, rel))
		assert.Must(t, err)
		list = append(list, info.ModTime().String())
	}
	sort.Strings(list)
	return strings.Join(list, "\n")
}

// Names that go round in a circle: 10 is inode 11, 11 is inode 12, 12 is inode 10.
func TestCirclesOfNamesAreRenumbered(t *testing.T) {
	cases := map[string]func(t *testing.T, o *office.Office) (name string){
		"queue/": func(t *testing.T, o *office.Office) string {
			_, name, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
			return "queue/" + name
		},
		"router/":   func(t *testing.T, o *office.Office) string { return o.Submit(t, office.PlainMail).Name },
		"deferred/": setAside(func(c *postoffice.Claim) error { return c.Defer("x") }),
		"freezer/":  setAside(func(c *postoffice.Claim) error { return c.Freeze("x") }),
		"postman/":  setAside(func(c *postoffice.Claim) error { return c.ToPostman() }),
	}
	for dir, make := range cases {
		for _, n := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s%d", dir, n), func(t *testing.T) {
				o := office.New(t)
				var names []string
				for range n {
					names = append(names, make(t, o))
				}
				spin := func(names []string) {
					first := filepath.Join(filepath.Dir(names[0]), "first")
					o.Rename(t, names[0], first)
					for i := 1; i < len(names); i++ {
						o.Rename(t, names[i], names[i-1])
					}
					o.Rename(t, first, names[len(names)-1])
				}
				spin(names)
				if dir == "queue/" {
					specs := names
					for i := range specs {
						specs[i] = strings.Replace(specs[i], "queue", "transport", 1)
					}
					spin(specs)
				}
				if o.Routing != nil {
					assert.Must(t, o.Routing.Release())
				}
				if steps := mended(t, o); len(steps) != n {
					t.Errorf("got %d steps, want %d: %+v", len(steps), n, steps)
				}
				rightNames(t, o, 0)
				if got := o.Files(t); strings.Contains(strings.Join(got, " "), "renumbered") {
					t.Errorf("got %s", got)
				}
			})
		}
	}
}

func setAside(aside func(c *postoffice.Claim) error) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		t.Helper()
		had := map[string]bool{}
		for _, n := range o.Files(t) {
			had[n] = true
		}
		assert.Must(t, aside(o.Claim(t, o.Submit(t, office.PlainMail))))
		for _, n := range o.Files(t) {
			if !had[n] {
				return n
			}
		}
		t.Fatal("nothing was set aside")
		return ""
	}
}

func inodeOf(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }
