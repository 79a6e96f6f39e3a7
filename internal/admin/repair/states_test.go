package repair_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// dead is the owner number of a process that is dead.
const dead = 999997

// planted is something in a postoffice, with what check finds there and a repair does.
type planted struct {
	plant func(t *testing.T, o *office.Office) (file string)
	state string        // "": any
	word  check.Problem // "": none
	// repair is what a repair without daemons does about it: "" nothing, "mend", or the last
	// word of the name that it gets in quarantine/.
	repair string
	limits check.Options
}

func is(plant func(t *testing.T, o *office.Office) string, state string, word check.Problem, repair string) planted {
	return planted{plant: plant, state: state, word: word, repair: repair}
}

// within sets the limits of the check.
func (p planted) within(limits check.Options) planted {
	p.limits = limits
	return p
}

// file plants a file with a text.
func file(name, text string, age time.Duration) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		o.Write(t, name, text)
		o.Age(t, name, age)
		return name
	}
}

// executable plants a file that was accepted where users submit.
func executable(name, text string, age time.Duration) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		o.Write(t, name, text)
		assert.Must(t, os.Chmod(o.Path(name), 0o700))
		o.Age(t, name, age)
		return name
	}
}

// do plants something by a call about a name.
func do(name string, call func(path string) error) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		assert.Must(t, call(o.Path(name)))
		return name
	}
}

// mode plants a directory with a mode.
func mode(dir string, mode os.FileMode) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		assert.Must(t, os.MkdirAll(o.Path(dir), 0o755), os.Chmod(o.Path(dir), mode))
		return dir
	}
}

func inode(a postoffice.Accepted) string { return strconv.FormatUint(a.ID.Ino, 10) }

// submitted plants an accepted message.
func submitted(text string) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string { return o.Submit(t, text).Name }
}

// claimed plants a message that a router has claimed, changed.
func claimed(change func(t *testing.T, o *office.Office, c *postoffice.Claim) (file string)) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		return change(t, o, o.Claim(t, o.Submit(t, office.PlainMail)))
	}
}

// aside plants a message that was put aside as DIR/INODE and the end of a name.
func aside(dir, end string, put func(c *postoffice.Claim) error, age time.Duration) func(t *testing.T, o *office.Office) string {
	return claimed(func(t *testing.T, o *office.Office, c *postoffice.Claim) string {
		name := dir + "/" + strconv.FormatUint(c.ID.Ino, 10) + end
		assert.Must(t, put(c))
		if age > 0 {
			o.Age(t, name, age)
		}
		return name
	})
}

// orphaned plants the files of a dead router.
func orphaned(dir string, work bool) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		a := o.Submit(t, office.PlainMail)
		o.DeadOwner(t, dead, "router")
		base := inode(a) + "-" + strconv.Itoa(dead)
		o.Rename(t, a.Name, dir+"/"+base)
		if !work {
			return dir + "/" + base
		}
		o.Write(t, dir+"/.."+base, "@ 7\n")
		return dir + "/.." + base
	}
}

// queued plants a message with two recipients, changed.
func queued(change func(t *testing.T, o *office.Office, name string, off []int64)) func(t *testing.T, o *office.Office) string {
	return func(t *testing.T, o *office.Office) string {
		_, name, off := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
		if change != nil {
			change(t, o, name, off)
		}
		return "transport/" + name
	}
}

// spec plants a message with another text as its specification.
func spec(change func(text string) string) func(t *testing.T, o *office.Office) string {
	return queued(func(t *testing.T, o *office.Office, name string, _ []int64) {
		o.Write(t, "transport/"+name, change(o.Read(t, "transport/"+name)))
	})
}

// events plants a message with events about its recipients.
func events(about ...func(off int64) workspec.Event) func(t *testing.T, o *office.Office) string {
	return queued(func(t *testing.T, o *office.Office, name string, off []int64) {
		for _, e := range about {
			o.Event(t, name, e(off[0]))
		}
	})
}

func deferred(next time.Duration) func(off int64) workspec.Event {
	return func(off int64) workspec.Event {
		return workspec.DeferredEvent(time.Now(), off, 3, time.Now().Add(next), status.NoAnswer, "no answer")
	}
}

func event(word string) func(off int64) workspec.Event {
	return func(off int64) workspec.Event {
		return workspec.Event{Time: time.Now(), Recipient: off, Event: word, Text: "no clause"}
	}
}

// tagged plants a message with the tag of all its recipients; gone: its file is not there.
func tagged(b []byte, gone bool) func(t *testing.T, o *office.Office) string {
	return queued(func(t *testing.T, o *office.Office, name string, off []int64) {
		for i := range off {
			if b != nil {
				o.Tag(t, name, off[i], b)
			}
		}
		if gone {
			assert.Must(t, os.Remove(o.Path("queue/"+name)))
		}
	})
}

// beforeRouting are files in public/ and router directories, and foreign names everywhere.
func beforeRouting() map[string]planted {
	return map[string]planted{
		"written now": is(file("public/x", "from <a@b>\n", 0), view.StateWriting, "", ""),
		"written by a live process": is(func(t *testing.T, o *office.Office) string {
			d, err := o.Submissions.NewDraft("test")
			assert.Must(t, err)
			t.Cleanup(func() { d.Abort() })
			o.Age(t, "public/"+d.Name(), 3*time.Hour)
			return "public/" + d.Name()
		}, view.StateWriting, "", ""),
		"left unfinished":                        is(file("public/x", "from <a@b>\n", 3*time.Hour), view.StateWriting, check.Unfinished, "unfinished"),
		"old hidden file in public/":             is(file("public/.x", "x", 2*time.Hour), "", check.Unfinished, "unfinished"),
		"accepted, submitter dead":               is(executable("public/x", office.PlainMail, 0), view.StateAccepted, "", ""),
		"accepted, bytes lost":                   is(executable("public/x", "comment octets 0000000000009999\n"+office.PlainMail, 2*time.Minute), view.StateAccepted, check.Incomplete, "incomplete"),
		"symbolic link in public/":               is(do("public/l", func(path string) error { return os.Symlink("/etc/passwd", path) }), "unknown", check.ForeignName, "foreign"),
		"report that no specification names":     is(file("public/report.77.dn0kpsb1upkv.1", office.PlainMail, 2*time.Hour), "", check.OrphanReport, ""),
		"waits for a router":                     is(submitted(office.PlainMail), view.StateAccepted, "", ""),
		"waits long beside a live router":        is(submitted(office.PlainMail), view.StateAccepted, check.NoProgress, "").within(check.Options{Stuck: 1}),
		"broken envelope":                        is(submitted("from <a b>\nto x\nenv-end\n"), view.StateAccepted, check.BrokenMessage, ""),
		"restored under a foreign number":        is(file("router/4711", office.PlainMail, 0), view.StateAccepted, check.Misnumbered, ""),
		"young foreign file in router/":          is(file("router/core", "x", 0), "unknown", check.ForeignName, ""),
		"old foreign file in router/":            is(file("router/core", "x", 2*time.Hour), "unknown", check.ForeignName, "foreign"),
		"file in the postoffice's own directory": is(file("core", "x", 0), "unknown", check.ForeignName, ""),
		"foreign file in queue/":                 is(file("queue/x.bak", "x", 0), "unknown", check.ForeignName, "foreign"),
		"hidden file in transport/":              is(file("transport/.12-5.swp", "x", 0), "unknown", check.ForeignName, "foreign"),
		"two-dot file in deferred/":              is(file("deferred/..x", "x", 0), "unknown", check.ForeignName, "foreign"),
		"foreign file in postman/":               is(file("postman/note", "x", 0), "unknown", check.ForeignName, "foreign"),
		"foreign file in removed/":               is(file("removed/x", "x", 0), "unknown", check.ForeignName, "foreign"),
		"foreign file in ledger/":                is(file("ledger/x", "x", 0), "unknown", check.ForeignName, "foreign"),
		"foreign file in owners/":                is(file("owners/me", "x", 0), "unknown", check.ForeignName, "foreign"),
		"dead owner":                             is(file("owners/"+strconv.Itoa(dead), "router pid 1\n", 0), "dead", "", ""),
		"pipe in queue/":                         is(do("queue/12-5", func(path string) error { return unix.Mkfifo(path, 0o600) }), "unknown", check.ForeignName, "foreign"),
		"directory where a message belongs":      is(do("router/12", func(path string) error { return os.MkdirAll(path+"/x", 0o755) }), "unknown", check.ForeignName, "foreign"),
		"broken symbolic link in freezer/":       is(do("freezer/12.x", func(path string) error { return os.Symlink("/nowhere", path) }), "unknown", check.ForeignName, "foreign"),
		"link to a specification":                is(do("transport/13-5", func(path string) error { return os.Symlink("12-5", path) }), "unknown", check.ForeignName, "foreign"),
		"directory in a hash directory":          is(do("queue/A/B/C", func(path string) error { return os.MkdirAll(path, 0o750) }), "unknown", check.ForeignName, "foreign"),
		"directory of two letters in transport/": is(do("transport/AB", func(path string) error { return os.Mkdir(path, 0o755) }), "unknown", check.ForeignName, "foreign"),
		"public/ closed to others":               is(mode("public/", 0o755), "directory", check.WrongMode, "mend"),
		"router/ without the sticky bit":         is(mode("router/", 0o777), "directory", check.WrongMode, "mend"),
		"transport/ open to all":                 is(mode("transport/", 0o777), "directory", check.WrongMode, "mend"),
		"hash directory open to all":             is(mode("queue/A/", 0o777), "hash directory", check.WrongMode, "mend"),
		"alarms that the scheduler wrote":        is(file(postoffice.AlarmFile, "too-old\n", 0), "alarms", "", ""),
		"suspensions of an earlier version":      is(file(postoffice.EarlierSuspensions, "zmailer-suspensions 1\n", 0), "suspensions", "", ""),
		"a token of zmctl web":                   is(file(".web.token", "a-token\n", 0), "of zmctl web", "", ""),
		"a log":                                  is(file(postoffice.LogFile+".1", "x\n", 0), "log", "", ""),
	}
}

// routing are messages that a router has, or had.
func routing() map[string]planted {
	return map[string]planted{
		"claimed": is(claimed(func(_ *testing.T, _ *office.Office, c *postoffice.Claim) string { return "router/" + c.Name() }),
			view.StateClaimed, "", ""),
		"work file of a live router": is(claimed(func(t *testing.T, _ *office.Office, c *postoffice.Claim) string {
			w, err := c.CreateWork()
			assert.Must(t, err, w.Close())
			return "router/.." + c.Name()
		}), "work file", "", ""),
		"being handed over": is(claimed(func(t *testing.T, o *office.Office, c *postoffice.Claim) string {
			o.Rename(t, "router/"+c.Name(), "queue/"+c.Name())
			return "queue/" + c.Name()
		}), view.StateHandedOver, "", ""),
		"claimed by a dead router":               is(orphaned("router", false), view.StateClaimed, check.StaleClaim, ""),
		"handed over by a dead router":           is(orphaned("queue", false), view.StateHandedOver, check.NoSpec, ""),
		"work file beside a dead router's claim": is(orphaned("router", true), "work file", check.StaleWork, ""),
		"work file of a dead router": is(func(t *testing.T, o *office.Office) string {
			o.DeadOwner(t, dead, "router")
			return file("router/..12-"+strconv.Itoa(dead), "@ 7\n", 0)(t, o)
		}, "work file", check.StaleWork, ""),
		"set aside by the router":        is(aside("deferred", ".aliases", func(c *postoffice.Claim) error { return c.Defer("aliases") }, 0), view.StateDeferred, "", ""),
		"set aside for crashing routers": is(aside("deferred", ".crash", func(c *postoffice.Claim) error { return c.Defer(postoffice.WhyCrash) }, 0), view.StateDeferred, check.WaitsForPerson, ""),
		"held by policy":                 is(aside("freezer", ".size", func(c *postoffice.Claim) error { return c.Freeze("size") }, 0), view.StateFrozen, "", ""),
		"held for long":                  is(aside("freezer", ".size", func(c *postoffice.Claim) error { return c.Freeze("size") }, 4*24*time.Hour), view.StateFrozen, check.TooOld, ""),
		// M12
		"only copy": is(aside("postman", "", (*postoffice.Claim).ToPostman, 0), view.StateSetAside, check.WaitsForPerson, ""),
		"soft copy": is(aside("postman", "_loop", func(c *postoffice.Claim) error { return c.SoftCopy("loop") }, 0), view.StateCopy, "", ""),
	}
}

// routed are messages in queue/ and transport/.
func routed() map[string]planted {
	final := workspec.TagBytes(workspec.FormatOurs, workspec.TagOK)
	return map[string]planted{
		"waits for its first attempt": is(queued(nil), view.StateQueued, "", ""),
		"waits long for its first":    is(queued(nil), view.StateQueued, check.NoProgress, "").within(check.Options{Stuck: 1}),
		"due and not tried":           is(events(deferred(-2*time.Hour)), view.StateQueued, check.NoProgress, ""),
		"due in a while":              is(events(deferred(time.Minute)), view.StateQueued, "", ""),
		"all final":                   is(tagged(final, false), view.StateQueued, "", ""),
		// Z8
		"nothing serves it": is(events(event(workspec.EventUnserved)), view.StateQueued, check.Unserved, ""),
		"served again":      is(events(event(workspec.EventUnserved), event(workspec.EventServed)), view.StateQueued, "", ""),
		"locked by a dead agent beside a scheduler": is(queued(func(t *testing.T, o *office.Office, name string, off []int64) {
			o.DeadOwner(t, dead, "ta-smtp")
			o.Tag(t, name, off[0], workspec.LockBytes(dead))
			o.Age(t, "transport/"+name, 2*time.Hour)
		}), view.StateQueued, check.DeadLock, ""),
		"locked by the number of a process elsewhere": is(queued(func(t *testing.T, o *office.Office, name string, off []int64) {
			other := exec.Command("sleep", "1000")
			other.Dir = "/"
			assert.Must(t, other.Start())
			t.Cleanup(func() { other.Process.Kill(); other.Wait() })
			if other.Process.Pid > postoffice.MaxOwner {
				t.Skip("this process's number does not fit a lock")
			}
			o.Tag(t, name, off[0], workspec.LockBytes(other.Process.Pid))
		}), view.StateQueued, check.ForeignLock, "mend"),
		"older than the default expiry": is(queued(func(t *testing.T, o *office.Office, name string, _ []int64) { o.Age(t, "queue/"+name, 4*24*time.Hour) }),
			view.StateQueued, check.TooOld, ""),
		"older than was asked for": is(queued(func(t *testing.T, o *office.Office, name string, _ []int64) { o.Age(t, "queue/"+name, 2*time.Hour) }),
			view.StateQueued, check.TooOld, "").within(check.Options{Older: time.Hour}),
		"a prepared report": is(func(t *testing.T, o *office.Office) string {
			events(func(off int64) workspec.Event {
				return workspec.Event{Time: time.Now(), Event: workspec.EventReport, Attrs: []workspec.Attr{
					{Key: "file", Value: "report"}, {Key: "kind", Value: "failed"}, {Key: "rcpts", Value: strconv.FormatInt(off, 10)}}}
			})(t, o)
			return file("public/report", office.PlainMail, 0)(t, o)
		}, "prepared report", "", ""),
		"specification cut off": is(spec(func(text string) string { return text[:100] }), view.StateQueued, check.CutSpec, ""),
		"specification corrupt": is(spec(func(string) string { return "@ \x00\x1b[2J\n" }), view.StateQueued, check.BadSpec, "syntax"),
		"unreadable line in it": is(spec(func(text string) string { return text + "r  late recipient\n" }), view.StateQueued, check.BadSpec, "syntax"),
		"specification of M17":  is(spec(func(string) string { return "@ 0x00000087\n" }), view.StateQueued, check.UnknownFormat, ""),
		"message gone":          is(tagged(nil, true), view.StateFinishing, check.MessageGone, "no-message"),
		"finishing":             is(tagged(final, true), view.StateFinishing, "", ""),
		"message cut off": is(queued(func(t *testing.T, o *office.Office, name string, _ []int64) {
			assert.Must(t, os.Truncate(o.Path("queue/"+name), 20))
		}), view.StateQueued, check.Mismatch, "mismatch"),
		"number in it is another's": is(spec(func(text string) string { b, _ := workspec.Renumber([]byte(text), "7-7"); return string(b) }), view.StateQueued, check.OtherNumber, "mend"),
		"message restored": is(queued(func(t *testing.T, o *office.Office, name string, _ []int64) {
			o.Write(t, "queue/new", o.Read(t, "queue/"+name))
			o.Rename(t, "queue/new", "queue/"+name)
		}), view.StateQueued, check.Misnumbered, "mend"),
		"both renamed": is(func(t *testing.T, o *office.Office) string {
			renamed(t, o)
			return "transport/7-7"
		}, view.StateQueued, check.Misnumbered, "mend"),
		"rehash not finished": is(queued(func(t *testing.T, o *office.Office, name string, _ []int64) {
			o.Rename(t, "queue/"+name, deep(name))
		}), view.StateQueued, check.HashDepths, ""),
		"the same name at another hash depth": is(func(t *testing.T, o *office.Office) string {
			_, name, _ := o.Enqueue(t, "a@a.example.com")
			assert.Must(t, os.MkdirAll(filepath.Dir(o.Path(deep(name))), 0o750))
			o.Write(t, deep(name), strings.Replace(office.PlainMail, "body", "other", 1))
			return deep(name)
		}, "double", check.Double, "mend"),
	}
}

// twice are messages that are there twice.
func twice() map[string]planted {
	// again plants the message of a pair once more in router/; link: as another name of it.
	again := func(name func(a postoffice.Accepted) string, link, dated bool) func(t *testing.T, o *office.Office) string {
		return func(t *testing.T, o *office.Office) string {
			a, queued, _ := o.Enqueue(t, "a@a.example.com")
			if link {
				assert.Must(t, os.Link(o.Path("queue/"+queued), o.Path(name(a))))
				return name(a)
			}
			o.Write(t, name(a), o.Read(t, "queue/"+queued))
			if dated { // as a copy of a running postoffice: the number and the time of the original
				info, err := os.Stat(o.Path("queue/" + queued))
				assert.Must(t, err, os.Chtimes(o.Path(name(a)), info.ModTime(), info.ModTime()))
			}
			return name(a)
		}
	}
	same := func(a postoffice.Accepted) string { return a.Name }
	other := func(postoffice.Accepted) string { return "router/7" }
	return map[string]planted{
		"one file in router/ and queue/": is(again(same, true, false), "", check.Duplicate, "duplicate"),
		"one file in router/ and queue/, and a copy of it": is(func(t *testing.T, o *office.Office) string {
			name := again(same, true, false)(t, o)
			o.Write(t, "router/7", o.Read(t, name))
			info, err := os.Stat(o.Path(name))
			assert.Must(t, err, os.Chtimes(o.Path("router/7"), info.ModTime(), info.ModTime()))
			return name
		}, "", check.Duplicate, "duplicate"),
		"one file in deferred/ twice": is(func(t *testing.T, o *office.Office) string {
			a, name := o.Put(t, postoffice.Deferred, "x", office.PlainMail)
			assert.Must(t, os.Link(o.Path("deferred/"+name), o.Path("deferred/"+inode(a)+".y")))
			return "deferred/" + inode(a) + ".y"
		}, "", check.Duplicate, "duplicate"),
		"message copied under another name": is(func(t *testing.T, o *office.Office) string {
			o.Write(t, "router/7", o.Read(t, o.Submit(t, office.PlainMail).Name))
			return "router/7"
		}, "", check.ContentCopy, ""),
		"queued message copied under another name": is(again(other, false, false), "", check.ContentCopy, ""),
		"message caught twice by a copy":           is(again(same, false, true), "", check.ContentCopy, "copy"),
	}
}

// deep returns a name in queue/ at hash depth 1.
func deep(name string) string {
	n, _ := postoffice.ParseName(name)
	return "queue/" + postoffice.HashDir(n.Ino, 1) + "/" + name
}

// renamed plants a message whose files have the number 7, and returns the offsets of its
// recipients.
func renamed(t *testing.T, o *office.Office) []int64 {
	t.Helper()
	_, name, off := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
	o.Rename(t, "queue/"+name, "queue/7-7")
	o.Rename(t, "transport/"+name, "transport/7-7")
	return off
}
