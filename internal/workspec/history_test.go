package workspec

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// ordersOf parses a specification with one recipient, at byte off, and appended lines.
func ordersOf(tb testing.TB, tag, lines string) (*Orders, *Recipient) {
	tb.Helper()
	s := assert.Get(Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr" + tag + "    smtp h u@h 1\nm\nA: b\n\n" + lines)))(tb)
	return s.Orders(), &s.Groups[0].Recipients[0]
}

// The last word counts, and the tag follows what was decided.
func TestOrdersAreReadFromTheHistory(t *testing.T) {
	const off = int64(len("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\n"))
	arrival := time.UnixMilli(1795220000000)
	at := func(minutes int) time.Time { return arrival.Add(time.Duration(minutes) * time.Minute) }
	event := func(minutes int, word string, more ...Attr) string {
		e := OrderEvent(at(minutes), word, "S7A1", []int64{off}, "me", "", "why not", more...)
		return string(AppendEvent(nil, &e))
	}
	failed := string(AppendDiagnostic(nil, &Diagnostic{Recipient: off, Time: arrival, Notary: Notary{Action: "failed", Status: "5.1.1"}}))
	hold, release := event(10, EventHold), event(40, EventRelease)
	until := event(10, EventHold, UntilAttr(at(30))...)
	frozen, thawed := event(50, EventFrozen, Attr{KeyCause, CausePerson}), event(70, EventThawed)
	reopened := event(60, EventRetry, ReopenAttr())
	rerouted := event(60, EventRerouted, Attr{KeyFile, "copy.1.x.1"})
	const todo, ok, bad, locked = "       ", "+      ", "-      ", "~    12"
	tests := map[string]struct {
		tag, lines string
		waits      bool // an hour and a half after the arrival
		want       Tag
		away       int // minutes
	}{
		"none":                               {todo, "", false, TagToDo, 0},
		"held":                               {todo, hold, true, TagToDo, 80},
		"held, by a hand that cannot write":  {todo, strings.Replace(until, "until=1", "until=x", 1), true, TagToDo, 80},
		"held until a time that is over":     {todo, until, false, TagToDo, 20},
		"released":                           {todo, hold + release, false, TagToDo, 30},
		"held twice":                         {todo, hold + event(20, EventHold) + release, false, TagToDo, 30},
		"released before it was held":        {todo, event(10, EventRelease) + event(90, EventHold), true, TagToDo, 0},
		"released, but never held":           {todo, release, false, TagToDo, 0},
		"another recipient held":             {todo, strings.Replace(hold, "rcpts=", "rcpts=9", 1), false, TagToDo, 0},
		"frozen":                             {todo, frozen, true, TagToDo, 0},
		"frozen and released":                {todo, frozen + release, true, TagToDo, 0},
		"thawed":                             {todo, frozen + thawed, false, TagToDo, 70},
		"thawed, but never frozen":           {todo, thawed, false, TagToDo, 0},
		"held, frozen and thawed":            {todo, hold + frozen + thawed, true, TagToDo, 90},
		"held before the thaw, released now": {todo, hold + frozen + thawed + event(80, EventRelease), false, TagToDo, 80},
		"expired, tag not set":               {todo, failed + event(60, EventExpired), true, TagFailed, 0},
		"expired, an agent has it":           {locked, failed + event(60, EventExpired), true, TagLocked, 0},
		"expired, but delivered":             {ok, failed + event(60, EventExpired), true, TagOK, 0},
		"expired by the scheduler":           {todo, strings.Replace(event(60, EventExpired), "who=me ", "", 1), false, TagToDo, 0},
		"failed and opened again":            {bad, failed + reopened, false, TagToDo, 60},
		"opened again, and failed since":     {bad, reopened + failed, false, TagFailed, 60},
		"expired, and opened again":          {bad, failed + event(50, EventExpired) + reopened, false, TagToDo, 60},
		"opened again, and expired":          {todo, reopened + failed + event(70, EventExpired), true, TagFailed, 60},
		"rerouted, tag not set":              {todo, rerouted, true, TagOK, 0},
		"rerouted, no file":                  {todo, strings.Replace(rerouted, "file=", "fill=", 1), false, TagToDo, 0},
		"retried":                            {todo, event(60, EventRetry), false, TagToDo, 0},
		"a torn hold":                        {todo, hold[:len(hold)-20], false, TagToDo, 0},
		"a hold that was torn and ended":     {todo, hold[:len(hold)-20] + "\x18\n", false, TagToDo, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, r := ordersOf(t, tt.tag, tt.lines)
			now := at(90)
			assert.Equal(t, o.Waits(r, now), tt.waits, "waits")
			assert.Equal(t, o.Tag(r), tt.want, "tag")
			assert.Equal(t, o.Of(r.Offset).Away(arrival, now, nil).Minutes(), float64(tt.away), "minutes away")
		})
	}
}

// Of removals and other orders the last word counts, too.
func TestLastDecisionCounts(t *testing.T) {
	const off = int64(len("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\n"))
	event := func(word string, more ...Attr) string {
		e := OrderEvent(time.UnixMilli(1795220000000), word, "S7A1", []int64{off}, "me", "", "", more...)
		return string(AppendEvent(nil, &e))
	}
	failed := string(AppendDiagnostic(nil, &Diagnostic{Recipient: off, Notary: Notary{Action: "failed", Status: "5.1.1"}}))
	removed, restored, reopened := event(EventRemoved), event(EventRestored), event(EventRetry, ReopenAttr())
	const todo, bad = "       ", "-      "
	for name, tt := range map[string]struct {
		tag, lines string
		want       Tag
		removed    bool
	}{
		"opened again, then removed":                 {todo, failed + reopened + removed, TagFailed, true},
		"the same, its tag set":                      {bad, failed + reopened + removed, TagFailed, true},
		"and put back":                               {bad, failed + reopened + removed + restored, TagToDo, false},
		"and failed again":                           {bad, failed + reopened + removed + restored + failed, TagFailed, false},
		"removed while an agent had it, opened then": {todo, removed + failed + reopened, TagToDo, false},
		"the same, its tag not set":                  {bad, removed + failed + reopened, TagToDo, false},
		"and removed again":                          {todo, removed + failed + reopened + removed, TagFailed, true},
		"put back, failed, opened again":             {bad, removed + restored + failed + reopened, TagToDo, false},
		"expired, opened again, removed":             {bad, failed + event(EventExpired) + reopened + removed, TagFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := assert.Get(Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr" + tt.tag + "    smtp h u@h 1\nm\nA: b\n\n" + tt.lines)))(t)
			r, m := &s.Groups[0].Recipients[0], s.Removal()
			if got := Decided(m, s.Orders(), r); got != tt.want || m.Removed(r) != tt.removed {
				t.Errorf("tag %q, removed %v; want %q, %v", got, m.Removed(r), tt.want, tt.removed)
			}
		})
	}
}

// FuzzOrders: whatever is in the lines, the fold does not panic, time does not run
// backwards, and a recipient that no one has spoken of is as it was.
func FuzzOrders(f *testing.F) {
	for _, s := range []string{"h 1795220000000 39 hold until=1 rcpts=39 x\n", "h 1 39 frozen\nh 2 39 thawed\n", "h 5 0 hold rcpts=39,39,,-1,99999999999999999999\nh 1 39 release\n",
		"h 1 39 retry reopen=x\nh 999999999999999999 39 hold until=999999999999999999\n", "h 1 39 rerouted file=x\nd 39:0:0::1\t\x01failed\x01\x01\x01\x01\t\n", "h 1 39 expired who="} {
		f.Add(s, int64(1795220000000))
	}
	f.Fuzz(func(t *testing.T, lines string, ms int64) {
		s, err := Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr           smtp h u@h 1\nm\nA: b\n\n" + lines))
		if err != nil {
			return
		}
		o, now := s.Orders(), time.UnixMilli(ms%(1<<45))
		for gi := range s.Groups {
			for ri := range s.Groups[gi].Recipients {
				r := &s.Groups[gi].Recipients[ri]
				order := o.Of(r.Offset)
				if away := order.Away(time.UnixMilli(1795220000000), now, nil); away < 0 {
					t.Errorf("away %v", away)
				}
				if tag := o.Tag(r); tag != r.Tag && !order.Expired() && !order.Reopened() && order.Rerouted() == nil {
					t.Errorf("tag %q became %q by no order", r.Tag, tag)
				}
				if order.Held(now) && !o.Waits(r, now) {
					t.Error("held, and does not wait")
				}
			}
		}
		assert.Same(t, o.Of(1<<60), Order{}, "the order of no recipient")
	})
}

// M27: time in which a message was removed and a recipient held or frozen counts once,
// so that mail of an operator that plays with it expires all the same.
func TestOverlappingTimesCountOnce(t *testing.T) {
	const off = int64(len("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\n"))
	arrival := time.UnixMilli(1795220000000)
	at := func(minutes int) time.Time { return arrival.Add(time.Duration(minutes) * time.Minute) }
	order := func(minutes int, word string, more ...Attr) string {
		e := OrderEvent(at(minutes), word, "S7A1", []int64{off}, "me", "", "why not", more...)
		return string(AppendEvent(nil, &e))
	}
	removal := func(minutes int, word string) string {
		e := RemovedEvent(at(minutes), word, "S7A1", []int64{off}, "me")
		return string(AppendEvent(nil, &e))
	}
	out, in := removal(20, EventRemoved), removal(60, EventRestored)
	tests := map[string]struct {
		lines string
		away  int // minutes of 90 that do not count, removals included
	}{
		"removed":                            {out + in, 40},
		"frozen, removed, restored, thawed":  {order(10, EventFrozen, Attr{KeyCause, CausePerson}) + out + in + order(70, EventThawed), 70},
		"thawed before it was removed":       {order(5, EventFrozen, Attr{KeyCause, CausePerson}) + order(10, EventThawed) + out + in, 50},
		"held over the removal":              {order(10, EventHold) + out + in + order(70, EventRelease), 60},
		"held within the removal":            {out + order(30, EventHold) + order(40, EventRelease) + in, 40},
		"held into the removal":              {order(10, EventHold) + out + order(30, EventRelease) + in, 50},
		"held until a time in it":            {order(10, EventHold, UntilAttr(at(30))...) + out + in, 50},
		"held, and nothing of it is over":    {out + in + order(80, EventHold), 50},
		"removed twice, held over the first": {order(10, EventHold) + out + in + order(65, EventRelease) + removal(70, EventRemoved) + removal(75, EventRestored), 60},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := assert.Get(Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr           smtp h u@h 1\nm\nA: b\n\n" + tt.lines)))(t)
			m := s.Removal()
			assert.Equal(t, (m.Away + s.Orders().Of(off).Away(arrival, at(90), m)).Minutes(), float64(tt.away), "minutes that do not count")
		})
	}
}

// A15: the last event decides, and the tag follows it.
func TestRemovalIsDecidedByTheLastEvent(t *testing.T) {
	const head = "@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\n"
	off := int64(len(head))
	at := time.UnixMilli(1795220010000)
	event := func(word string, minutes int, offsets ...int64) string {
		e := RemovedEvent(at.Add(time.Duration(minutes)*time.Minute), word, "S7A1", offsets, "by hand")
		return string(AppendEvent(nil, &e))
	}
	failed := string(AppendDiagnostic(nil, &Diagnostic{Recipient: off, Time: at, Notary: Notary{Action: "failed", Status: "5.1.1"}}))
	tests := map[string]struct {
		tag     string // of the r line, with the lock
		lines   string
		removed bool
		want    Tag
		away    time.Duration
	}{
		"never removed":                             {"       ", "", false, TagToDo, 0},
		"removed, the tag set":                      {"-      ", event("removed", 0, off), true, TagFailed, 0},
		"removed, the tag not set":                  {"       ", event("removed", 0, off), true, TagFailed, 0},
		"removed, and locked since":                 {"~    12", event("removed", 0, off), true, TagLocked, 0},
		"removed, but a foreign agent delivered it": {"+      ", event("removed", 0, off), false, TagOK, 0},
		"another recipient removed":                 {"       ", event("removed", 0, 999), false, TagToDo, 0},
		"put back":                                  {"       ", event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back, the tag not set":                 {"-      ", event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back after a report, the tag not set":  {"-      ", failed + event("removed", 0, off) + event("restored", 5, off), false, TagToDo, 5 * time.Minute},
		"put back, and failed since":                {"-      ", event("removed", 0, off) + event("restored", 5, off) + failed, false, TagFailed, 5 * time.Minute},
		"put back, and delivered since":             {"+      ", event("removed", 0, off) + event("restored", 5, off), false, TagOK, 5 * time.Minute},
		"removed again": {"-      ", event("removed", 0, off) + event("restored", 5, off) + event("removed", 9, off) + event("restored", 11, off) + event("removed", 12, off),
			true, TagFailed, 7 * time.Minute},
		"torn event": {"       ", event("removed", 0, off)[:30], false, TagToDo, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := mustParse(t, head+"r"+tt.tag+"    smtp h u@h 1\nm\nA: b\n\n"+tt.lines)
			r := &s.Groups[0].Recipients[0]
			m := s.Removal()
			assert.Equal(t, m.Removed(r), tt.removed, "removed")
			assert.Equal(t, m.Tag(r), tt.want, "tag")
			if m != nil && (m.Away != tt.away || m.ID != "S7A1") {
				t.Errorf("away %v with ID %s, want %v", m.Away, m.ID, tt.away)
			}
			assert.Equal(t, m.Restored(r), tt.want == TagToDo && tt.away > 0, "restored")
		})
	}
}

// many returns a specification with recipients of some hosts, as the router writes it.
func many(tb testing.TB, n, hosts int) []byte {
	tb.Helper()
	var b strings.Builder
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "7-1", BodyOffset: 1})
	for g := range 2 {
		list := make([]Recipient, n/2)
		for i := range list {
			list[i] = Recipient{Channel: "smtp", Host: fmt.Sprint("h", i*hosts/len(list)), Address: fmt.Sprintf("user%d@g%d", i, g), Privilege: "1"}
		}
		w.Group(Sender{Channel: "local", Host: "a", Address: fmt.Sprint("a", g, "@b"), Privilege: "1"}, list, []byte("A: b\n"))
	}
	assert.Must(tb, w.Close())
	return []byte(b.String())
}

func allOffsets(s *Spec) (all []int64) {
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			all = append(all, s.Groups[gi].Recipients[ri].Offset)
		}
	}
	return all
}

func aboutOf(s *Spec, e *Event) (list []int64) {
	for r := range s.About(e) {
		list = append(list, r.Offset)
	}
	return list
}

// seeded returns a source of random numbers whose seed is printed; TEST_SEED sets it.
func seeded(tb testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	tb.Logf("TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// What is written about some recipients is read as about these, also by a reader of some of
// them alone, and a whole range takes the room of one.
func TestEventAboutSomeRecipients(t *testing.T) {
	random := seeded(t)
	file := many(t, 60, 5)
	spec := assert.Get(Parse(file))(t)
	all := allOffsets(spec)
	whole := Event{Event: EventDeferred}
	spec.SetAbout(&whole, all)
	assert.Equal(t, whole.Get(keyRecipients), fmt.Sprintf("%d-%d", all[0], all[len(all)-1]), "all recipients")
	for range 200 {
		some := func(list []int64) (chosen []int64) {
			one := random.IntN(5)
			for _, off := range list {
				if random.IntN(5) <= one {
					chosen = append(chosen, off)
				}
			}
			return chosen
		}
		chosen := some(all)
		// The writer, too, may know some of them alone.
		known := slices.Sorted(slices.Values(slices.Concat(chosen, some(all))))
		writer, err := ParseOnly(file, func(off int64, _, _ []byte) bool { return slices.Contains(known, off) })
		if err != nil || len(chosen) == 0 {
			continue
		}
		e := Event{Time: time.UnixMilli(1795220000000), Event: EventDeferred, Attrs: []Attr{{"attempt", "1"}}, Text: "451 later"}
		writer.SetAbout(&e, chosen)
		lines := string(file) + string(AppendEvent(nil, &e))
		full, err := Parse([]byte(lines))
		if err != nil || len(full.History) != 1 {
			t.Fatal(err)
		}
		if got := aboutOf(full, &full.History[0]); !slices.Equal(got, chosen) {
			t.Fatalf("%+v is about %v, want %v", e, got, chosen)
		}
		wanted := some(all)
		reader := assert.Get(ParseOnly([]byte(lines), func(off int64, _, _ []byte) bool { return slices.Contains(wanted, off) }))(t)
		var got []int64
		for i := range reader.History {
			got = append(got, aboutOf(reader, &reader.History[i])...)
		}
		want := slices.DeleteFunc(slices.Clone(chosen), func(off int64) bool { return !slices.Contains(wanted, off) })
		if !slices.Equal(got, want) {
			t.Fatalf("%+v is about %v to a reader of %v, want %v", e, got, wanted, want)
		}
	}
}

// Old lines list every recipient; what is no list names no one.
func TestListsOfRecipientsAreRead(t *testing.T) {
	spec := assert.Get(Parse(many(t, 10, 2)))(t)
	all := allOffsets(spec)
	for list, want := range map[string][]int64{
		fmt.Sprint(all[1], ",", all[3]):                           {all[1], all[3]},
		fmt.Sprint(all[1], "-", all[3], ",", all[7]):              {all[1], all[2], all[3], all[7]},
		fmt.Sprint(all[0]-1, "-", all[0]+1):                       {all[0]},
		fmt.Sprint(all[8], "-", 1<<60):                            {all[8], all[9]},
		fmt.Sprint(all[3], "-", all[1]):                           nil,
		fmt.Sprint(all[3] + 1):                                    nil,
		"-5,x,7-,-,," + fmt.Sprint(all[2]):                        {all[2]},
		"99999999999999999999-99999999999999999999999,1-2":        nil,
		fmt.Sprint(all[4], "-", all[4], ",", all[4], "-", all[5]): {all[4], all[4], all[5]},
	} {
		assert.Same(t, aboutOf(spec, &Event{Attrs: []Attr{{keyRecipients, list}}}), want, "recipients of %q", list)
	}
	if got := aboutOf(spec, &Event{}); got != nil {
		t.Errorf("an event about the whole message is about %v", got)
	}
}

// A range keeps its recipients when the message gets a name of another length.
func TestRangesFollowAnotherName(t *testing.T) {
	file := many(t, 20, 2)
	spec := assert.Get(Parse(file))(t)
	all := allOffsets(spec)
	chosen := slices.Concat(all[2:5], all[7:8], all[12:])
	e := Event{Time: time.UnixMilli(1795220000000), Event: EventDeferred, Text: "later"}
	spec.SetAbout(&e, chosen)
	out := assert.Get(Renumber(AppendEvent(file, &e), "12345678901234567890-1"))(t)
	got := assert.Get(Parse(out))(t)
	after := allOffsets(got)
	assert.Same(t, aboutOf(got, &got.History[0]), slices.Concat(after[2:5], after[7:8], after[12:]), "recipients of %q", got.History[0].Get(keyRecipients))
}
