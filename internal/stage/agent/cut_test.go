package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// cutDisk returns a test disk with one queued message: to delivered@h, failed@h, which
// is to fail, and wanted@h, who wants a success report; behind them to somebody at each of
// as many other hosts.
func cutDisk(t *testing.T, others int) (*cutfs.FS, string) {
	t.Helper()
	disk := cutfs.New()
	assert.Must(t, postoffice.Init(disk))
	rcpts := []workspec.Recipient{{Channel: "smtp", Host: "h", Address: "delivered@h"}, {Channel: "smtp", Host: "h", Address: "failed@h"},
		{Channel: "smtp", Host: "h", Address: "wanted@h", Notary: "NOTIFY=SUCCESS"}}
	for i := range others {
		host := fmt.Sprintf("other%d.example", i)
		rcpts = append(rcpts, workspec.Recipient{Channel: "smtp", Host: host, Address: "somebody@" + host})
	}
	const header = "Subject: x\n\n"
	return disk, Fill(t, disk, testEnvelope+header+"body\n", Message{Rcpts: rcpts}, int64(len(testEnvelope+header)))
}

// world is what happened outside: how often each recipient got the message.
type world map[string]int

// attempt runs the jobs of hosts in a process on a test disk.
func attempt(t *testing.T, disk *cutfs.FS, name string, hosts []string, w world, cut func(*cutfs.FS)) *cutfs.FS {
	t.Helper()
	proc := disk.Process()
	po, err := postoffice.Open(postoffice.Config{FS: proc})
	assert.Must(t, err)
	owner, err := po.Owners.Take("test")
	assert.Must(t, err)
	a := &Agent{PostOffice: po, Owner: owner, Name: "test", Now: func() time.Time { return testTime }}
	cut(proc)
	to := deliverFunc(func(_ context.Context, d *Delivery) {
		for _, r := range d.Recipients {
			if r.Address == "failed@h" {
				d.Done(r, noUser)
			}
		}
		if err := d.Sent(); err != nil {
			return
		}
		for _, r := range d.Recipients {
			if r.Address != "failed@h" {
				w[r.Address]++
				d.Done(r, ok)
			}
		}
	})
	for _, host := range hosts {
		a.Do(t.Context(), taproto.Job{Name: name, Host: host}, to)
	}
	return proc
}

func readSpec(t *testing.T, disk *cutfs.FS, name string) *workspec.Spec {
	t.Helper()
	return Parse(t, Read(t, disk, "transport/"+name))
}

// The process or the machine stops before every operation of a job, in every way in
// which a disk may lose what was not synced. A final tag is never more than what
// happened; the next attempt ends what is open; a process that only died delivers
// once, or the doubt is recorded.
func TestDeliverySurvivesEveryCut(t *testing.T) { // M18, S7
	tests := map[string]struct {
		others int
		hosts  []string
	}{
		"one host": {0, []string{"h"}},
		// The specification is read once, and then what concerns each host.
		"the second of 150 hosts": {150, []string{"other7.example", "h"}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			surviveEveryCut(t, c.others, c.hosts)
		})
	}
}

func surviveEveryCut(t *testing.T, others int, hosts []string) {
	var name string
	var first world
	EveryCut(t, 7, func(cut func(*cutfs.FS)) *cutfs.FS {
		var disk *cutfs.FS
		disk, name = cutDisk(t, others)
		first = world{}
		return attempt(t, disk, name, hosts, first, cut)
	}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
		w := maps.Clone(first)
		next := proc.Restart(loss)
		checkTags(t, readSpec(t, next, name), w, where)
		attempt(t, next, name, hosts, w, func(*cutfs.FS) {})
		s := readSpec(t, next, name)
		checkTags(t, s, w, where+", next attempt")
		checkEnd(t, s, hosts, w, loss.Power, where)
	})
}

// checkTags wants no final tag of what has not happened or has no diagnostic.
func checkTags(t *testing.T, s *workspec.Spec, w world, where string) {
	t.Helper()
	reported := map[int64]bool{}
	for _, d := range s.Diagnostics {
		reported[d.Recipient] = true
	}
	for _, r := range s.Groups[0].Recipients {
		switch r.Tag {
		case workspec.TagOK:
			if w[r.Address] == 0 {
				t.Errorf("%s: %s is marked and was not delivered", where, r.Address)
			}
		case workspec.TagFailed:
			if !reported[r.Offset] {
				t.Errorf("%s: %s is marked failed without a diagnostic", where, r.Address)
			}
		}
	}
}

// checkEnd wants everything final of those hosts, and nothing twice but in doubt.
func checkEnd(t *testing.T, s *workspec.Spec, hosts []string, w world, power bool, where string) {
	t.Helper()
	doubts := map[int64]int{}
	for _, e := range s.History {
		if e.Event == workspec.EventInDoubt {
			doubts[e.Recipient]++
		}
	}
	for _, r := range s.Groups[0].Recipients {
		if !slices.Contains(hosts, r.Host) {
			continue
		}
		assert.Equal(t, r.Tag, map[bool]workspec.Tag{true: workspec.TagFailed, false: workspec.TagOK}[r.Address == "failed@h"], "%s: %s: tag", where, r.Address)
		if !power && w[r.Address] > 1+doubts[r.Offset] {
			t.Errorf("%s: %s was delivered %d times, %d of them in doubt", where, r.Address, w[r.Address], doubts[r.Offset])
		}
	}
}
