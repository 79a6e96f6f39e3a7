package ledger

import (
	"bytes"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// book makes a book of lines, each with the same time.
func book(lines ...string) *Book {
	b := newBook()
	// A text is read without an error.
	_ = b.applyLines(strings.NewReader("1795220010123 " + strings.Join(lines, "\n1795220010123 ") + "\n"))
	b.resolve()
	return b
}

// parse reads a text as base and reports whether it is whole.
func (b *Book) parse(raw []byte) bool { return b.parseBase(bytes.NewReader(raw)) == nil }

// total returns a book's sums with all of its records.
func (b *Book) total() Sums {
	s := b.Sum
	for _, r := range b.Records {
		s.add(r)
	}
	return s
}

// open returns the recipients of open messages.
func (b *Book) open() (n int64) {
	for _, r := range b.Records {
		if r.Open() {
			n += r.Size()
		}
	}
	return n
}

// A18 K7: whatever lines came twice, or not at all, or out of order, each recipient is
// counted once.
func TestLinesOfOneMessageAreCountedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		lines           []string
		accepted, added int64
		end             Outcomes
		open            int64
	}{
		"a message from the server": {[]string{"in S1A1 2", "routed S1A1 5 entered", "done S1A1 delivered=4 failed=1"}, 2, 3, Outcomes{Delivered: 4, Failed: 1}, 0},
		"a message from submit":     {[]string{"routed S1A1 5", "done S1A1 delivered=5"}, 5, 0, Outcomes{Delivered: 5}, 0},
		"accepted, no more":         {[]string{"in S1A1 2"}, 2, 0, Outcomes{}, 2},
		"the server's line comes late": {[]string{"routed S1A1 3 entered", "done S1A1 delivered=3", "in S1A1 2"},
			2, 1, Outcomes{Delivered: 3}, 0},
		"every line twice": {[]string{"in S1A1 2", "in S1A1 2", "routed S1A1 2", "routed S1A1 2", "done S1A1 delivered=2", "done S1A1 delivered=2"},
			2, 0, Outcomes{Delivered: 2}, 0},
		"killed before the hand-over, routed again by other tables": {[]string{"in S1A1 1", "routed S1A1 7", "routed S1A1 2"}, 1, 1, Outcomes{}, 2},
		"finished, and back in the router after a power loss":       {[]string{"routed S1A1 1", "done S1A1 delivered=1", "routed S1A1 1"}, 1, 0, Outcomes{}, 1},
		"and finished again":                       {[]string{"routed S1A1 1", "done S1A1 delivered=1", "routed S1A1 1", "done S1A1 delivered=0 failed=1"}, 1, 0, Outcomes{Failed: 1}, 0},
		"nothing was entered before its end":       {[]string{"done S1A1 delivered=2"}, 2, 0, Outcomes{Delivered: 2}, 0},
		"vanished":                                 {[]string{"routed S1A1 2", "gone S1A1 2 vanished"}, 2, 0, Outcomes{Gone: 2}, 0},
		"vanished, and brought back":               {[]string{"routed S1A1 2", "gone S1A1 2 vanished", "done S1A1 delivered=2"}, 2, 0, Outcomes{Delivered: 2}, 0},
		"vanished after its end":                   {[]string{"routed S1A1 2", "done S1A1 delivered=2", "gone S1A1 2 vanished"}, 2, 0, Outcomes{Delivered: 2}, 0},
		"removed before it was routed":             {[]string{"in S1A1 2", "gone S1A1 9 removed"}, 2, 0, Outcomes{Removed: 2}, 0},
		"removed before anybody entered it":        {[]string{"gone S1A1 9 removed"}, 9, 0, Outcomes{Removed: 9}, 0},
		"removed and put back":                     {[]string{"in S1A1 2", "gone S1A1 2 removed", "routed S1A1 2 entered"}, 2, 0, Outcomes{}, 2},
		"the inode number is used again":           {[]string{"routed S1A1 1", "done S1A1 delivered=1", "in S1A5 1"}, 2, 0, Outcomes{Delivered: 1}, 1},
		"a specification alone, its end was lost":  {[]string{"routed S1A1 2", "half S1A3 delivered=1 failed=1"}, 2, 0, Outcomes{Delivered: 1, Failed: 1}, 0},
		"a specification alone, its end is known":  {[]string{"routed S1A1 2", "done S1A1 delivered=2", "half S1A3 delivered=2"}, 2, 0, Outcomes{Delivered: 2}, 0},
		"its message was taken away":               {[]string{"routed S1A1 2", "half S1A3 delivered=1 gone=1"}, 2, 0, Outcomes{Delivered: 1, Gone: 1}, 0},
		"the number has a younger message since":   {[]string{"routed S1A1 1", "done S1A1 delivered=1", "in S1A5 1", "half S1A3 delivered=1"}, 2, 0, Outcomes{Delivered: 1}, 1},
		"its message was given back to the router": {[]string{"routed S1A1 1", "half S1A3 delivered=0 gone=1", "routed S1A1 1"}, 1, 0, Outcomes{}, 1},
		"touched in queue/":                        {[]string{"in S1A1 1", "routed S1A1 2", "done S1A5 delivered=2"}, 1, 1, Outcomes{Delivered: 2}, 0},
		"touched in router/":                       {[]string{"in S1A1 1", "routed S1A5 2 entered", "done S1A5 delivered=2"}, 1, 1, Outcomes{Delivered: 2}, 0},
		"lost, and the number given to a submission": {[]string{"in S1A1 2", "routed S1A5 1", "done S1A5 delivered=1"},
			3, 0, Outcomes{Delivered: 1}, 2},
		"lost, and another with the number comes in": {[]string{"in S1A1 2", "in S1A5 1", "routed S1A5 1 entered"}, 3, 0, Outcomes{}, 3},
		"restored from a copy":                       {[]string{"in S1A1 2", "moved S7A5 1", "routed S7A5 2 entered"}, 2, 0, Outcomes{}, 2},
		"touched, to an earlier time":                {[]string{"in S1A5 1", "routed S1A5 2", "moved S1A1 1", "done S1A1 delivered=2"}, 1, 1, Outcomes{Delivered: 2}, 0},
		"touched, and the number is used again":      {[]string{"in S1A5 1", "moved S1A9 1", "done S1A9 delivered=1", "in S1Aa 1"}, 2, 0, Outcomes{Delivered: 1}, 1},
		"touched behind its routing":                 {[]string{"routed S1A5 2 entered", "moved S1A1 1"}, 2, 0, Outcomes{}, 2},
		"a whole postoffice restored": {[]string{"in S1A5 1", "in S2A6 2", "in S3A7 3", "moved S2A5 1", "moved S3A6 2", "moved S1A7 3",
			"done S2A5 delivered=1", "done S3A6 delivered=2", "done S1A7 delivered=3"}, 6, 0, Outcomes{Delivered: 6}, 0},
		"found by a new ledger":             {[]string{"found S1A1 2 start", "done S1A1 delivered=2"}, 0, 0, Outcomes{Delivered: 2}, 0},
		"found, though its lines are there": {[]string{"in S1A1 1", "routed S1A1 2", "found S1A1 2 power"}, 1, 1, Outcomes{}, 2},
		"lost in a power loss":              {[]string{"routed S1A1 2", "unknown S1A1 2 power"}, 2, 0, Outcomes{Unknown: 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := book(tt.lines...)
			s := b.total()
			if b.Bad > 0 || s.Accepted != tt.accepted || s.Added != tt.added || s.Outcomes != tt.end || b.open() != tt.open {
				t.Errorf("got %+v, open %d, %d bad", s, b.open(), b.Bad)
			}
			if s.Accepted+s.Added+s.Found != s.Total()+b.open() {
				t.Errorf("%d + %d + %d accepted are not %d ended and %d open", s.Accepted, s.Added, s.Found, s.Total(), b.open())
			}
			// What base holds of it is the same.
			again := newBook()
			if !again.parse(b.appendBase(nil)) {
				t.Fatalf("base cannot be read:\n%s", b.appendBase(nil))
			}
			again.resolve()
			if got := again.total(); got != s || again.open() != b.open() {
				t.Errorf("from base: got %+v, open %d, want %+v", got, again.open(), s)
			}
		})
	}
}

func TestPowerLossIsKnownByWhoDidNotClose(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		want  bool
	}{
		"no process":                      {[]string{"in S1A1 1"}, false},
		"running":                         {[]string{"open router 1 now"}, false},
		"closed in order":                 {[]string{"open router 1 before", "close router 1"}, false},
		"one of two closed":               {[]string{"open router 1 before", "open scheduler 2 before", "close router 1"}, true},
		"the pid comes again":             {[]string{"open router 1 before", "open router 1 now", "close router 1"}, true},
		"settled":                         {[]string{"open router 1 before", "boot now"}, false},
		"settled, and lost another time":  {[]string{"open router 1 long-ago", "boot before", "open router 1 before"}, true},
		"killed without a descriptor":     {[]string{"open router 1 -", "boot now", "open router 1 -"}, false},
		"killed and started in this boot": {[]string{"open router 1 now", "open router 2 now"}, false},
	} {
		b := book(tt.lines...)
		assert.Equal(t, b.powerLost("now"), tt.want, name)
		assert.Equal(t, b.powerLost(noBoot), false, name+", and no descriptor is left")
		again := newBook()
		if !again.parse(b.appendBase(nil)) || again.powerLost("now") != tt.want {
			t.Errorf("%s: base does not keep it", name)
		}
	}
}

// K4: base that somebody cut or edited is refused, not half believed.
func TestDamagedBaseIsRefused(t *testing.T) {
	raw := string(book("open router 1 boot", "in S1A1 1", "routed S2A1 1", "done S3A1 delivered=1").appendBase(nil))
	for n := range raw {
		if b := newBook(); n < len(raw)-1 && b.parse([]byte(raw[:n])) {
			t.Fatalf("cut after %d bytes it is taken:\n%s", n, raw[:n])
		}
	}
	for old, edited := range map[string]string{
		"accepted=0": "accepted=", "through 0": "through x", "since ": "sins ", "in S1A1 1": "in S1A1 one", "end 9": "end 8", "messages": "mails",
		" routed ": "\n routed ", "zmailer ledger 1\n": "", " in ": " \x00\x00 ", " open ": " opened ",
	} {
		text := strings.Replace(raw, old, edited, 1)
		if b := newBook(); text == raw || b.parse([]byte(text)) {
			t.Errorf("%s: taken:\n%s", edited, text)
		}
	}
}

func FuzzParseBase(f *testing.F) {
	f.Add(book("open router 1 boot", "in S1A1 1", "gone S2A1 1 removed", "done S3A1 delivered=1").appendBase(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := newBook()
		if !b.parse(raw) {
			return
		}
		b.resolve()
		again := newBook()
		if !again.parse(b.appendBase(nil)) {
			t.Errorf("what was read cannot be read again:\n%s", b.appendBase(nil))
		}
		again.resolve()
		assert.Equal(t, again.total(), b.total())
	})
}
