package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/check"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// problems are the findings with problems, by file, of one call.
func problems(t *testing.T, args ...string) (found map[string][]string, code int) {
	t.Helper()
	out, code, _ := invoke(t, append([]string{"check", "--json", "--problems"}, args...)...)
	var all []struct {
		File     string
		Problems []string
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	found = map[string][]string{}
	for _, f := range all {
		found[f.File] = append(found[f.File], f.Problems...)
	}
	return found, code
}

// planted is one thing that is wrong.
type planted struct {
	plant func(t *testing.T, o *office) (file string)
	word  check.Problem
	// away: the repair puts it into quarantine/ with this last word. "": it is mended,
	// or stays as it is if left is set.
	away string
	left bool
	args []string
}

func (o *office) path(name string) string { return filepath.Join(o.dir, name) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// misshapen are names and modes that are no mail's.
func misshapen() map[string]planted {
	file := func(name string, age time.Duration) func(t *testing.T, o *office) string {
		return func(t *testing.T, o *office) string {
			o.write(t, name, "x")
			o.age(t, name, age)
			return name
		}
	}
	return map[string]planted{
		"file in the postoffice's own directory": {plant: file("core", 0), word: check.ForeignName, left: true},
		"file of no name of ours in queue/":      {plant: file("queue/x.bak", 0), word: check.ForeignName, away: "foreign"},
		"old file of no name of ours in router/": {plant: file("router/core", 2*time.Hour), word: check.ForeignName, away: "foreign"},
		"young one in router/":                   {plant: file("router/core", 0), word: check.ForeignName, left: true},
		"hidden file in transport/":              {plant: file("transport/.12-5.swp", 0), word: check.ForeignName, away: "foreign"},
		"old hidden file in public/":             {plant: file("public/.x", 2*time.Hour), word: check.Unfinished, away: "unfinished"},
		"two-dot file in deferred/":              {plant: file("deferred/..x", 0), word: check.ForeignName, away: "foreign"},
		"file of no name of ours in removed/":    {plant: file("removed/x", 0), word: check.ForeignName, away: "foreign"},
		"file of no name of ours in ledger/":     {plant: file("ledger/x", 0), word: check.ForeignName, away: "foreign"},
		"file in owners/":                        {plant: file("owners/me", 0), word: check.ForeignName, away: "foreign"},
		"pipe in queue/": {plant: func(t *testing.T, o *office) string {
			must(t, unix.Mkfifo(o.path("queue/12-5"), 0o600))
			return "queue/12-5"
		}, word: check.ForeignName, away: "foreign"},
		"directory where a message belongs": {plant: func(t *testing.T, o *office) string {
			must(t, os.Mkdir(o.path("router/12"), 0o755), os.WriteFile(o.path("router/12/x"), nil, 0o600))
			return "router/12"
		}, word: check.ForeignName, away: "foreign"},
		"broken symbolic link in freezer/": {plant: func(t *testing.T, o *office) string {
			must(t, os.Symlink("/nowhere", o.path("freezer/12.x")))
			return "freezer/12.x"
		}, word: check.ForeignName, away: "foreign"},
		"link to a specification": {plant: func(t *testing.T, o *office) string {
			must(t, os.Symlink("12-5", o.path("transport/13-5")))
			return "transport/13-5"
		}, word: check.ForeignName, away: "foreign"},
		"directory in a hash directory": {plant: func(t *testing.T, o *office) string {
			must(t, os.MkdirAll(o.path("queue/A/B/C"), 0o750))
			return "queue/A/B/C"
		}, word: check.ForeignName, away: "foreign"},
		"public/ closed to others": {plant: func(t *testing.T, o *office) string {
			must(t, os.Chmod(o.path("public"), 0o755))
			return "public/"
		}, word: check.WrongMode},
		"router/ without the sticky bit": {plant: func(t *testing.T, o *office) string {
			must(t, os.Chmod(o.path("router"), 0o777))
			return "router/"
		}, word: check.WrongMode},
		"transport/ open to all": {plant: func(t *testing.T, o *office) string {
			must(t, os.Chmod(o.path("transport"), 0o777))
			return "transport/"
		}, word: check.WrongMode},
		"hash directory open to all": {plant: func(t *testing.T, o *office) string {
			must(t, os.Mkdir(o.path("queue/A"), 0o755), os.Chmod(o.path("queue/A"), 0o777))
			return "queue/A/"
		}, word: check.WrongMode},
	}
}

// lostPieces are mail of which something is missing, or there twice.
func lostPieces() map[string]planted {
	queued := func(change func(t *testing.T, o *office, name string, off []int64)) func(t *testing.T, o *office) string {
		return func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com", "b@a.example.com")
			change(t, o, name, off)
			return "transport/" + name
		}
	}
	return map[string]planted{
		"lost bytes in public/": {plant: func(t *testing.T, o *office) string {
			o.write(t, "public/x", "comment octets 0000000000009999\n"+plainMail)
			must(t, os.Chmod(o.path("public/x"), 0o700))
			o.age(t, "public/x", 2*time.Minute)
			return "public/x"
		}, word: check.Incomplete, away: "incomplete"},
		"report that nobody names": {plant: func(t *testing.T, o *office) string {
			o.write(t, "public/report.77.dn0kpsb1upkv.1", plainMail)
			o.age(t, "public/report.77.dn0kpsb1upkv.1", 2*time.Hour)
			return "public/report.77.dn0kpsb1upkv.1"
		}, word: check.OrphanReport, left: true},
		"message gone": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) { must(t, os.Remove(o.path("queue/"+name))) }),
			word: check.MessageGone, away: "no-message"},
		"unreadable line": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) {
			b, err := os.ReadFile(o.path("transport/" + name))
			must(t, err)
			o.write(t, "transport/"+name, string(b)+"r  late recipient\n")
		}), word: check.BadSpec, away: "syntax"},
		"newer format": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) {
			o.write(t, "transport/"+name, "@ 0x00000087\n")
		}), word: check.UnknownFormat, left: true},
		"message cut off by hand": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) {
			must(t, os.Truncate(o.path("queue/"+name), 20))
		}), word: check.Mismatch, away: "mismatch"},
		"specification cut off": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) {
			must(t, os.Truncate(o.path("transport/"+name), 100))
		}), word: check.CutSpec, left: true},
		"both renamed by hand": {plant: func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			o.rename(t, "queue/"+name, "queue/7-7")
			o.rename(t, "transport/"+name, "transport/7-7")
			return "transport/7-7"
		}, word: check.Misnumbered},
		"only the line in the specification is another": {plant: queued(func(t *testing.T, o *office, name string, _ []int64) {
			b, err := os.ReadFile(o.path("transport/" + name))
			must(t, err)
			b, err = workspec.Renumber(b, "7-7")
			must(t, err, os.WriteFile(o.path("transport/"+name), b, 0o600))
		}), word: check.OtherNumber},
		"the same name at another hash depth": {plant: func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			n, _ := postoffice.ParseName(name)
			deep := "queue/" + postoffice.HashDir(n.Ino, 1) + "/" + name
			must(t, os.MkdirAll(filepath.Dir(o.path(deep)), 0o750))
			o.write(t, deep, strings.Replace(plainMail, "body", "other", 1))
			return deep
		}, word: check.Double},
		"one file in router/ and queue/": {plant: func(t *testing.T, o *office) string {
			a, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			must(t, os.Link(o.path("queue/"+name), o.path(a.Name)))
			return a.Name
		}, word: check.Duplicate, away: "duplicate"},
		"one file in router/ and queue/, and a copy of it": {plant: func(t *testing.T, o *office) string {
			a, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			b, err := os.ReadFile(o.path("queue/" + name))
			must(t, err, os.Link(o.path("queue/"+name), o.path(a.Name)))
			o.write(t, "router/7", string(b))
			info, err := os.Stat(o.path("queue/" + name))
			must(t, err, os.Chtimes(o.path("router/7"), info.ModTime(), info.ModTime()))
			return a.Name
		}, word: check.Duplicate, away: "duplicate"},
		"one file in deferred/ twice": {plant: func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			must(t, o.claim(t, a).Defer("x"), os.Link(o.path("deferred/"+strconv.FormatUint(a.ID.Ino, 10)+".x"), o.path("deferred/"+strconv.FormatUint(a.ID.Ino, 10)+".y")))
			return "deferred/" + strconv.FormatUint(a.ID.Ino, 10) + ".y"
		}, word: check.Duplicate, away: "duplicate"},
		"message copied by cp under another name": {plant: func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			b, err := os.ReadFile(o.path(a.Name))
			must(t, err)
			o.write(t, "router/7", string(b))
			return "router/7"
		}, word: check.ContentCopy, left: true},
		"message caught twice by a copy under load": {plant: func(t *testing.T, o *office) string {
			a, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			b, err := os.ReadFile(o.path("queue/" + name))
			must(t, err)
			// The copy has the number that its original had, and its time.
			o.write(t, a.Name, string(b))
			info, err := os.Stat(o.path("queue/" + name))
			must(t, err, os.Chtimes(o.path(a.Name), info.ModTime(), info.ModTime()))
			return a.Name
		}, word: check.ContentCopy, away: "copy"},
	}
}

// standing are mail that does not move on.
func standing() map[string]planted {
	dead := 999997
	queued := func(change func(t *testing.T, o *office, name string, off []int64)) func(t *testing.T, o *office) string {
		return func(t *testing.T, o *office) string {
			_, name, off := o.queue(t, "a@a.example.com")
			change(t, o, name, off)
			return "transport/" + name
		}
	}
	return map[string]planted{
		"old mail in router/ beside a live router": {plant: func(t *testing.T, o *office) string {
			return o.submit(t, plainMail).Name
		}, word: check.NoProgress, left: true, args: []string{"--stuck", "0"}},
		"no first attempt beside a live scheduler": {plant: queued(func(*testing.T, *office, string, []int64) {}),
			word: check.NoProgress, left: true, args: []string{"--stuck", "0"}},
		"due for long": {plant: queued(func(t *testing.T, o *office, name string, off []int64) {
			o.event(t, name, workspec.DeferredEvent(time.Now(), off[0], 3, time.Now().Add(-2*time.Hour), status.NoAnswer, "no answer"))
		}), word: check.NoProgress, left: true},
		"older than the default expiry": {plant: func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			o.age(t, "queue/"+name, 4*24*time.Hour)
			return "transport/" + name
		}, word: check.TooOld, left: true},
		"older than was asked for": {plant: func(t *testing.T, o *office) string {
			_, name, _ := o.queue(t, "a@a.example.com")
			o.age(t, "queue/"+name, 2*time.Hour)
			return "transport/" + name
		}, word: check.TooOld, left: true, args: []string{"--older", "1h"}},
		"held for long": {plant: func(t *testing.T, o *office) string {
			a := o.submit(t, plainMail)
			must(t, o.claim(t, a).Freeze("policy"))
			name := "freezer/" + strconv.FormatUint(a.ID.Ino, 10) + ".policy"
			o.age(t, name, 4*24*time.Hour)
			return name
		}, word: check.TooOld, left: true},
		"locked by a number that is not here": {plant: queued(func(t *testing.T, o *office, name string, off []int64) {
			other := exec.Command("sleep", "1000")
			other.Dir = "/"
			must(t, other.Start())
			t.Cleanup(func() { other.Process.Kill(); other.Wait() })
			if other.Process.Pid > postoffice.MaxOwner {
				t.Skip("this process's number does not fit a lock")
			}
			o.tag(t, name, off[0], workspec.LockBytes(other.Process.Pid))
		}), word: check.ForeignLock},
		"locked by a dead agent beside a scheduler": {plant: queued(func(t *testing.T, o *office, name string, off []int64) {
			o.deadOwner(t, dead, "ta-smtp")
			o.tag(t, name, off[0], workspec.LockBytes(dead))
			o.age(t, "transport/"+name, 2*time.Hour)
		}), word: check.DeadLock, left: true},
	}
}

// A25, A7, K10, and the rows of docs/check.md: each problem is found at its file
// under its word, alone; the repair does with it what the page says, and nothing is
// lost by it.
func TestEveryProblemIsFoundAndMended(t *testing.T) {
	for group, cases := range map[string]map[string]planted{"names": misshapen(), "pieces": lostPieces(), "standing": standing()} {
		for name, c := range cases {
			t.Run(group+"/"+name, func(t *testing.T) {
				o := newOffice(t)
				o.owner = o.run(t, "router")
				scheduler, err := o.Owners.Exclusive("scheduler")
				must(t, err)
				if found, code := problems(t, c.args...); code != 0 {
					t.Fatalf("before: got %v", found)
				}
				file := c.plant(t, o)
				found, code := problems(t, c.args...)
				if !slices.Contains(found[file], string(c.word)) || code != int(check.SeverityOf(c.word)) || len(found) > 1 && c.word != check.Duplicate {
					t.Fatalf("got %v and exit code %d, want %s: %s alone", found, code, file, c.word)
				}
				must(t, scheduler())
				bytes := mailBytes(t, o)
				steps := mended(t, o)
				if (len(steps) == 0) != c.left {
					t.Errorf("got %+v, want steps: %v", steps, !c.left)
				}
				if after := mailBytes(t, o); after < bytes {
					t.Errorf("%d bytes of mail are left of %d", after, bytes)
				}
				away, err := filepath.Glob(o.path("quarantine/*." + c.away + "*"))
				must(t, err)
				if (c.away != "") != (len(away) > 0) {
					t.Errorf("quarantine/ holds %q, want one that ends in %q", away, c.away)
				}
				release, err := o.Owners.Exclusive("scheduler")
				must(t, err)
				defer release()
				if found, _ := problems(t, c.args...); slices.Contains(found[file], string(c.word)) != c.left {
					t.Errorf("after the repair: got %v", found)
				}
			})
		}
	}
}

// mailBytes counts the bytes of everything but specifications and owners' files.
func mailBytes(t *testing.T, o *office) int64 {
	t.Helper()
	var sum int64
	for _, rel := range o.listing(t) {
		info, err := os.Lstat(o.path(rel))
		must(t, err)
		if info.Mode().IsRegular() && !strings.Contains(rel, "transport") && !strings.HasPrefix(rel, ".") {
			sum += info.Size()
		}
	}
	return sum
}

// Names that our programs make beside the way are no problems, and no repair takes
// them away.
func TestNamesBesideTheWayAreExplained(t *testing.T) {
	o := newOffice(t)
	o.owner = o.run(t, "router")
	release, err := o.Owners.Exclusive("scheduler")
	must(t, err)
	a, name, _ := o.queue(t, "a@a.example.com")
	names := map[string]string{
		"transport/look." + name:               "note",
		"transport/.copy." + name:              "copy",
		"router/.tries.12":                     "tries",
		"removed/" + a.ID.String() + ".queue":  "removed",
		"removed/" + a.ID.String() + ".spec":   "removed",
		"removed/" + a.ID.String() + ".router": "removed",
		"ledger/journal":                       "ledger",
		"ledger/journal.3":                     "ledger",
		"ledger/base":                          "ledger",
		".pid.scheduler":                       "lock",
	}
	for n := range names {
		if n != ".pid.scheduler" {
			o.write(t, n, "")
		}
	}
	must(t, unix.Mknod(o.path(".router.notify"), unix.S_IFSOCK|0o600, 0))
	names[".router.notify"] = "socket"
	for n, state := range names {
		if f, code := checked(t, n); f.State != state || code != 0 {
			t.Errorf("%s: got %+v and exit code %d, want %s", n, f, code, state)
		}
	}
	must(t, release())
	if steps, code := mendSteps(t, "--repair"); len(steps) > 0 || code != 0 {
		t.Errorf("repair: got %+v", steps)
	}
}
