package repair_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/repair"
	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// diskOffice returns a postoffice on a disk of cutfs, as a restore leaves it: nothing
// runs, every name is another file's number, and foreign things are about.
func diskOffice(t *testing.T, model cutfs.Model) (*cutfs.FS, *postoffice.PostOffice) {
	t.Helper()
	disk := cutfs.New()
	disk.SetModel(model)
	po := diskOpen(t, disk, true)
	must := func(err error) {
		t.Helper()
		assert.Must(t, err)
	}
	owner, err := po.Owners.Take("router")
	must(err)
	accept := func(subject string) postoffice.Accepted {
		d, err := po.Submissions.NewDraft("submit")
		must(err)
		_, err = fmt.Fprintf(d, "from <s@client.example>\nto <%s@a.example>\nenv-end\nSubject: %s\n\nbody\n", subject, subject)
		must(err)
		a, err := d.Commit()
		must(err)
		return a
	}
	claim := func(subject string) *postoffice.Claim {
		a := accept(subject)
		c, err := po.Router.Claim(owner, strings.TrimPrefix(a.Name, "router/"))
		must(err)
		return c
	}
	var pairs, inRouter, aside []string
	for i := range 3 {
		subject := fmt.Sprintf("pair%d", i)
		c := claim(subject)
		must(diskSpec(po, c, subject))
		name, err := c.HandOver()
		must(err)
		pairs = append(pairs, name)
		inRouter = append(inRouter, accept(fmt.Sprintf("router%d", i)).Name)
		c = claim(fmt.Sprintf("deferred%d", i))
		must(c.Defer("routes"))
		aside = append(aside, fmt.Sprintf("deferred/%d.routes", c.ID.Ino))
	}
	spin := func(names []string) {
		must(disk.Rename(names[0], names[0]+"x"))
		for i := 1; i < len(names); i++ {
			must(disk.Rename(names[i], names[i-1]))
		}
		must(disk.Rename(names[0]+"x", names[len(names)-1]))
	}
	for _, dir := range []string{"queue/", "transport/"} {
		names := slices.Clone(pairs)
		for i := range names {
			names[i] = dir + names[i]
		}
		spin(names)
	}
	spin(inRouter)
	spin(aside)
	must(disk.Mkdir("queue/foreign", 0o755))
	f, err := disk.Open("transport/foreign", os.O_WRONLY|os.O_CREATE, 0o600)
	must(err)
	must(f.Close())
	// It was restored yesterday: all of it is on the disk.
	disk.WriteBackAfter(0)
	must(disk.SyncDir("."))
	disk.Kill()
	next := disk.Restart(cutfs.KeepAll())
	return next, diskOpen(t, next, false)
}

func diskOpen(t *testing.T, disk *cutfs.FS, fresh bool) *postoffice.PostOffice {
	t.Helper()
	if fresh {
		assert.Must(t, postoffice.Init(disk))
	}
	po, err := postoffice.Open(postoffice.Config{FS: disk, HashLevels: 1})
	assert.Must(t, err)
	return po
}

// diskSpec writes the specification of a message with two recipients, of which the
// first has it.
func diskSpec(po *postoffice.PostOffice, c *postoffice.Claim, subject string) error {
	work, err := c.CreateWork()
	if err != nil {
		return err
	}
	w := workspec.NewWriter(work)
	w.Preamble(&workspec.Spec{Message: c.Name(), BodyOffset: c.Info.Size - int64(len("body\n"))})
	rcpt := func(tag workspec.Tag, who string) workspec.Recipient {
		return workspec.Recipient{Tag: tag, Channel: "smtp", Host: "a.example", Address: who, Privilege: "1"}
	}
	w.Group(workspec.Sender{Channel: "local", Host: "-", Address: "s@client.example", Privilege: "1"},
		[]workspec.Recipient{rcpt(workspec.TagOK, subject+"-done"), rcpt(workspec.TagToDo, subject)}, []byte("Subject: "+subject+"\n"))
	return errors.Join(w.Close(), work.Sync(), work.Close())
}

// onDisk is which messages stand where, by their subjects: those in queue/ with the
// open recipients of their specification.
func onDisk(t *testing.T, disk *cutfs.FS) map[string]string {
	t.Helper()
	found := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := disk.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		assert.Must(t, err)
		for _, e := range entries {
			name := dir + "/" + e.Name
			switch {
			case e.Type.IsDir():
				walk(name)
			default:
				text := diskRead(t, disk, name)
				_, subject, ok := strings.Cut(text, "\nSubject: ")
				if !ok || strings.HasPrefix(text, "@") {
					continue
				}
				subject, _, _ = strings.Cut(subject, "\n")
				at := strings.SplitN(name, "/", 2)[0]
				if at == "queue" {
					at += diskOpenRecipients(t, disk, "transport"+strings.TrimPrefix(name, "queue"))
				}
				found[subject] += at
			}
		}
	}
	for _, dir := range []string{"router", "queue", "deferred", "quarantine"} {
		walk(dir)
	}
	return found
}

func diskOpenRecipients(t *testing.T, disk *cutfs.FS, spec string) string {
	if _, err := disk.Stat(spec); err != nil {
		return " without specification"
	}
	s, err := workspec.Parse([]byte(diskRead(t, disk, spec)))
	if err != nil || !s.Complete {
		return fmt.Sprint(" with a bad specification ", err)
	}
	text := ""
	for _, g := range s.Groups {
		for _, r := range g.Recipients {
			if r.Tag == workspec.TagToDo {
				text += " " + r.Address
			}
		}
	}
	return text
}

func diskRead(t *testing.T, disk *cutfs.FS, name string) string {
	t.Helper()
	info, err := disk.Stat(name)
	assert.Must(t, err)
	f, err := disk.Open(name, os.O_RDONLY, 0)
	assert.Must(t, err)
	defer f.Close()
	b := make([]byte, info.Size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		t.Fatal(err)
	}
	return string(b)
}

// K7: a repair is stopped after each of its operations, by a kill or a loss of power.
// The next repair ends it; and if daemons start first, they have every message once,
// with the recipients that were open.
func TestRepairCanBeStoppedAnywhere(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for i := range 3 {
		want[fmt.Sprintf("pair%d", i)] = fmt.Sprintf("queue pair%d", i)
		want[fmt.Sprintf("router%d", i)] = "router"
		want[fmt.Sprintf("deferred%d", i)] = "deferred"
	}
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(model.String(), func(t *testing.T) {
			t.Parallel()
			stopEverywhere(t, model, want)
		})
	}
}

// stopEverywhere does that on one kind of file system.
func stopEverywhere(t *testing.T, model cutfs.Model, want map[string]string) {
	t.Helper()
	whole, po := diskOffice(t, model)
	whole.CutAfter(1 << 30)
	if _, err := repair.Do(po, time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	settled(t, "without a cut", whole, want)
	ops := whole.Ops()
	if ops < 30 {
		t.Fatalf("only %d operations", ops)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range ops {
		for _, torn := range []bool{false, true} {
			disk, po := diskOffice(t, model)
			if torn {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			if _, err := repair.Do(po, time.Now(), nil); !disk.Dead() {
				t.Fatalf("cut %d: the repair ended before it: %v", n, err)
			}
			losses := disk.Losses()
			if len(losses) > 6 {
				random.Shuffle(len(losses)-1, func(i, j int) { losses[i+1], losses[j+1] = losses[j+1], losses[i+1] })
				losses = losses[:6]
			}
			for _, loss := range losses {
				name := fmt.Sprintf("cut after %d (torn %v), %v", n, torn, loss)
				if again := disk.Restart(loss); true {
					if _, err := repair.Do(diskOpen(t, again, false), time.Now(), nil); err != nil {
						t.Errorf("%s: repair again: %v", name, err)
					}
					settled(t, name+", repair again", again, want)
				}
				started := disk.Restart(loss)
				daemons(t, diskOpen(t, started, false))
				if got := onDisk(t, started); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, daemons first: got %v\nwant %v", name, got, want)
				}
				if _, err := repair.Do(diskOpen(t, started, false), time.Now(), nil); err != nil {
					t.Errorf("%s: repair after daemons: %v", name, err)
				}
				settled(t, name+", repair after daemons", started, want)
				if t.Failed() {
					t.Fatalf("the disk's operations:\n%s\nthen\n%s", disk.Log(), started.Log())
				}
			}
		}
	}
}

// settled wants every message where it belongs, under the number of its inode, and
// nothing left to do.
func settled(t *testing.T, name string, disk *cutfs.FS, want map[string]string) {
	t.Helper()
	if got := onDisk(t, disk); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v\nwant %v", name, got, want)
	}
	steps, err := repair.Plan(diskOpen(t, disk, false), time.Now(), nil)
	if err != nil || len(steps) > 0 {
		t.Errorf("%s: still to do: %+v, %v", name, steps, err)
	}
}

// daemons does what router and scheduler do at their start with files of the dead.
func daemons(t *testing.T, po *postoffice.PostOffice) {
	t.Helper()
	for range 3 {
		if _, err := po.Router.Recover(postoffice.RouterRecovery{Complete: workspec.Complete, Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
		list, err := po.Queue.Recover(time.Now())
		assert.Must(t, err)
		for _, r := range list {
			if r.Action == postoffice.Completed {
				assert.Must(t, po.Queue.Finish(r.Name))
			}
		}
	}
}
