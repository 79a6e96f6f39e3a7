package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
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
	case 8: // an order that nobody gave
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
	if err := os.WriteFile(path+".edit", b, 0o644); err != nil {
		r.T.Fatal(err)
	}
	if err := os.Rename(path+".edit", path); err != nil {
		r.T.Fatal(err)
	}
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
			r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp good%d ok.good.%d@good", n, n)})
		}
	}
	want := (count/2 + 9) / 10
	r.wait(want, "msg=delivered", "ok.good.")
	for _, note := range r.notes("delivered ") {
		if strings.Contains(note, "ok.good.") {
			want--
		}
	}
	if want != 0 {
		t.Errorf("%d good messages more or less than once", want)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
