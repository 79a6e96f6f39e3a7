package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// spoil changes a specification as bad disks, editors and other programs do.
func spoil(rnd *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	lines := bytes.SplitAfter(b, []byte("\n"))
	i, j := rnd.IntN(len(lines)), rnd.IntN(len(lines))
	at := rnd.IntN(len(b))
	switch rnd.IntN(9) {
	case 0: // bytes
		for range 1 + rnd.IntN(8) {
			b[rnd.IntN(len(b))] = byte(rnd.IntN(256))
		}
		return b
	case 1: // a cut
		return b[:at]
	case 2: // zeros
		clear(b[at:min(len(b), at+1+rnd.IntN(600))])
		return b
	case 3:
		lines[i], lines[j] = lines[j], lines[i]
	case 4:
		lines = append(lines, lines[i])
	case 5:
		lines = append(lines[:i:i], lines[i+1:]...)
	case 6: // numbers
		digits := []string{"0", "-1", "99999999999999999999", "18446744073709551615", "9223372036854775807", "2147483648", "", "1e9"}
		words := bytes.Split(lines[i], []byte(" "))
		words[rnd.IntN(len(words))] = []byte(digits[rnd.IntN(len(digits))])
		lines[i] = bytes.Join(words, []byte(" "))
	case 7: // a long line
		lines[i] = append(bytes.Repeat(lines[i][:max(len(lines[i])-1, 0)], 3000), '\n')
	case 8: // an operation that was not requested
		events := []string{workspec.EventHold, workspec.EventFrozen, workspec.EventThawed, workspec.EventRetry, workspec.EventRerouted,
			workspec.EventRemoved, workspec.EventRestored, workspec.EventReport, workspec.EventExpired, workspec.EventSent, "x"}
		lines = append(lines, fmt.Appendf(nil, "h %d %d %s id=S1 rcpts=%d,x,-7 until=-9 file=../../x cause= host=9e9 attempt=70000 next=%d\n",
			rnd.Int64(), rnd.Int64N(2000), events[rnd.IntN(len(events))], rnd.Int64N(900), rnd.Int64()))
	}
	return bytes.Join(lines, nil)
}

// spoiled puts a message with a long history into the queue and spoils its
// specification.
func (r *rig) spoiled(rnd *rand.Rand, n int) {
	r.T.Helper()
	name := r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h defer9.%d@h", n), Notary: "NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;x@y"},
		storetest.Rcpt{Line: fmt.Sprintf("local g ok.spoiled.%d@g", n), Ret: "HDRS", EnvID: "e"}, storetest.Rcpt{Line: "error nouser x@y"})
	spec := r.Parse(name)
	b := []byte(r.Read("transport/" + name))
	now := time.Now()
	for i := range spec.Groups[0].Recipients {
		off := spec.Groups[0].Recipients[i].Offset
		b = workspec.AppendEvent(b, &workspec.Event{Time: now, Recipient: off, Event: workspec.EventDeferred, Text: "450 later",
			Attrs: []workspec.Attr{{Key: "attempt", Value: "2"}, {Key: "next", Value: fmt.Sprint(now.UnixMilli())}, {Key: "status", Value: "4.2.1"}}})
		b = workspec.AppendDiagnostic(b, &workspec.Diagnostic{Recipient: off, HeaderOffset: spec.Groups[0].HeaderOffset, Time: now,
			Notary: workspec.Notary{Address: "x@y", Action: "failed", Status: "5.1.1"}, Text: "no"})
	}
	for range 1 + rnd.IntN(3) {
		if b = spoil(rnd, b); len(b) == 0 {
			break
		}
	}
	// Another program puts its files there by a rename.
	path := filepath.Join(r.dir, "transport", name)
	assert.Must(r.T, os.WriteFile(path+".edit", b, 0o644))
	assert.Must(r.T, os.Rename(path+".edit", path))
}

// No specification, however broken, stops the scheduler: half of them are there at its
// start, the others come while it works, and mail goes on beside them.
func TestBrokenSpecificationsStopNothing(t *testing.T) {
	t.Parallel()
	count := 300
	if testing.Short() {
		count = 100
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, scriptConf("TEST_SLOTS=4", ""), 0, func(s *conf.Settings) { s.Interval, s.IdleMax = time.Hour, time.Hour })
	for n := range count / 2 {
		r.spoiled(rnd, n)
	}
	r.start()
	for n := range count / 2 {
		r.spoiled(rnd, count/2+n)
		if n%10 == 0 {
			r.queue(fmt.Sprintf("smtp good%d ok.good.%d@good", n, n))
		}
	}
	want := (count/2 + 9) / 10
	r.wait(want, "msg=delivered", "ok.good.")
	for _, note := range r.notes("delivered ") {
		if strings.Contains(note, "ok.good.") {
			want--
		}
	}
	assert.Equal(t, want, 0, "good messages more or less than once")
	r.stop()
}

// K10: a message's files are in another hash directory than they belong in, and stayed
// there because an agent held a recipient. A change that waits behind the one which moves
// them is made where they are then.
func TestChangeBehindAMoveFollowsTheMessage(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	e := newStepped(t, b, dir, nil)
	n, _ := postoffice.ParseName(name)
	m := &thread.Message{Number: n.Ino}
	m.SetName("A/" + name)
	e.messages.put(m)
	for _, top := range []string{"transport", "queue"} {
		assert.Must(t, os.Mkdir(filepath.Join(dir, top, "A"), 0o755))
		assert.Must(t, os.Rename(filepath.Join(dir, top, name), filepath.Join(dir, top, "A", name)))
	}
	e.placement.reload(m, nil)
	e.intake.noted(m.Name())
	e.attempts.record(m, nil, nil, thread.Round{})
	turns(t, e, func() bool { return e.changes.busy[m] == nil })
	if got := b.Log.String(); strings.Contains(got, "vanished") || m.Name() != name {
		t.Errorf("the message is given up:\n%s", got)
	}
}

// M41: an order that is given while its message is read for the first time, or just moved
// by the scheduler itself, is obeyed, and its note does not stay.
func TestOperationOnAMessageThatIsBeingReadIsCarriedOut(t *testing.T) {
	tests := map[string]func(t *testing.T, e *engine, dir, name string, release func()){
		"read": func(_ *testing.T, e *engine, _, name string, release func()) {
			e.intake.want(name)
			<-e.box.wake // it was read, and is not known yet
			release()
			e.intake.noted(name)
		},
		"moved": func(t *testing.T, e *engine, dir, name string, release func()) {
			e.intake.want(name)
			turns(t, e, func() bool { return e.messages.len() == 1 })
			release()
			var errs []error
			for _, top := range []string{"transport", "queue"} {
				top = filepath.Join(dir, top)
				errs = append(errs, os.Mkdir(filepath.Join(top, "A"), 0o755), os.Rename(filepath.Join(top, name), filepath.Join(top, "A", name)))
			}
			assert.NoError(t, errors.Join(errs...))
			n, _ := postoffice.ParseName(name)
			e.messages.get(n.Ino).SetName("A/" + name)
			e.intake.noted(name)
		},
	}
	for how, tt := range tests {
		t.Run(how, func(t *testing.T) {
			b, dir := diskBox(t)
			name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
			q := operations.Request{PostOffice: b.PO, ID: b.Request(name).ID, Now: time.Now(), Who: "test"}
			if _, err := operations.Hold(q, name, time.Time{}); err != nil {
				t.Fatal(err)
			}
			e := newStepped(t, b, dir, nil)
			note := filepath.Join(dir, "transport", "look."+name)
			assert.Must(t, os.Remove(note))
			tt(t, e, dir, name, func() {
				if _, err := operations.Release(q, name); err != nil {
					t.Error(err)
				}
			})
			turns(t, e, func() bool {
				_, err := os.Stat(note)
				n, _ := postoffice.ParseName(name)
				m, waits := e.messages.get(n.Ino), false
				if m != nil {
					m.Vertices(func(*thread.Vertex) { waits = true })
				}
				return waits && errors.Is(err, os.ErrNotExist)
			})
		})
	}
}

// M21: a message was listed where it stood before the scheduler itself moved it to its
// hash directory: that is nothing to tell, and no second message.
func TestNameBeforeARehashIsForgotten(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	e := newStepped(t, b, dir, nil)
	e.intake.want(name)
	turns(t, e, func() bool { return e.messages.len() > 0 })
	e.intake.want("A/B/" + name)
	turns(t, e, func() bool { return len(e.changes.busy) == 0 })
	if got := b.Log.String(); strings.Contains(got, "specification-refused") || len(e.intake.refused) > 0 || e.messages.len() != 1 {
		t.Errorf("%d messages, refused: %v\n%s", e.messages.len(), e.intake.refused, got)
	}
}

// A18: recipients that an earlier life delivered are counted by the next, which does not
// read their tags again.
func TestRestartInMidMessageCountsAllRecipients(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	name := r.queue("smtp h ok.first@h", "smtp h ok.second@h", "local h ok.third@h")
	id := r.ID(name)
	f, err := r.PO.Queue.Open(name)
	assert.Must(t, err)
	first := r.Parse(name).Groups[0].Recipients[0].Offset
	assert.Must(t, f.SetTag(workspec.TagBytes(workspec.FormatOurs, workspec.TagOK), workspec.TagOffset(first)))
	assert.Must(t, f.Close())
	r.start()
	r.wait(2, "msg=delivered")
	r.stop()
	if got := r.LedgerRecord(id); got.End != (ledger.Outcomes{Delivered: 3}) {
		t.Errorf("got %+v", got)
	}
}

// K10: files that are taken away while the scheduler has the message are entered as gone,
// and counted as delivered when they come back and are.
func TestVanishedMessageIsEnteredAsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = 100 * time.Millisecond; s.IdleMax = time.Hour })
	r.config.Look = 50 * time.Millisecond
	r.start()
	r.wait(1, "msg=started")
	name := r.queue("smtp h defer9@h", "smtp h defer9.b@h")
	id := r.ID(name)
	r.wait(2, "msg=deferred")
	// The message first: without its specification it would be routed again.
	for _, dir := range []string{"queue", "transport"} {
		assert.Must(t, os.Remove(filepath.Join(r.dir, dir, name)))
	}
	r.wait(1, "msg=vanished", "name="+name)
	r.stop()
	if got := r.LedgerRecord(id); got.Ended != ledger.Gone || got.End != (ledger.Outcomes{Gone: 2}) {
		t.Errorf("got %+v", got)
	}
}

// Sec4: a message whose name was taken goes on under a number taken at random. Its spool ID
// is that of its inode all the same: in the ledger, in the log and for who asks.
func TestSec4MessageWithANumberTakenAtRandomKeepsItsSpoolID(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour; s.IdleMax = time.Hour })
	taken := ""
	occupy := func(s *workspec.Spec, _ *workspec.Sender) {
		if taken == "" {
			taken = filepath.Join(r.dir, "queue", s.Message)
			assert.NoError(t, os.WriteFile(taken, []byte("somebody's"), 0o600))
		}
	}
	name, err := storetest.QueueWith(r.PO, "a@b", storetest.Header, "Body of the message.\n", []storetest.Rcpt{{Line: "smtp h ok@h"}, {Line: "smtp h defer1@h"}}, occupy)
	assert.Must(t, err)
	if n, _ := postoffice.ParseName(name); !postoffice.IsRandom(n.Ino) {
		t.Fatalf("it is %s", name)
	}
	id := r.ID(name)
	r.start()
	r.wait(1, "msg=deferred", "id="+id.String())
	for _, key := range []string{id.String(), name} {
		info := mailq.MessageInfo{}
		c, _ := r.dial()
		_, err := c.Ask(mailq.Request{Kind: mailq.JSONMessage, ID: key}, func(line string) error { return json.Unmarshal([]byte(line), &info) })
		if err != nil || info.ID != id.String() || info.Name != name || len(info.Recipients) != 1 || len(info.Why) != 1 {
			t.Errorf("asked for %s: %+v, %v", key, info, err)
		}
	}
	r.etrn("h")
	r.wait(1, "msg=finished", "id="+id.String())
	r.stop()
	if got := r.LedgerRecord(id); got.Ended != ledger.Done || got.End != (ledger.Outcomes{Delivered: 2}) {
		t.Errorf("the ledger has %+v", got)
	}
}

// A5 K12: what is delivered at the same time is finished together, entered in one write of
// the ledger before the first file goes; a message that the disk refuses keeps no
// other.
func TestMessagesThatEndTogetherAreFinishedTogether(t *testing.T) {
	below, dir := storetest.Disk(t)
	f := faultfs.New(below)
	b := boxOf(t, storetest.New(t, f, 0), storetest.Conf)
	e := newStepped(t, b, dir, nil)
	e.spool.Ledger.Gone(postoffice.SpoolID{Ino: 1, MTime: 1}, 0, "test") // the journal is open
	var names []string
	var ids []postoffice.SpoolID
	for range 4 {
		name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
		b.Mark(name, 0, "", workspec.TagOK)
		names, ids = append(names, name), append(ids, b.ID(name))
	}
	entered := f.On(faultfs.Write, postoffice.Ledger+"/*", faultfs.Always, func(string) error {
		assert.Equal(t, len(b.List(postoffice.Queue)), len(names), "messages left when their ends are entered")
		return nil
	})
	full := f.Fail(faultfs.Remove, postoffice.Queue+"/"+path.Base(names[1]), unix.EIO, faultfs.Always)
	for i, name := range names {
		m := &thread.Message{Number: ids[i].Ino, Stamp: ids[i].MTime, Total: 1}
		m.SetName(name)
		e.messages.put(m)
		e.ends.check(m)
	}
	e.changes.finishAll()
	turns(t, e, func() bool { return len(e.changes.busy) <= 1 })
	assert.Equal(t, entered.Hits(), 1, "writes for four ends")
	entered.End()
	if got := strings.Join(b.List(postoffice.Transport), " "); got != names[1] || e.messages.len() != 1 {
		t.Errorf("left in transport/: %s, and %d messages known; want %s alone", got, e.messages.len(), names[1])
	}
	for _, id := range ids {
		if r := b.LedgerRecord(id); r.Ended != ledger.Done || r.End.Delivered != 1 {
			t.Errorf("%v: got %+v, want it delivered", id, r)
		}
	}
	full.End()
	e.ends.remind(e.messages.get(ids[1].Ino))
	e.changes.finishAll()
	turns(t, e, func() bool { return len(e.changes.busy) == 0 })
	if left := append(b.List(postoffice.Transport), b.List(postoffice.Queue)...); len(left) > 0 || e.messages.len() != 0 {
		t.Errorf("left: %v, and %d messages known", left, e.messages.len())
	}
}

// K12: a change that the disk refuses is tried again after a second, after two, and so
// on up to a minute; the trouble is logged once, and the next one begins anew.
func TestPauseOfAFailingDiskDoublesUpToAMinute(t *testing.T) {
	b, dir := diskBox(t)
	e := newStepped(t, b, dir, nil)
	e.now = time.Unix(2e9, 0)
	m := &thread.Message{Number: 7, Stamp: e.now.UnixNano(), Open: 1}
	m.SetName("7-1")
	e.messages.put(m)
	full, tries := true, 0
	change := op{run: func() error {
		tries++
		if full {
			return unix.ENOSPC
		}
		return nil
	}}
	next := func() {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	for range 2 {
		full, tries = true, 0
		e.changes.do(m, change)
		var got []string
		for range 8 {
			next()
			wait := e.core.Next().Sub(e.now)
			got = append(got, wait.String())
			e.now = e.now.Add(wait)
			if _, due := e.core.Advance(e.now); len(due) != 1 {
				t.Fatalf("after %v nothing is to be tried again", wait)
			}
			full = len(got) < 8
			e.ends.remind(m)
		}
		next()
		if want := "[1s 2s 4s 8s 16s 32s 1m0s 1m0s]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		if tries != 9 || e.changes.busy[m] != nil {
			t.Errorf("tried %d times, want 9 and nothing left: %+v", tries, e.changes.busy[m])
		}
		e.core.Advance(e.now)
	}
	assert.Equal(t, strings.Count(b.Log.String(), "msg=disk"), 2, "log lines about two troubles")
}

// A look whose time comes while another one is under way waits until that one's share of
// the time is over; hints that were lost then have it begin at once.
func TestLookThatIsDueDuringALookWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		b, dir := diskBox(t)
		e := newStepped(t, b, dir, nil)
		e.scanner.looking = true
		e.intake.hint(watch.Hint{Lost: lost})
		assert.Equal(t, e.scanner.lookAgain, lost, "lost hints: another look at once")
		if lost {
			continue
		}
		e.scanner.looked(2*time.Second, nil)
		if want := e.now.Add(2 * time.Second * lookShare); e.scanner.looking || !e.scanner.lookAt.Equal(want) {
			t.Errorf("the next look is at %v (or under way: %v), want %v", e.scanner.lookAt, e.scanner.looking, want)
		}
	}
}

// The looks back off until those at transport/ come as often, and begin anew with the
// next message.
func TestLooksAtLockedRecipientsBackOff(t *testing.T) {
	b, dir := diskBox(t)
	start := time.Now()
	e := newStepped(t, b, dir, nil)
	m := &thread.Message{Number: 1}
	e.changes.busy[m] = &ops{} // so that nothing is read
	looks := func() (list []time.Duration) {
		for range 10 {
			if e.placement.lockedAt.IsZero() {
				break
			}
			e.now = e.placement.lockedAt
			list = append(list, e.now.Sub(start))
			e.placement.lookAtLocked()
		}
		return list
	}
	want := []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
	for range 2 {
		e.now = start
		e.placement.hold(m)
		assert.Same(t, looks(), want, "times of the scans")
		delete(e.placement.locked, m)
		e.placement.reloadLocked()
	}
}
