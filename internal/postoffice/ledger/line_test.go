package ledger

import (
	"bytes"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

func id(ino uint64, ns int64) postoffice.SpoolID { return postoffice.SpoolID{Ino: ino, MTime: ns} }

// everyLine returns a line of each verb, as it is written.
func everyLine() map[string]Line {
	const now = 1795220010123
	at := id(12, 1795220010123456789)
	return map[string]Line{
		"in S12A28C7R0jBBrL 3":                                   {Time: now, Verb: In, ID: at, N: 3},
		"routed S12A28C7R0jBBrL 5":                               {Time: now, Verb: Routed, ID: at, N: 5},
		"routed S12A28C7R0jBBrL 5 entered":                       {Time: now, Verb: Routed, ID: at, N: 5, Entered: true},
		"found S12A28C7R0jBBrL 1 power":                          {Time: now, Verb: Found, ID: at, N: 1, Why: "power"},
		"moved S12A28C7R0jBBrL 99":                               {Time: now, Verb: Moved, ID: at, From: 99},
		"done S12A28C7R0jBBrL delivered=0 failed=2 unreported=2": {Time: now, Verb: Done, ID: at, End: Outcomes{Failed: 2}, Unreported: 2},
		"told S12A28C7R0jBBrL 2 settled":                         {Time: now, Verb: Told, ID: at, N: 2, Why: "settled"},
		"done S12A28C7R0jBBrL delivered=0":                       {Time: now, Verb: Done, ID: at},
		"done S12A28C7R0jBBrL delivered=2 failed=1 unknown=7":    {Time: now, Verb: Done, ID: at, End: Outcomes{Delivered: 2, Failed: 1, Unknown: 7}},
		"gone S12A28C7R0jBBrL 4 vanished":                        {Time: now, Verb: Gone, ID: at, N: 4, Why: "vanished"},
		"unknown S12A28C7R0jBBrL 4 power":                        {Time: now, Verb: Unknown, ID: at, N: 4, Why: "power"},
		"half S12A28C7R0jBBrL delivered=1 removed=2 gone=1":      {Time: now, Verb: Half, ID: at, End: Outcomes{Delivered: 1, Removed: 2, Gone: 1}},
		"open router 4711 2d5b7c9e-0000-4000-8000-000000000000":  {Time: now, Verb: Open, Role: "router", PID: 4711, Boot: "2d5b7c9e-0000-4000-8000-000000000000"},
		"close router 4711":                                      {Time: now, Verb: Close, Role: "router", PID: 4711},
		"boot 2d5b7c9e-0000-4000-8000-000000000000":              {Time: now, Verb: Boot, Boot: "2d5b7c9e-0000-4000-8000-000000000000"},
		"done S12A28C7R0jBBrL delivered=0 silent=1 expired=2":    {Time: now, Verb: Done, ID: at, End: Outcomes{Silent: 1, Expired: 2}},
		"done S18446744073709551615A-1 delivered=99999999999999": {Time: now, Verb: Done, ID: id(1<<64-1, -1), End: Outcomes{Delivered: 99999999999999}},
	}
}

func TestEveryLineIsReadAsItWasWritten(t *testing.T) {
	for text, l := range everyLine() {
		want := "1795220010123 " + text + "\n"
		assert.Equal(t, string(l.Append(nil)), want, "written")
		if got, ok := ParseLine([]byte(strings.TrimSuffix(want, "\n"))); !ok || got != l {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, ok, l)
		}
	}
}

// K4: a process that is killed inside a write leaves the beginning of a line, and the
// next process's line goes on behind it.
func TestLineBehindATornOneIsRead(t *testing.T) {
	for _, torn := range everyLine() {
		first := bytes.TrimSuffix(torn.Append(nil), []byte("\n"))
		for text, l := range everyLine() {
			second := bytes.TrimSuffix(l.Append(nil), []byte("\n"))
			for cut := range len(first) {
				got, ok := ParseLine(append(bytes.Clone(first[:cut]), second...))
				if !ok || got != l {
					t.Fatalf("%q before %s: got %+v, %v", first[:cut], text, got, ok)
				}
			}
		}
	}
}

func TestWhatIsNoLineIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "a time alone": "1795220010123", "a verb that is not known": "1795220010123 lost S1A1 1",
		"no number": "1795220010123 in S1A1", "a torn number's blank": "1795220010123 in S1A1 ", "two blanks": "1795220010123  in S1A1 1",
		"a sign": "1795220010123 in S1A1 +1", "no spool ID": "1795220010123 in 17 1", "too much": "1795220010123 in S1A1 1 why not",
		"a column that is not known": "1795220010123 done S1A1 delivered=1 lost=1", "columns in disorder": "1795220010123 done S1A1 failed=1 delivered=1",
		"no delivered": "1795220010123 done S1A1 failed=1", "no column": "1795220010123 done S1A1", "a column twice": "1795220010123 done S1A1 delivered=1 delivered=1",
		"zeros of a lost block": strings.Repeat("\x00", 100), "a boot with a control": "1795220010123 boot a\x1bb",
	} {
		if l, ok := ParseLine([]byte(text)); ok {
			t.Errorf("%s: got %+v", name, l)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	for _, l := range everyLine() {
		f.Add(bytes.TrimSuffix(l.Append(nil), []byte("\n")))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, ok := ParseLine(b)
		if !ok || bytes.ContainsAny(b, "\n") {
			return
		}
		// What was read is written so that it is read again, and is the end of b.
		again := bytes.TrimSuffix(l.Append(nil), []byte("\n"))
		got, ok := ParseLine(again)
		if !ok || got != l {
			t.Errorf("%q: got %+v, %v, want %+v", again, got, ok, l)
		}
	})
}
