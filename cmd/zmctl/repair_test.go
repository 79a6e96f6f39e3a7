package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/admin/repair"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// copyOffice copies a postoffice as cp -a does: names, bytes, modes and times stay,
// every inode is another.
func (o *office) copyOffice(t *testing.T, levels int) *office {
	t.Helper()
	to := filepath.Join(t.TempDir(), "restored")
	err := filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(o.dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(at, b, 0o600); err != nil {
				return err
			}
		default:
			return nil
		}
		return errors.Join(os.Chmod(at, info.Mode()), os.Chtimes(at, info.ModTime(), info.ModTime()))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("POSTOFFICE", to)
	return openOffice(t, to, levels)
}

// listing is every file but those in owners/ and ledger/, with where its name says it belongs.
func (o *office) listing(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(o.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(o.dir, path)
		if !d.IsDir() && !strings.HasPrefix(rel, "owners/") && !strings.HasPrefix(rel, "ledger/") {
			names = append(names, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(names)
	return names
}

// steps are what --dry-run or --repair prints, as JSON.
func mendSteps(t *testing.T, args ...string) (steps []repair.Step, code int) {
	t.Helper()
	out, code, err := invoke(t, append([]string{"check", "--json"}, args...)...)
	if uerr := json.Unmarshal([]byte(out), &steps); uerr != nil {
		t.Fatalf("%v, %v in %q", err, uerr, out)
	}
	return steps, code
}

// mended runs --dry-run, which must change nothing, and --repair, which must say the
// same; then another --dry-run must find nothing to do.
func mended(t *testing.T, o *office) []repair.Step {
	t.Helper()
	before := picture(t, o.dir)
	planned, _ := mendSteps(t, "--dry-run")
	if after := picture(t, o.dir); after != before {
		t.Errorf("--dry-run has changed the postoffice:\n%s", cmp.Diff(after, before))
	}
	done, code := mendSteps(t, "--repair")
	if diff := cmp.Diff(done, planned, cmpopts.IgnoreUnexported(repair.Step{})); diff != "" {
		t.Errorf("--repair did other things than --dry-run said, got - want +\n%s", diff)
	}
	if code != 0 {
		t.Errorf("--repair: got exit code %d", code)
	}
	if again, code := mendSteps(t, "--dry-run"); len(again) > 0 || code != 0 {
		t.Errorf("after the repair there is still to do: %+v", again)
	}
	return done
}

// full puts messages of every state into a postoffice, none of them held by a process
// when it returns. sent are the recipients that must get it yet.
func full(t *testing.T, o *office) (sent []string) {
	t.Helper()
	dead := o.run(t, "ta-smtp")
	router := o.run(t, "router")
	o.owner = router
	for i := range 12 {
		a := fmt.Sprintf("a%d@a.example.com", i)
		b := fmt.Sprintf("b%d@a.example.com", i)
		_, name, off := o.queue(t, a, b)
		o.tag(t, name, off[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
		o.event(t, name, workspec.DeferredEvent(time.Now(), off[1], i, time.Now().Add(time.Hour), status.NoAnswer, "no answer"))
		if i == 3 {
			o.tag(t, name, off[1], workspec.LockBytes(dead.Number()))
		}
		sent = append(sent, b)
	}
	for range 3 {
		o.submit(t, plainMail)
		c := o.claim(t, o.submit(t, plainMail))
		c.Close()
	}
	for range 3 {
		for _, aside := range []func(c *postoffice.Claim) error{
			func(c *postoffice.Claim) error { return c.Defer("routes") },
			func(c *postoffice.Claim) error { return c.Freeze("policy") },
			func(c *postoffice.Claim) error { return c.ToPostman() },
		} {
			if err := aside(o.claim(t, o.submit(t, plainMail))); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A hand-over whose router died, and one whose work file is not whole.
	for _, cut := range []bool{false, true} {
		_, name, _ := o.queue(t, fmt.Sprintf("handed%v@a.example.com", cut))
		o.rename(t, "transport/"+name, "router/.."+name)
		if cut {
			o.write(t, "router/.."+name, "@ 0x00000007\nz -\n")
		} else {
			sent = append(sent, "handedfalse@a.example.com")
		}
	}
	for _, w := range []*postoffice.Owner{dead, router} {
		o.write(t, "owners/"+strconv.Itoa(w.Number()), "router pid 1\n")
	}
	o.owner = nil
	return sent
}

// kill leaves every owner's file without its lock.
func kill(t *testing.T, o *office) {
	t.Helper()
	names, err := os.ReadDir(filepath.Join(o.dir, "owners"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		path := filepath.Join(o.dir, "owners", n.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Another file of the same name: nobody has its lock.
		if err := errors.Join(os.Remove(path), os.WriteFile(path, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// rightNames wants every message file to have its inode's number, every pair whole
// and at its place, and gives the open recipients in transport/.
func rightNames(t *testing.T, o *office, levels int) (open []string) {
	t.Helper()
	for _, rel := range o.listing(t) {
		dir, base := strings.SplitN(rel, "/", 2)[0], filepath.Base(rel)
		info, err := os.Stat(filepath.Join(o.dir, rel))
		if err != nil {
			t.Fatal(err)
		}
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
		spec := o.spec(t, strings.TrimPrefix(rel, "transport/"))
		if !spec.Complete || spec.Message != base {
			t.Errorf("%s: complete %v, names %s", rel, spec.Complete, spec.Message)
		}
		if _, err := os.Stat(filepath.Join(o.dir, "queue", strings.TrimPrefix(rel, "transport/"))); err != nil {
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
			old := newOffice(t)
			want := full(t, old)
			sort.Strings(want)
			o := old.copyOffice(t, levels)
			t.Setenv("ZCONFIG", filepath.Join(t.TempDir(), "zmailer.conf"))
			if err := os.WriteFile(os.Getenv("ZCONFIG"), fmt.Appendf(nil, "HASHLEVELS=%d\n", levels), 0o644); err != nil {
				t.Fatal(err)
			}
			out, code, _ := invoke(t, "check", "--problems")
			if code != 1 {
				t.Errorf("check of the copy: got exit code %d\n%s", code, out)
			}
			wantIn(t, out, "[misnumbered]", "it was copied or restored", "zmctl check --repair renames both files")
			before := times(t, o)
			steps := mended(t, o)
			if len(steps) < 12+3+9 {
				t.Errorf("only %d steps: %+v", len(steps), steps)
			}
			if got := times(t, o); got != before {
				t.Errorf("times of messages: got %s, want %s", got, before)
			}
			if got := rightNames(t, o, levels); cmp.Diff(got, want) != "" {
				t.Errorf("open recipients, got - want +\n%s", cmp.Diff(got, want))
			}
			if out, code, _ := invoke(t, "check", "--problems"); code != 1 || strings.Contains(out, "misnumbered") {
				t.Errorf("check after the repair: got exit code %d\n%s", code, out)
			}
		})
	}
}

// times are those of the message files, sorted.
func times(t *testing.T, o *office) string {
	t.Helper()
	var list []string
	for _, rel := range o.listing(t) {
		if strings.HasPrefix(rel, "transport/") || strings.Contains(rel, "/..") {
			continue
		}
		info, err := os.Stat(filepath.Join(o.dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, info.ModTime().String())
	}
	sort.Strings(list)
	return strings.Join(list, "\n")
}

// Names that go round in a circle: 10 is inode 11, 11 is inode 12, 12 is inode 10.
func TestCirclesOfNamesAreRenumbered(t *testing.T) {
	cases := map[string]func(t *testing.T, o *office) (name string){
		"queue/": func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			return "queue/" + name
		},
		"router/":   func(t *testing.T, o *office) string { return o.submit(t, plainMail).Name },
		"deferred/": setAside(func(c *postoffice.Claim) error { return c.Defer("x") }),
		"freezer/":  setAside(func(c *postoffice.Claim) error { return c.Freeze("x") }),
		"postman/":  setAside(func(c *postoffice.Claim) error { return c.ToPostman() }),
	}
	for dir, make := range cases {
		for _, n := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s%d", dir, n), func(t *testing.T) {
				o := newOffice(t)
				var names []string
				for range n {
					names = append(names, make(t, o))
				}
				spin := func(names []string) {
					first := filepath.Join(filepath.Dir(names[0]), "first")
					o.rename(t, names[0], first)
					for i := 1; i < len(names); i++ {
						o.rename(t, names[i], names[i-1])
					}
					o.rename(t, first, names[len(names)-1])
				}
				spin(names)
				if dir == "queue/" {
					specs := names
					for i := range specs {
						specs[i] = strings.Replace(specs[i], "queue", "transport", 1)
					}
					spin(specs)
				}
				if o.owner != nil {
					o.owner.Release()
				}
				kill(t, o)
				if steps := mended(t, o); len(steps) != n {
					t.Errorf("got %d steps, want %d: %+v", len(steps), n, steps)
				}
				rightNames(t, o, 0)
				if got := o.listing(t); strings.Contains(strings.Join(got, " "), "renumbered") {
					t.Errorf("got %s", got)
				}
			})
		}
	}
}

func setAside(aside func(c *postoffice.Claim) error) func(t *testing.T, o *office) string {
	return func(t *testing.T, o *office) string {
		t.Helper()
		had := map[string]bool{}
		for _, n := range o.listing(t) {
			had[n] = true
		}
		if err := aside(o.claim(t, o.submit(t, plainMail))); err != nil {
			t.Fatal(err)
		}
		for _, n := range o.listing(t) {
			if !had[n] {
				return n
			}
		}
		t.Fatal("nothing was set aside")
		return ""
	}
}

func inodeOf(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }
