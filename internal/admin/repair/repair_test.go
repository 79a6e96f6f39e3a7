package repair_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// problems returns the files with problems, and the findings by file.
func problems(t *testing.T, o *office.Office, limits check.Options) (bad map[string][]check.Problem, all map[string]check.Finding) {
	t.Helper()
	settings, err := config.Load("")
	assert.Must(t, err)
	limits.Settings = settings
	if limits.Stuck == 0 {
		limits.Stuck = time.Hour
	}
	bad, all = map[string][]check.Problem{}, map[string]check.Finding{}
	for _, f := range check.All(o.PostOffice, limits) {
		if all[f.File] = f; f.Severity > check.Fine {
			bad[f.File] = append(bad[f.File], f.Problems...)
		}
	}
	return bad, all
}

// mended plans a repair, which must change nothing, and does it, which must do what was
// planned; then nothing is left to do.
func mended(t *testing.T, o *office.Office) []repair.Step {
	t.Helper()
	before := o.Picture(t)
	planned, err := repair.Plan(o.PostOffice, time.Now(), nil)
	assert.Must(t, err)
	if after := o.Picture(t); after != before {
		t.Errorf("the plan has changed the postoffice:\n%s", cmp.Diff(after, before))
	}
	done, err := repair.Do(o.PostOffice, time.Now(), nil)
	assert.Must(t, err)
	if diff := cmp.Diff(done, planned, cmpopts.IgnoreUnexported(repair.Step{})); diff != "" || left(done) {
		t.Errorf("the repair did other things than it planned, got - want +\n%s", diff)
	}
	if again, err := repair.Plan(o.PostOffice, time.Now(), nil); err != nil || len(again) > 0 {
		t.Errorf("after the repair there is still to do: %+v, %v", again, err)
	}
	return done
}

func left(steps []repair.Step) bool {
	return slices.ContainsFunc(steps, func(s repair.Step) bool { return s.Left != "" })
}

// A25, A7, K10, M17 and the rows of docs/check.md: each state is recognised and each problem
// found at its file, alone; a repair without daemons does with it what the page says, and
// nothing is lost by it.
func TestEveryStateIsFoundAndMended(t *testing.T) {
	for _, cases := range []map[string]planted{beforeRouting(), routing(), routed(), twice()} {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				o := office.New(t)
				o.Routing = o.Run(t, "router")
				scheduler, err := o.Owners.Exclusive("scheduler")
				assert.Must(t, err)
				if bad, _ := problems(t, o, c.limits); len(bad) > 0 {
					t.Fatalf("before: got %v", bad)
				}
				file := c.plant(t, o)
				bad, all := problems(t, o, c.limits)
				if c.state != "" && all[file].State != c.state {
					t.Errorf("got state %q of %s, want %q", all[file].State, file, c.state)
				}
				// A second name is a problem of both, a work file one of its claim too.
				alone := len(bad) == 1 || c.word == check.Duplicate || c.word == check.StaleWork
				if c.word == "" && len(bad) > 0 || c.word != "" && (!slices.Contains(bad[file], c.word) || !alone) {
					t.Fatalf("got %v, want %s: %s alone", bad, file, c.word)
				}
				assert.Must(t, scheduler())
				bytes := mailBytes(t, o)
				steps := mended(t, o)
				if (len(steps) == 0) != (c.repair == "") {
					t.Errorf("got %+v, want %q", steps, c.repair)
				}
				if after := mailBytes(t, o); after < bytes {
					t.Errorf("%d bytes of mail are left of %d", after, bytes)
				}
				away, err := filepath.Glob(o.Path("quarantine/*." + c.repair + "*"))
				assert.Must(t, err)
				if (c.repair != "" && c.repair != "mend") != (len(away) > 0) {
					t.Errorf("quarantine/ holds %q, want one that ends in %q", away, c.repair)
				}
				release, err := o.Owners.Exclusive("scheduler")
				assert.Must(t, err)
				defer release()
				if bad, _ := problems(t, o, c.limits); c.word != "" && slices.Contains(bad[file], c.word) != (c.repair == "") {
					t.Errorf("after the repair: got %v", bad)
				}
			})
		}
	}
}

// mailBytes counts the bytes of everything but specifications and hidden files.
func mailBytes(t *testing.T, o *office.Office) (sum int64) {
	t.Helper()
	for _, rel := range o.Files(t) {
		info, err := os.Lstat(o.Path(rel))
		assert.Must(t, err)
		if info.Mode().IsRegular() && !strings.Contains(rel, "transport") && !strings.HasPrefix(rel, ".") {
			sum += info.Size()
		}
	}
	return sum
}

func TestMissingDaemonsAreWarnings(t *testing.T) {
	o := office.New(t)
	bad, _ := problems(t, o, check.Options{})
	for _, role := range []string{"router", "scheduler"} {
		if !slices.Contains(bad[role], check.DaemonMissing) {
			t.Errorf("%s: got %v", role, bad)
		}
	}
}

// Names that our programs make beside the way are no problems, and no repair takes them away.
func TestNamesBesideTheWayAreExplained(t *testing.T) {
	o := office.New(t)
	o.Routing = o.Run(t, "router")
	release, err := o.Owners.Exclusive("scheduler")
	assert.Must(t, err)
	a, name, _ := o.Enqueue(t, "a@a.example.com")
	_, deferred := o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	names := map[string]string{
		"transport/look." + name: "note", "transport/.copy." + name: "copy", "router/.tries.12": "tries",
		"removed/" + a.ID.String() + ".queue": "removed", "removed/" + a.ID.String() + ".spec": "removed", "removed/" + a.ID.String() + ".router": "removed",
		"ledger/journal": "ledger", "ledger/journal.3": "ledger", "ledger/base": "ledger", "imports/maildir-1": "import",
	}
	assert.Must(t, os.MkdirAll(o.Path("removed"), 0o750), os.MkdirAll(o.Path("ledger"), 0o750), os.MkdirAll(o.Path("imports"), 0o750))
	for n := range names {
		o.Write(t, n, "")
	}
	assert.Must(t, unix.Mknod(o.Path(".router.notify"), unix.S_IFSOCK|0o600, 0))
	names[".router.notify"], names[".pid.scheduler"] = "socket", "lock"
	names["deferred/reason."+strings.TrimSuffix(deferred, ".users")] = "reason"
	bad, all := problems(t, o, check.Options{})
	for n, state := range names {
		if all[n].State != state || bad[n] != nil {
			t.Errorf("%s: got %+v, want %s", n, all[n], state)
		}
	}
	assert.Must(t, release())
	if steps := mended(t, o); len(steps) > 0 {
		t.Errorf("repair: got %+v", steps)
	}
}

// Dur6: drafts that a power loss has left with their names and modes, without their content,
// are incomplete and no copies of each other.
func TestDur6IncompleteDraftsAreNoCopies(t *testing.T) {
	first := "comment octets 0000000000009999 00000000\n"
	for name, content := range map[string]string{
		"of 0 bytes": "", "of zeros": strings.Repeat("\x00", 4096), "of one block": first + office.PlainMail, "cut before end": first[:20],
	} {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			o.Routing = o.Run(t, "router")
			scheduler, err := o.Owners.Exclusive("scheduler")
			assert.Must(t, err)
			// Files that are made within one tick of the kernel's clock have one time.
			at := time.Now().Add(-2 * time.Minute)
			drafts := []string{"public/smtp.5.dn0kpsb1upkv.1", "public/smtp.5.dn0kpsb1upkv.2", "public/smtp.5.dn0kpsb1upkv.3"}
			for _, d := range drafts {
				executable(d, content, 0)(t, o)
				assert.Must(t, os.Chtimes(o.Path(d), at, at))
			}
			bad, _ := problems(t, o, check.Options{})
			for _, d := range drafts {
				assert.Same(t, bad[d], []check.Problem{check.Incomplete}, d)
			}
			assert.Must(t, scheduler())
			mended(t, o)
			for _, put := range o.Names(t, postoffice.Quarantine) {
				if strings.Contains(put, "copy") || strings.Contains(put, "duplicate") {
					t.Errorf("the repair took %s for a copy", put)
				}
			}
		})
	}
}

// Mail that an operator has wait is no problem, however old it is.
func TestHeldAndFrozenMailIsNotTooOld(t *testing.T) {
	release := func(q operations.Request, n string) (operations.Result, error) {
		if _, err := operations.Hold(q, n, time.Time{}); err != nil {
			return operations.Result{}, err
		}
		q.Now = time.Now()
		return operations.Release(q, n)
	}
	for name, tt := range map[string]struct {
		do  func(operations.Request, string) (operations.Result, error)
		old bool
	}{
		"untouched": {func(operations.Request, string) (operations.Result, error) { return operations.Result{}, nil }, true},
		"frozen": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Freeze(q, n, workspec.CausePerson)
		}, false},
		"frozen by expiry": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Freeze(q, n, workspec.CauseExpired)
		}, false},
		"held": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Hold(q, n, time.Time{})
		}, false},
		"held and released": {release, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			_, file, _ := o.Enqueue(t, "a@a.example.com")
			o.Age(t, "queue/"+file, 100*time.Hour)
			info, err := o.Queue.StatMessage(file)
			assert.Must(t, err)
			_, err = tt.do(operations.Request{PostOffice: o.PostOffice, ID: postoffice.IDOf(info), Now: time.Now().Add(-99 * time.Hour), Who: "bob", Silent: true}, file)
			assert.Must(t, err)
			if bad, _ := problems(t, o, check.Options{}); slices.Contains(bad["transport/"+file], check.TooOld) != tt.old {
				t.Errorf("problems %q, want it too old: %v", bad, tt.old)
			}
		})
	}
}

// A copy for rerouted recipients belongs to its specification while it is in public/, and is
// an orphan only when no specification names it for an hour, however old its message is.
func TestCopiesForReroutingAreNoOrphans(t *testing.T) {
	o := office.New(t)
	_, file, _ := o.Enqueue(t, "a@a.example.com")
	o.Age(t, "queue/"+file, 100*time.Hour)
	info, err := o.Queue.StatMessage(file)
	assert.Must(t, err)
	copied, killed := "", errors.New("killed now")
	q := operations.Request{PostOffice: o.PostOffice, ID: postoffice.IDOf(info), Now: time.Now(), Silent: true,
		Submit: func(name string, _ int) (postoffice.Accepted, error) {
			copied = "public/" + name
			return postoffice.Accepted{}, killed
		}}
	if _, err := operations.Reroute(q, file); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	_, all := problems(t, o, check.Options{})
	if all[copied].State != "prepared report" || all["transport/"+file].Severity == check.Wrong {
		t.Errorf("got %+v and %+v", all[copied], all["transport/"+file])
	}
	assert.Must(t, os.Remove(o.Path("transport/"+file)))
	if bad, all := problems(t, o, check.Options{}); bad[copied] != nil || all[copied].State != "writing" {
		t.Errorf("not named, and young: %+v", all[copied])
	}
}

// K9: what a live process has in hand is left alone, and reported; when that process is dead
// the same repair takes it.
func TestRepairLeavesTheWorkOfTheLiving(t *testing.T) {
	queueFiles := []string{"queue/7-7", "transport/7-7"}
	cases := map[string]struct {
		plant    func(t *testing.T, o *office.Office) (files []string, end func() error)
		reported bool // as a step that is left
	}{
		"a scheduler has the queue": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			renamed(t, o)
			release, err := o.Owners.Exclusive("scheduler")
			assert.Must(t, err)
			return queueFiles, release
		}, true},
		"an agent of a dead scheduler delivers": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			off := renamed(t, o)
			agent := o.Run(t, "ta-smtp")
			o.Tag(t, "7-7", off[0], workspec.LockBytes(agent.Number()))
			return queueFiles, agent.Release
		}, true},
		"another process has the specification locked": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			renamed(t, o)
			s, err := o.Queue.Open("7-7")
			assert.Must(t, err, s.Lock())
			return queueFiles, s.Close
		}, true},
		"a router has a claim": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			c := o.Claim(t, o.Submit(t, office.PlainMail))
			other := o.Run(t, "submit")
			name := postoffice.Name{Ino: 7, Owner: o.Routing.Number()}.String()
			o.Rename(t, "router/"+c.Name(), "router/"+name)
			return []string{"router/" + name}, other.Release
		}, false},
		"a router is between its two renames": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			c := o.Claim(t, o.Submit(t, office.PlainMail))
			w, err := c.CreateWork()
			assert.Must(t, err, w.Close())
			name := postoffice.Name{Ino: 7, Owner: o.Routing.Number()}.String()
			o.Rename(t, "router/"+c.Name(), "queue/"+name)
			o.Rename(t, "router/.."+c.Name(), "router/.."+name)
			return []string{"queue/" + name, "router/.." + name}, func() error { return nil }
		}, false},
		"a submitter writes": {func(t *testing.T, o *office.Office) ([]string, func() error) {
			d, err := o.Submissions.NewDraft("test")
			assert.Must(t, err, os.Chmod(o.Path("public/"+d.Name()), 0o700))
			o.Age(t, "public/"+d.Name(), 3*check.DraftGrace)
			return []string{"public/" + d.Name()}, d.Abort
		}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			files, end := c.plant(t, o)
			steps, err := repair.Do(o.PostOffice, time.Now(), nil)
			assert.Must(t, err)
			if left(steps) != c.reported || !c.reported && len(steps) > 0 {
				t.Errorf("got %+v, want something left: %v", steps, c.reported)
			}
			for _, f := range files {
				if _, err := os.Lstat(o.Path(f)); err != nil {
					t.Errorf("it was taken: %v", err)
				}
			}
			assert.Must(t, end())
			if o.Routing != nil {
				assert.Must(t, o.Routing.Release())
				o.Routing = nil
			}
			if !c.reported {
				return
			}
			if steps, err := repair.Do(o.PostOffice, time.Now(), nil); err != nil || left(steps) || len(steps) == 0 {
				t.Errorf("when it is dead: %v, %+v", err, steps)
			}
			rightNames(t, o, 0)
		})
	}
}

// M50: a hash directory on another file system is found; the daemons cannot rename into it.
func TestHashDirectoryOnAnotherFileSystemIsFound(t *testing.T) {
	o := office.New(t)
	assert.Must(t, os.Mkdir(o.Path("queue/B"), 0o755))
	if err := unix.Mount("none", o.Path("queue/B"), "tmpfs", 0, "mode=755"); err != nil {
		t.Skipf("mounting a second file system needs root: %v", err)
	}
	defer func() { assert.Must(t, unix.Unmount(o.Path("queue/B"), 0)) }()
	if bad, _ := problems(t, o, check.Options{}); !slices.Contains(bad["queue/B/"], check.OtherDevice) {
		t.Errorf("got %v, want %s at queue/B/", bad, check.OtherDevice)
	}
}

// What is unreadable is reported, and nothing is guessed about it.
func TestUnreadableFilesAreReportedAndLeft(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	o := office.New(t)
	_, name, _ := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
	assert.Must(t, os.Chmod(o.Path("transport/"+name), 0), os.Chmod(o.Path("freezer"), 0))
	defer func() { assert.Must(t, os.Chmod(o.Path("freezer"), 0o750)) }()
	bad, _ := problems(t, o, check.Options{})
	if !slices.Contains(bad["transport/"+name], check.Unreadable) || !slices.Contains(bad["freezer"], check.Unreadable) {
		t.Errorf("got %v", bad)
	}
	if _, err := repair.Do(o.PostOffice, time.Now(), nil); !errors.Is(err, os.ErrPermission) {
		t.Errorf("repair: got %v, want it to report freezer/", err)
	}
	if _, err := os.Stat(o.Path("transport/" + name)); errors.Is(err, os.ErrNotExist) {
		t.Error("the specification was taken away")
	}
}
