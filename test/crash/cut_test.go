package crash

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
)

var (
	every = flag.Bool("every", false, "try every loss of power at every cut, not a choice of them")
	more  = flag.Int("losses", 2, "how many losses of power are chosen at random at each cut, beside some that always are")
	seed  = flag.Uint64("seed", 1, "of the choice")
	only  = flag.String("cut", "", "this cut alone, as a failure prints it")
	// It finds a defect that is known (docs/durability.md): after two cuts a specification may have two
	// names, and is not delivered.
	byLinks = flag.Bool("links", false, "also try file systems without RENAME_NOREPLACE")
	lossIs  = flag.String("loss", "", "this loss of power alone, as a failure prints it")
)

// TestMain has less memory looked through: the disks are in memory, and each life leaves one.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

const confText = `PARAM global-report-interval = 0s
*/*
	interval=1m retries="1 1 2" expiry=3d
smtp/*
local/*
	command="ta $channel"
`

// variant is a kind of disk and a setting that it must be survived with.
type variant struct {
	model  cutfs.Model
	strict bool
	levels [2]int
	links  bool // no RenameNew and no Exchange
}

func (v variant) String() string {
	sync := "normal"
	if v.strict {
		sync = "strict"
	}
	links := ""
	if v.links {
		links = " by links"
	}
	return fmt.Sprintf("%v SYNC=%s levels %d then %d%s", v.model, sync, v.levels[0], v.levels[1], links)
}

// variants: with SYNC=normal a disk that keeps one order, and one whose fsync of a
// file covers its names but nothing else; with SYNC=strict one that promises no more
// than POSIX.
var variants = []variant{
	{model: cutfs.Journal},
	{model: cutfs.Journal, levels: [2]int{2, 1}},
	{model: cutfs.Loose, levels: [2]int{0, 2}},
	{model: cutfs.POSIX, strict: true, levels: [2]int{1, 0}},
}

// allVariants returns those to try.
func allVariants() []variant {
	if !*byLinks {
		return variants
	}
	return append(slices.Clone(variants), variant{model: cutfs.Journal, levels: [2]int{0, 1}, links: true},
		variant{model: cutfs.POSIX, strict: true, levels: [2]int{1, 0}, links: true})
}

// block is how many bytes reach the test disk together: few, so that the small files
// of the load are torn too.
const block = 64

func newSetup(t *testing.T, v variant) (*setup, *bytes.Buffer) {
	t.Helper()
	s := &setup{strict: v.strict, levels: v.levels}
	for i := range s.tables {
		dir := t.TempDir()
		s.tables[i] = dir
		tables := map[string]string{"localnames": "mta.example\n", "users": "alice\nbob\nuid65533\n", "routes": ". smtp!\n",
			"aliases": "trio: alice, a@one.example, b@two.example\nlist: :include:" + dir + "/list\n"}
		if i == 1 {
			tables["list"] = "a@one.example\nb@one.example\n"
		}
		for name, text := range tables {
			assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
	}
	var err error
	if s.conf, err = conf.Parse("scheduler.conf", []byte(confText), func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	s.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	return s, log
}

func newDisk(t *testing.T, v variant) *cutfs.FS {
	t.Helper()
	disk := cutfs.New()
	disk.SetModel(v.model)
	disk.SetBlock(block)
	if v.links {
		disk.OnlyLinks()
	}
	assert.Must(t, postoffice.Init(disk))
	return disk
}

// M1 M2 M7 M10 M13 M18 M21 M35 K1 K3 K4 K7 S8, and Sec8 for what users submit: the pipeline is stopped after
// operation 0, 1, 2, ...; the next life, on a disk that kept or lost what was not
// synced, brings every accepted message to its end.
func TestEveryCutKeepsAcceptedMail(t *testing.T) {
	t.Parallel()
	for _, v := range allVariants() {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			r := newRun(t, v)
			for n := range r.whole() {
				r.cut(n, n%2 == 1)
				if *every {
					r.cut(n, n%2 == 0)
				}
				if t.Failed() {
					return
				}
			}
			t.Logf("%d lives", r.lives)
		})
	}
}

// run is the cutting of one variant.
type run struct {
	t      *testing.T
	v      variant
	s      *setup
	log    *bytes.Buffer
	random *rand.Rand
	lives  int
	// before is the log of earlier lives that may explain a file.
	before string
}

// told reports whether a life has logged it.
func (r *run) told(text string) bool { return strings.Contains(r.before+r.log.String(), text) }

func newRun(t *testing.T, v variant) *run {
	t.Helper()
	s, log := newSetup(t, v)
	return &run{t: t, v: v, s: s, log: log, random: rand.New(rand.NewPCG(*seed, uint64(v.model)))}
}

// whole returns a life without a cut: how many operations it has.
func (r *run) whole() int {
	r.t.Helper()
	disk, w := newDisk(r.t, r.v), newWorld()
	disk.CutAfter(1 << 30)
	if err := live(disk, w, r.s); err != nil {
		r.t.Fatalf("without a cut: %v\n%s", err, r.log)
	}
	r.check("without a cut", w, nil, disk, true)
	for _, uid := range []int{user, postoffice.UnknownUser} {
		if !strings.Contains(r.log.String(), fmt.Sprintf(" uid=%d ", uid)) {
			r.t.Errorf("nothing was picked up that uid %d has submitted", uid)
		}
	}
	if r.t.Failed() {
		r.t.Fatal(r.log)
	}
	r.t.Logf("%d operations in a whole life", disk.Ops())
	return disk.Ops()
}

// cut runs a life that is stopped after n operations, or inside of the next, then
// every next life.
func (r *run) cut(n int, torn bool) {
	r.t.Helper()
	where := fmt.Sprintf("%d", n)
	if torn {
		where += "torn"
	}
	if *only != "" && *only != where {
		return
	}
	disk, w := newDisk(r.t, r.v), newWorld()
	if torn {
		disk.CutInside(n)
	} else {
		disk.CutAfter(n)
	}
	r.log.Reset()
	r.s.ahead = 0
	if err := live(disk, w, r.s); !disk.Dead() {
		r.t.Fatalf("cut %s: the life ended before it: %v", where, err)
	}
	first := r.log.String()
	for _, loss := range r.losses(disk) {
		r.log.Reset()
		name := fmt.Sprintf("-seed %d -cut %s -loss '%v'", *seed, where, loss)
		r.next(name, disk, w, loss)
		if r.t.Failed() {
			r.t.Fatalf("again: go test ./test/crash -run '%s' %s\nchanges that no sync covered:\n%s\nthe disk's operations:\n%s\nlog of the first life:\n%s\nof the next:\n%s",
				r.t.Name(), name, disk.Changes(loss), tail(disk.Log(), 60), tail(first, 30), r.log)
		}
	}
}

// next is a life on what a loss has left.
func (r *run) next(name string, disk *cutfs.FS, w *world, loss cutfs.Loss) {
	r.t.Helper()
	r.lives++
	after, next := w.clone(), disk.Restart(loss)
	r.s.ahead = 0
	if loss.Power {
		r.promises(name, next, after)
	}
	if err := goOn(next, after, r.s); err != nil {
		r.t.Errorf("%s: next life: %v", name, err)
	}
	r.check(name, after, w.doubt, next, !loss.Power)
	for key := range w.doubt {
		if !loss.Power && after.got[key] > 1 && !strings.Contains(r.log.String(), "in-doubt") {
			r.t.Errorf("%s: %s was in doubt and nothing records that", name, key)
		}
	}
}

// losses returns a choice of what the next life may find: the kill alone always.
func (r *run) losses(disk *cutfs.FS) []cutfs.Loss {
	if *lossIs != "" {
		loss, err := cutfs.ParseLoss(*lossIs)
		if err != nil {
			r.t.Fatal(err)
		}
		return []cutfs.Loss{loss}
	}
	all := disk.Losses()
	chosen := *more
	if *every {
		chosen = 50
	} else if len(all) > 4 {
		all = []cutfs.Loss{all[0], cutfs.MetadataFirst(), cutfs.LoseUnsynced(0), all[r.random.IntN(len(all))]}
	}
	for range chosen {
		all = append(all, disk.RandomLoss(r.random))
	}
	return all
}

// check compares the world with what was accepted, and wants an empty postoffice.
// once: nothing may be delivered twice but what was in doubt.
func (r *run) check(name string, w *world, doubt map[string]bool, disk *cutfs.FS, once bool) {
	r.t.Helper()
	for key := range wanted(w) {
		if w.got[key] == 0 {
			r.t.Errorf("%s: lost: %s", name, key)
		}
	}
	if once {
		for key, n := range w.got {
			if n > 1 && !(doubt[key] && n == 2) {
				r.t.Errorf("%s: %s was delivered %d times", name, key, n)
			}
		}
	}
	r.sweepReasons(name, disk)
	for _, dir := range []string{postoffice.Router, postoffice.Queue, postoffice.Transport, postoffice.Deferred,
		postoffice.Postman, postoffice.Freezer, postoffice.Quarantine, postoffice.Removed} {
		for _, f := range r.names(disk, dir) {
			if durable.IsProbe(filepath.Base(f)) {
				continue // an empty file, which another start removes a minute later
			}
			if !once && (strings.HasSuffix(f, ".message-gone") || strings.HasSuffix(f, ".no-message")) {
				// A specification whose message was finished and whose marks were lost, or
				// whose message is back in router/: no one can tell that from a message that
				// was removed by hand. What matters is that all was delivered.
				continue
			}
			r.t.Errorf("%s: left: %s", name, f)
		}
	}
	for key := range w.got {
		if strings.Contains(key, " with body ") {
			r.t.Errorf("%s: delivered: %s", name, key)
		}
	}
	r.unanswered(name, w, disk)
}

// sweepReasons takes away the texts of messages that have gone on, as a router does some
// time later.
func (r *run) sweepReasons(name string, disk *cutfs.FS) {
	r.t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := po.Aside.SweepReasons(time.Now().Add(2*time.Hour), false); err != nil {
		r.t.Errorf("%s: %v", name, err)
	}
}

// unanswered wants nothing in public/ but what no submitter was told yes for: a draft
// that the sweep takes when it is an hour old, or a message that lost bytes.
func (r *run) unanswered(name string, w *world, disk *cutfs.FS) {
	r.t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := po.Submissions.SweepDrafts(time.Now().Add(2 * time.Hour)); err != nil {
		r.t.Errorf("%s: %v", name, err)
	}
	for _, f := range r.names(disk, postoffice.Public) {
		info, err := disk.Stat(f)
		if err != nil {
			r.t.Fatal(err)
		}
		if info.Mode&0o100 == 0 || !r.told("action="+postoffice.Incomplete+" name="+f) && !r.told("msg=not-picked-up name="+f) {
			r.t.Errorf("%s: left: %s, mode %v", name, f, info.Mode)
		}
	}
}

// names returns the files below a directory.
func (r *run) names(disk *cutfs.FS, dir string) []string {
	r.t.Helper()
	entries, err := disk.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		r.t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if e.Type.IsDir() {
			list = append(list, r.names(disk, dir+"/"+e.Name)...)
			continue
		}
		list = append(list, dir+"/"+e.Name)
	}
	return list
}

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
