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
)

// many is a specification with recipients of some hosts, as the router writes it.
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
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
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

// seeded is a source of random numbers whose seed is printed; TEST_SEED sets it.
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
	spec, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	all := allOffsets(spec)
	whole := Event{Event: EventDeferred}
	spec.SetAbout(&whole, all)
	if got := whole.Get(keyRecipients); got != fmt.Sprintf("%d-%d", all[0], all[len(all)-1]) {
		t.Errorf("all recipients are %q", got)
	}
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
		reader, err := ParseOnly([]byte(lines), func(off int64, _, _ []byte) bool { return slices.Contains(wanted, off) })
		if err != nil {
			t.Fatal(err)
		}
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

// Old lines list every recipient; what is no list names nobody.
func TestListsOfRecipientsAreRead(t *testing.T) {
	spec, err := Parse(many(t, 10, 2))
	if err != nil {
		t.Fatal(err)
	}
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
		if got := aboutOf(spec, &Event{Attrs: []Attr{{keyRecipients, list}}}); !slices.Equal(got, want) {
			t.Errorf("%q is about %v, want %v", list, got, want)
		}
	}
	if got := aboutOf(spec, &Event{}); got != nil {
		t.Errorf("an event about the whole message is about %v", got)
	}
}

// A range keeps its recipients when the message gets a name of another length.
func TestRangesFollowAnotherName(t *testing.T) {
	file := many(t, 20, 2)
	spec, err := Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	all := allOffsets(spec)
	chosen := slices.Concat(all[2:5], all[7:8], all[12:])
	e := Event{Time: time.UnixMilli(1795220000000), Event: EventDeferred, Text: "later"}
	spec.SetAbout(&e, chosen)
	out, err := Renumber(AppendEvent(file, &e), "12345678901234567890-1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	after := allOffsets(got)
	if want := slices.Concat(after[2:5], after[7:8], after[12:]); !slices.Equal(aboutOf(got, &got.History[0]), want) {
		t.Errorf("%q is about %v, want %v", got.History[0].Get(keyRecipients), aboutOf(got, &got.History[0]), want)
	}
}
