package workspec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// ordersOf parses a specification with one recipient, at byte off, and appended lines.
func ordersOf(tb testing.TB, tag, lines string) (*Orders, *Recipient) {
	tb.Helper()
	s, err := Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr" + tag + "    smtp h u@h 1\nm\nA: b\n\n" + lines))
	if err != nil {
		tb.Fatal(err)
	}
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
			if got := o.Waits(r, now); got != tt.waits {
				t.Errorf("waits %v, want %v", got, tt.waits)
			}
			if got := o.Tag(r); got != tt.want {
				t.Errorf("tag %q, want %q", got, tt.want)
			}
			if got := o.Of(r.Offset).Away(arrival, now, nil).Minutes(); got != float64(tt.away) {
				t.Errorf("away %v minutes, want %d", got, tt.away)
			}
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
			s, err := Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr" + tt.tag + "    smtp h u@h 1\nm\nA: b\n\n" + tt.lines))
			if err != nil {
				t.Fatal(err)
			}
			r, m := &s.Groups[0].Recipients[0], s.Removal()
			if got := Decided(m, s.Orders(), r); got != tt.want || m.Removed(r) != tt.removed {
				t.Errorf("tag %q, removed %v; want %q, %v", got, m.Removed(r), tt.want, tt.removed)
			}
		})
	}
}

// FuzzOrders: whatever stands in the lines, the fold does not panic, time does not run
// backwards, and a recipient that nobody has spoken of is as it was.
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
		if none := o.Of(1 << 60); !reflect.DeepEqual(none, Order{}) {
			t.Errorf("nobody's: %+v", none)
		}
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
			s, err := Parse([]byte("@ 0x00000003\ni 7-1\no 1\ns local a a@b 1\nr           smtp h u@h 1\nm\nA: b\n\n" + tt.lines))
			if err != nil {
				t.Fatal(err)
			}
			m := s.Removal()
			if got := (m.Away + s.Orders().Of(off).Away(arrival, at(90), m)).Minutes(); got != float64(tt.away) {
				t.Errorf("%v minutes do not count, want %d", got, tt.away)
			}
		})
	}
}
