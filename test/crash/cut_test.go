package crash

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/durable/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/scheduler"
)

var every = flag.Bool("every", false, "try every loss of power at every cut, not a choice of them")

const conf = `PARAM global-report-interval = 0s
*/*
	interval=1m retries="1 1 2" expiry=3d
smtp/*
local/*
	command="ta $channel"
`

// load is the mail of each run: a relay, one to three recipients on two hosts of which
// one fails, a deferral, local mail, one for a user who is not there.
var load = []message{
	{"relay", "bob@mta.example", []string{"a@one.example"}},
	{"three", "bob@mta.example", []string{"a@one.example", "b@two.example", "fail@two.example"}},
	{"later", "bob@mta.example", []string{"defer@one.example", "b@one.example"}},
	{"local", "bob@mta.example", []string{"alice@mta.example", "nobody@mta.example"}},
}

// wanted is every delivery that the load makes.
func wanted(w *world) map[string]bool {
	want := map[string]bool{}
	for _, m := range load {
		if !w.accepted[m.subject] {
			continue
		}
		failed := false
		for _, to := range m.to {
			if strings.HasPrefix(to, "fail@") || strings.HasPrefix(to, "nobody@") {
				failed = true
				continue
			}
			want[m.subject+"/"+to] = true
		}
		if failed {
			want["report on "+m.subject+"/"+m.from] = true
		}
	}
	return want
}

func newSetup(t *testing.T, levels int) (*setup, *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"localnames": "mta.example\n", "users": "alice\nbob\n", "routes": ". smtp!\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := scheduler.ParseConf("scheduler.conf", []byte(conf), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	return &setup{tables: dir, conf: c, levels: levels, now: time.Now,
		log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo}))}, log
}

func newDisk(t *testing.T) *cutfs.FS {
	t.Helper()
	disk := cutfs.New()
	if err := postoffice.Init(disk); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"."} {
		if err := disk.SyncDir(d); err != nil {
			t.Fatal(err)
		}
	}
	return disk
}

// live is one life: boot, submit what was not accepted, drain.
func live(disk *cutfs.FS, w *world, s *setup) error {
	p, err := boot(disk, w, s)
	if err != nil {
		return err
	}
	for _, m := range load {
		if !w.accepted[m.subject] {
			if err := p.submit(m); err != nil {
				return err
			}
		}
	}
	return p.drain()
}

// M1 M2 M7 M18 M35 K1 K3 K4 K7 S8: the pipeline is stopped after operation 0, 1, 2, ...;
// the next life, on a disk that kept or lost what was not synced, brings every accepted
// message to its end.
func TestEveryCutKeepsAcceptedMail(t *testing.T) {
	for _, levels := range []int{0, 2} {
		t.Run(fmt.Sprintf("hash levels %d", levels), func(t *testing.T) {
			s, log := newSetup(t, levels)
			whole := newDisk(t)
			whole.CutAfter(1 << 30)
			w := newWorld()
			if err := live(whole, w, s); err != nil {
				t.Fatalf("without a cut: %v\n%s", err, log)
			}
			check(t, "without a cut", w, nil, whole, true)
			ops := whole.Ops()
			t.Logf("%d operations in a whole life", ops)
			random := rand.New(rand.NewPCG(1, uint64(levels)))
			for n := range ops {
				cut(t, n, s, log, random)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// cut runs a life that is stopped after n operations, then every next life.
func cut(t *testing.T, n int, s *setup, log *bytes.Buffer, random *rand.Rand) {
	t.Helper()
	for _, tear := range []bool{false, true} {
		disk, w := newDisk(t), newWorld()
		if tear {
			disk.CutInside(n)
		} else {
			disk.CutAfter(n)
		}
		log.Reset()
		if err := live(disk, w, s); !disk.Dead() {
			t.Fatalf("cut %d: the life ended before it: %v", n, err)
		}
		first := log.String()
		for _, loss := range losses(disk, random) {
			log.Reset()
			after, next := w.clone(), disk.Restart(loss)
			name := fmt.Sprintf("cut after %d (torn %v), %v", n, tear, loss)
			p, err := boot(next, after, s)
			if err == nil {
				err = p.drain()
			}
			if err != nil {
				t.Errorf("%s: next life: %v", name, err)
			}
			check(t, name, after, w.doubt, next, !loss.Power)
			for key := range w.doubt {
				if !loss.Power && after.got[key] > 1 && !strings.Contains(log.String(), "in-doubt") {
					t.Errorf("%s: %s was in doubt and nobody says so", name, key)
				}
			}
			if t.Failed() {
				t.Fatalf("the disk's operations:\n%s\nlog of the first life:\n%s\nof the next:\n%s", tail(next.Log(), 60), tail(first, 30), log)
			}
		}
	}
}

// losses is a choice of what the next life may find: the kill alone always.
func losses(disk *cutfs.FS, random *rand.Rand) []cutfs.Loss {
	all := disk.Losses()
	if *every || len(all) <= 6 {
		return all
	}
	list := []cutfs.Loss{all[0], cutfs.MetadataFirst(), cutfs.LoseUnsynced(0)}
	for range 3 {
		list = append(list, all[random.IntN(len(all))])
	}
	return list
}

// check compares the world with what was accepted, and wants an empty postoffice.
// once: nothing may be delivered twice but what was in doubt.
func check(t *testing.T, name string, w *world, doubt map[string]bool, disk *cutfs.FS, once bool) {
	t.Helper()
	want := wanted(w)
	for key := range want {
		if w.got[key] == 0 {
			t.Errorf("%s: lost: %s", name, key)
		}
	}
	if once {
		for key, n := range w.got {
			if n > 1 && !(doubt[key] && n == 2) {
				t.Errorf("%s: %s was delivered %d times", name, key, n)
			}
		}
	}
	for _, dir := range []string{postoffice.Router, postoffice.Queue, postoffice.Transport, postoffice.Deferred, postoffice.Postman} {
		for _, f := range files(t, disk, dir) {
			t.Errorf("%s: left: %s", name, f)
		}
	}
}

func files(t *testing.T, disk *cutfs.FS, dir string) []string {
	t.Helper()
	entries, err := disk.ReadDir(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if e.Type.IsDir() {
			list = append(list, files(t, disk, dir+"/"+e.Name)...)
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
