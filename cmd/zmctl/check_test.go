package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// checked is the finding about a file, and the exit code.
func checked(t *testing.T, name string) (finding struct{ File, Severity, State, Text string }, code int) {
	t.Helper()
	out, code, _ := invoke(t, "check", "--json")
	var all []struct{ File, Severity, State, Text string }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	for _, f := range all {
		if f.File == name {
			return f, code
		}
	}
	t.Fatalf("no finding about %s in\n%s", name, out)
	return finding, code
}

func TestCheckExplainsEveryState(t *testing.T) {
	dead := 999997
	inode := func(a postoffice.Accepted) string { return strconv.FormatUint(a.ID.Ino, 10) }
	cases := map[string]struct {
		plant    func(t *testing.T, o *office) (file string)
		severity check.Severity
		state    string
		words    []string
	}{
		"alarms that the scheduler wrote": {func(t *testing.T, o *office) string {
			must(t, o.WriteAlarms([]byte("too-old\n")))
			return postoffice.AlarmFile
		}, check.Fine, "alarms", []string{"zmctl status"}},
		"written now": {func(t *testing.T, o *office) string { o.write(t, "public/x", "from <a@b>\n"); return "public/x" },
			check.Fine, view.StateWriting, []string{"not complete"}},
		"written by a live process": {func(t *testing.T, o *office) string {
			d, err := o.Submissions.NewDraft("test")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Abort() })
			o.age(t, "public/"+d.Name(), 3*time.Hour)
			return "public/" + d.Name()
		}, check.Fine, view.StateWriting, []string{"is being written by pid " + strconv.Itoa(os.Getpid())}},
		"left unfinished": {func(t *testing.T, o *office) string {
			o.write(t, "public/x", "from <a@b>\n")
			o.age(t, "public/x", 3*time.Hour)
			return "public/x"
		}, check.Warning, view.StateWriting, []string{"3h ago", "remove it"}},
		"accepted, submitter dead": {func(t *testing.T, o *office) string {
			o.write(t, "public/x", plainMail)
			if err := os.Chmod(filepath.Join(o.dir, "public/x"), 0o700); err != nil {
				t.Fatal(err)
			}
			return "public/x"
		}, check.Fine, view.StateAccepted, []string{"Its submitter is dead", "moves it to router/"}},
		"accepted, bytes lost": {func(t *testing.T, o *office) string {
			o.write(t, "public/x", "comment octets 0000000000009999\n"+plainMail)
			if err := os.Chmod(filepath.Join(o.dir, "public/x"), 0o700); err != nil {
				t.Fatal(err)
			}
			return "public/x"
		}, check.Warning, view.StateAccepted, []string{"9999", "Remove the file"}},
		"symbolic link in public/": {func(t *testing.T, o *office) string {
			if err := os.Symlink("/etc/passwd", filepath.Join(o.dir, "public/l")); err != nil {
				t.Fatal(err)
			}
			return "public/l"
		}, check.Warning, "unknown", []string{"Remove it"}},
		"a prepared report": {func(t *testing.T, o *office) string {
			_, name, offsets := o.queue(t, "a@a.example.com")
			o.write(t, "public/report", plainMail)
			o.event(t, name, workspec.Event{Time: time.Now(), Event: workspec.EventReport, Attrs: []workspec.Attr{
				{Key: "file", Value: "report"}, {Key: "kind", Value: "failed"}, {Key: "rcpts", Value: strconv.FormatInt(offsets[0], 10)}}})
			return "public/report"
		}, check.Fine, "prepared report", []string{"belongs to transport/"}},
		"waits for a router": {func(t *testing.T, o *office) string { return o.submit(t, plainMail).Name },
			check.Fine, view.StateAccepted, []string{"free claims and routes it"}},
		"broken envelope": {func(t *testing.T, o *office) string { return o.submit(t, "from <a b>\nto x\nenv-end\n").Name },
			check.Warning, view.StateAccepted, []string{"envelope line 2", "sets it aside as postman/"}},
		"restored under a foreign number": {func(t *testing.T, o *office) string { o.write(t, "router/4711", plainMail); return "router/4711" },
			check.Warning, view.StateAccepted, []string{"copied or restored"}},
		"name that is no number": {func(t *testing.T, o *office) string { o.write(t, "router/core", "x"); return "router/core" },
			check.Warning, "unknown", []string{"whose name is a number"}},
		"directory in router/": {func(t *testing.T, o *office) string {
			if err := os.Mkdir(filepath.Join(o.dir, "router/12"), 0o755); err != nil {
				t.Fatal(err)
			}
			return "router/12"
		}, check.Warning, "unknown", []string{"only regular files"}},
		"claimed": {func(t *testing.T, o *office) string {
			c := o.claim(t, o.submit(t, plainMail))
			return "router/" + c.Name()
		}, check.Fine, view.StateClaimed, []string{"being routed by router pid "}},
		"work file of a live router": {func(t *testing.T, o *office) string {
			c := o.claim(t, o.submit(t, plainMail))
			if w, err := c.CreateWork(); err != nil || w.Close() != nil {
				t.Fatal(err)
			}
			return "router/.." + c.Name()
		}, check.Fine, "work file", []string{"being written by router pid "}},
		"claimed by a dead router": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			o.deadOwner(t, dead, "router")
			name := "router/" + inode(a) + "-" + strconv.Itoa(dead)
			o.rename(t, a.Name, name)
			return name
		}, check.Warning, view.StateClaimed, []string{"The router that had it is dead"}},
		"work file of a dead router": {func(t *testing.T, o *office) string {
			o.deadOwner(t, dead, "router")
			name := "router/..12-" + strconv.Itoa(dead)
			o.write(t, name, "@ 7\n")
			return name
		}, check.Warning, "work file", []string{"Its writer is dead"}},
		"work file beside a dead router's claim": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			o.deadOwner(t, dead, "router")
			base := inode(a) + "-" + strconv.Itoa(dead)
			o.rename(t, a.Name, "router/"+base)
			o.write(t, "router/.."+base, "@ 7\n")
			return "router/.." + base
		}, check.Warning, "work file", []string{"returned to router/"}},
		"being handed over": {func(t *testing.T, o *office) string {
			c := o.claim(t, o.submit(t, plainMail))
			o.rename(t, "router/"+c.Name(), "queue/"+c.Name())
			return "queue/" + c.Name()
		}, check.Fine, view.StateHandedOver, []string{"its work specification follows"}},
		"handed over by the dead": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			o.deadOwner(t, dead, "router")
			name := "queue/" + inode(a) + "-" + strconv.Itoa(dead)
			o.rename(t, a.Name, name)
			return name
		}, check.Warning, view.StateHandedOver, []string{"goes back to router/"}},
		"waits for its first attempt": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			return "transport/" + name
		}, check.Fine, view.StateQueued, []string{"1 recipient.", "waits for its first attempt"}},
		"all final": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.tag(t, name, off[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
			return "transport/" + name
		}, check.Fine, view.StateQueued, []string{"Every recipient is final"}},
		"locked by a dead agent": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.deadOwner(t, dead, "ta-smtp")
			o.tag(t, name, off[0], workspec.LockBytes(dead))
			o.age(t, "transport/"+name, 2*time.Hour)
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"has been locked by ta-smtp pid 999997, dead", "gives it to another agent"}},
		"due and not tried": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.event(t, name, workspec.DeferredEvent(time.Now(), off[0], 3, time.Now().Add(-2*time.Hour), status.NoAnswer, "no answer"))
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"due for 2h"}},
		"due in a while": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.event(t, name, workspec.DeferredEvent(time.Now(), off[0], 3, time.Now().Add(time.Minute), status.NoAnswer, "no answer"))
			return "transport/" + name
		}, check.Fine, view.StateQueued, []string{"is tried again in "}},
		// Z8
		"nothing serves it": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.event(t, name, workspec.Event{Time: time.Now(), Recipient: off[0], Event: workspec.EventUnserved, Text: "no clause"})
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"<a@a.example.com>", "is not served: no clause"}},
		"served again": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.event(t, name, workspec.Event{Time: time.Now(), Recipient: off[0], Event: workspec.EventUnserved, Text: "no clause"})
			o.event(t, name, workspec.Event{Time: time.Now(), Recipient: off[0], Event: workspec.EventServed})
			return "transport/" + name
		}, check.Fine, view.StateQueued, []string{"waits for its first attempt"}},
		"specification cut off": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			if err := os.Truncate(filepath.Join(o.dir, "transport", name), 100); err != nil {
				t.Fatal(err)
			}
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"not whole", "back to router/"}},
		"specification corrupt": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			o.write(t, "transport/"+name, "@ \x00\x1b[2J\n")
			return "transport/" + name
		}, check.Wrong, view.StateQueued, []string{"cannot be read", "leaves it alone"}},
		// M17
		"specification of a newer program": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			o.write(t, "transport/"+name, "@ 0x00000087\n")
			return "transport/" + name
		}, check.Wrong, view.StateQueued, []string{"unknown format bits"}},
		"message gone, recipient open": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			if err := os.Remove(filepath.Join(o.dir, "queue", name)); err != nil {
				t.Fatal(err)
			}
			return "transport/" + name
		}, check.Wrong, view.StateFinishing, []string{"1 recipient is open"}},
		"finishing": {func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			o.tag(t, name, off[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
			if err := os.Remove(filepath.Join(o.dir, "queue", name)); err != nil {
				t.Fatal(err)
			}
			return "transport/" + name
		}, check.Fine, view.StateFinishing, []string{"removes the specification"}},
		"another message under the specification": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			o.write(t, "queue/"+name, "to a\n\n")
			return "transport/" + name
		}, check.Wrong, view.StateQueued, []string{"do not belong together"}},
		"restored in queue/": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			b, err := os.ReadFile(filepath.Join(o.dir, "queue", name))
			if err != nil {
				t.Fatal(err)
			}
			o.write(t, "queue/new", string(b))
			o.rename(t, "queue/new", "queue/"+name)
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"its spool ID is a new one"}},
		"rehash not finished": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			n, _ := postoffice.ParseName(name)
			o.rename(t, "queue/"+name, "queue/"+postoffice.HashDir(n.Ino, 1)+"/"+name)
			return "transport/" + name
		}, check.Warning, view.StateQueued, []string{"different hash depths"}},
		"the same name twice": {func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			n, _ := postoffice.ParseName(name)
			deep := "queue/" + postoffice.HashDir(n.Ino, 1) + "/" + name
			o.rename(t, "queue/"+name, deep)
			o.write(t, "queue/"+name, plainMail)
			return deep
		}, check.Wrong, "double", []string{"is a copy"}},
		"strange name in queue/": {func(t *testing.T, o *office) string { o.write(t, "queue/x.bak", "x"); return "queue/x.bak" },
			check.Warning, "unknown", []string{"Remove it"}},
		"strange directory in transport/": {func(t *testing.T, o *office) string {
			if err := os.Mkdir(filepath.Join(o.dir, "transport/AB"), 0o755); err != nil {
				t.Fatal(err)
			}
			return "transport/AB"
		}, check.Warning, "unknown", []string{"nor a hash directory"}},
		"set aside by the router": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			if err := o.claim(t, a).Defer("aliases"); err != nil {
				t.Fatal(err)
			}
			return "deferred/" + inode(a) + ".aliases"
		}, check.Fine, view.StateDeferred, []string{"in 4m, at ", "zmctl resubmit S"}},
		"put off because it ends routers": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			if err := o.claim(t, a).Defer(postoffice.WhyCrash); err != nil {
				t.Fatal(err)
			}
			return "deferred/" + inode(a) + ".crash"
		}, check.Warning, view.StateDeferred, []string{"zmctl resubmit S"}},
		"held by policy": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			if err := o.claim(t, a).Freeze("size"); err != nil {
				t.Fatal(err)
			}
			return "freezer/" + inode(a) + ".size"
		}, check.Fine, view.StateFrozen, []string{"held by policy (size)"}},
		// M12
		"only copy": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			if err := o.claim(t, a).ToPostman(); err != nil {
				t.Fatal(err)
			}
			return "postman/" + inode(a)
		}, check.Warning, view.StateSetAside, []string{"the only copy"}},
		// M12
		"soft copy": {func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			if err := o.claim(t, a).SoftCopy("loop"); err != nil {
				t.Fatal(err)
			}
			return "postman/" + inode(a) + "_loop"
		}, check.Fine, view.StateCopy, []string{"a copy for the postmaster"}},
		"strange name in postman/": {func(t *testing.T, o *office) string { o.write(t, "postman/note", "x"); return "postman/note" },
			check.Warning, "unknown", []string{"Remove it"}},
		"dead owner": {func(t *testing.T, o *office) string {
			o.deadOwner(t, dead, "router")
			return "owners/" + strconv.Itoa(dead)
		}, check.Fine, "dead", []string{"owner number"}},
		"strange owner": {func(t *testing.T, o *office) string { o.write(t, "owners/me", "x"); return "owners/me" },
			check.Warning, "unknown", []string{"remove it"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			o.owner = o.run(t, "router")
			o.run(t, "scheduler")
			if out, code, _ := invoke(t, "check", "--problems"); code != 0 {
				t.Fatalf("before: got exit code %d, want 0\n%s", code, out)
			}
			file := c.plant(t, o)
			got, code := checked(t, file)
			if got.Severity != c.severity.String() || got.State != c.state || code != int(c.severity) {
				t.Errorf("got %+v and exit code %d, want %v, %q", got, code, c.severity, c.state)
			}
			wantIn(t, got.Text, c.words...)
			text, _, _ := invoke(t, "check")
			if strings.ContainsAny(text, "\x00\x01\x1b") {
				t.Errorf("a control character reached the terminal: %q", text)
			}
			wantIn(t, text, file)
			problems, _, _ := invoke(t, "check", "--problems")
			if strings.Contains(problems, file+":") != (c.severity > check.Fine) {
				t.Errorf("--problems: got\n%s\nwant %s in it only as a problem", problems, file)
			}
		})
	}
}

func TestCheckWarnsWhenNoDaemonRuns(t *testing.T) {
	o := newOffice(t)
	out, code, _ := invoke(t, "check")
	if code != 1 {
		t.Errorf("exit code: got %d, want 1", code)
	}
	wantIn(t, out, "warning  router: not running", "warning  scheduler: not running", "0 errors")
	release, err := o.Owners.Exclusive("scheduler")
	if err != nil {
		t.Fatal(err)
	}
	out, _, _ = invoke(t, "check")
	wantIn(t, out, "ok       scheduler: running")
	if err := release(); err != nil {
		t.Fatal(err)
	}
}

// Looking changes nothing: names, bytes, times and locks stay.
func TestLookingChangesNothing(t *testing.T) {
	o := newOffice(t)
	ids := plant(t, o)
	before := picture(t, o.dir)
	for _, args := range [][]string{{"status"}, {"queue"}, {"queue", "--json"}, {"check"}, {"resubmit"}, {"show", ids[view.StateQueued]}, {"show", ids[view.StateClaimed]}} {
		invoke(t, args...)
	}
	if got := picture(t, o.dir); got != before {
		t.Errorf("after looking: got\n%s\nwant\n%s", got, before)
	}
}

func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String())
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// K10, A18: files that go away under a look are no trouble, and once it is quiet
// the counts are right.
func TestLookingWhileMailMoves(t *testing.T) {
	o := newOffice(t)
	o.owner = o.run(t, "router")
	o.run(t, "scheduler")
	ctx, cancel := context.WithCancel(t.Context())
	var movers sync.WaitGroup
	moved := make(chan struct{}, 1000)
	for range 2 {
		movers.Go(func() {
			for ctx.Err() == nil {
				a, name, offsets := o.queue(t, "a@a.example.com", "b@a.example.com")
				o.tag(t, name, offsets[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
				o.tag(t, name, offsets[1], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
				if err := o.Queue.Finish(name); err != nil {
					t.Error(err)
				}
				b := o.submit(t, plainMail)
				if err := o.claim(t, b).Defer("x"); err != nil {
					t.Error(err)
				}
				if _, err := o.Aside.Resubmit(filepath.Base(b.Name) + ".x"); err != nil {
					t.Error(err)
				}
				if err := o.claim(t, b).Discard(); err != nil {
					t.Error(err)
				}
				_ = a
				select {
				case moved <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		select {
		case <-moved:
		case <-t.Context().Done():
		}
		for _, command := range []string{"status", "queue", "resubmit"} {
			if out, code, err := invoke(t, command); code != 0 {
				t.Errorf("%s: got exit code %d, %v\n%s", command, code, err, out)
			}
		}
		if out, code, _ := invoke(t, "check", "--problems"); code > 1 {
			t.Errorf("check: got exit code %d\n%s", code, out)
		}
	}
	cancel()
	movers.Wait()
	a := o.submit(t, plainMail)
	out, _, _ := invoke(t, "queue")
	wantIn(t, out, a.ID.String(), "1 message\n")
	if out, code, _ := invoke(t, "check", "--problems"); code != 0 {
		t.Errorf("check when it is quiet: got exit code %d\n%s", code, out)
	}
}
