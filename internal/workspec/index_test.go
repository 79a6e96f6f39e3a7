package workspec

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
)

// hosts returns a closed specification of several groups, one of which shares its header
// block with the next, and of hosts in several spellings.
func hosts(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98, ErrorTo: []string{"a@example.org"}, Start: []string{"h1.example"}})
	for i, verp := range []string{"", "+", ""} {
		w.Group(Sender{Channel: "local", Host: "-", Address: fmt.Sprintf("s%d@example.org", i), Privilege: "1", VERP: verp},
			manyRecipients(20+i), []byte(fmt.Sprintf("Subject: %d\nN x\nr y\n", i)))
	}
	list := manyRecipients(3)
	list[0].Host, list[1].Host, list[2].Host = "H1.Example", "h\u212a.example", "hk.example"
	w.Group(Sender{Channel: "local", Host: "-", Address: "last@example.org", Privilege: "1"}, list, nil)
	assert.Must(t, w.Close())
	// The second group has the header block of the third, and the router names each
	// sender before its group.
	text := b.String()
	from := strings.Index(text, "m\nSubject: 1")
	to := from + strings.Index(text[from:], "\n\n") + 2
	text = text[:from] + text[to:]
	text = text[:strings.LastIndex(text[:len(text)-1], "\nz ")+1]
	for i := range 3 {
		text = strings.Replace(text, fmt.Sprintf("\ns local - s%d@", i), fmt.Sprintf("\ne s%d@example.org\ns local - s%d@", i, i), 1)
	}
	return closed(t, text)
}

// closed returns a text with the z line that it needs.
func closed(t testing.TB, text string) []byte {
	t.Helper()
	s := mustParse(t, text)
	var all sum
	at := int64(0)
	for i := range s.Groups {
		for _, r := range s.Groups[i].Recipients {
			all = all.add([]byte(text[at : r.Offset+1]))
			at = r.Offset + 1 + int64(fixedWidth(s.Format))
		}
	}
	all = all.add([]byte(text[at:]))
	return append(fmt.Appendf([]byte(text), "z %d", len(text)), append(all.appendSum(nil), '\n')...)
}

// appendix are lines about single recipients, about several and about all.
func appendix(s *Spec) []byte {
	var b []byte
	var all []int64
	now := time.UnixMilli(1795220010123)
	for i := range s.Groups {
		for j := range s.Groups[i].Recipients {
			r := &s.Groups[i].Recipients[j]
			all = append(all, r.Offset)
			switch j % 5 {
			case 0:
				b = AppendEvent(b, &Event{Time: now, Recipient: r.Offset, Event: EventSent, Attrs: []Attr{{"owner", "7"}}})
			case 1:
				b = AppendDiagnostic(b, &Diagnostic{Time: now, Recipient: r.Offset, NotaryOffset: r.NotaryOffset, Notary: Notary{Action: "failed"}, Text: "550 no\nno"})
			case 2:
				e := DeferredEvent(now, r.Offset, 1, now, status.Code{Class: 4, Subject: 2, Detail: 1}, "450 later")
				b = AppendEvent(b, &e)
			}
		}
	}
	e := RemovedEvent(now, EventRemoved, "x", all[3:9], "me")
	b = AppendEvent(b, &e)
	b = append(b, "h 1795220010"+tornEndForTests...)
	e = RemovedEvent(now, EventHold, "x", all[len(all)-4:], "me")
	b = AppendEvent(b, &e)
	b = AppendEvent(b, &Event{Time: now, Event: EventUnlocked, Attrs: []Attr{{"owner", "7"}, {"rcpts", "1,2"}}})
	b = AppendEvent(b, &Event{Time: now, Event: EventSent, Attrs: []Attr{{"owner", "9"}}})
	return AppendEvent(b, &Event{Time: now, Event: EventReport, Attrs: []Attr{{"file", "T"}}})
}

const tornEndForTests = "\x18\n"

// sameOf compares what an agent asks of the recipients of a host: by a partial read of the
// index, and by reading all.
func sameOf(t *testing.T, file []byte, o *Index, whole *Spec, host string) {
	t.Helper()
	e := o.pick(host)
	if e == nil {
		for i := range whole.Groups {
			for _, r := range whole.Groups[i].Recipients {
				if hashHost([]byte(host)) != 0 && strings.EqualFold(r.Host, host) {
					t.Fatalf("%q: no partial read, but there is %+v", host, r)
				}
			}
		}
		return
	}
	read := 0
	assert.Get(e.Fill(nil, func(b []byte, off int64) error { read += copy(b, file[off:]); return nil }))(t)
	s, ok := e.Parse()
	if !ok {
		t.Fatalf("%q: the partial read %v of %q was refused", host, e.Parts, file)
	}
	if got := e.Slice(0, 1); string(got) != "@" || e.Slice(e.Parts[0].To-1, e.Parts[0].To+1) != nil {
		t.Errorf("%q: got %q as the first byte, or bytes of two parts", host, got)
	}
	assert.Same(t, asked(t, s, host), asked(t, whole, host), host)
	if !s.Complete || s.ZOffset != whole.ZOffset || s.Message != whole.Message || s.BodyOffset != whole.BodyOffset {
		t.Errorf("%q: got %+v", host, s)
	}
}

// asked returns what an agent wants to know.
func asked(t *testing.T, s *Spec, host string) (list []any) {
	t.Helper()
	doubts, removal, orders := s.Doubts(), s.Removal(), s.Orders()
	for i := range s.Groups {
		g := s.Groups[i]
		rcpts := g.Recipients
		g.Recipients = nil
		for j := range rcpts {
			r := &rcpts[j]
			if !strings.EqualFold(r.Host, host) {
				continue
			}
			list = append(list, g, *r, doubts.About(r), doubts.Sent(r), removal.Removed(r), orders.Waits(r, time.UnixMilli(1)))
			for _, h := range s.History {
				if h.Recipient == r.Offset {
					list = append(list, h)
				}
			}
			for _, d := range s.Diagnostics {
				if d.Recipient == r.Offset {
					list = append(list, d)
				}
			}
		}
	}
	return list
}

// By the index an agent sees of a host's recipients what it sees in the whole file, also
// of what was appended since, and reads little.
func TestPartialSaysTheSameOfAHost(t *testing.T) {
	file := hosts(t)
	s := mustParse(t, string(file))
	if !s.Complete || len(s.Groups) != 4 || s.Groups[1].HeaderOffset != s.Groups[2].HeaderOffset {
		t.Fatalf("the file is not what the test needs: %+v", s)
	}
	o := NewIndex(file, s)
	if o == nil {
		t.Fatal("no index")
	}
	names := []string{"nowhere.example", "H1.EXAMPLE", "hk.example", "h\u212a.example"}
	for i := range 7 {
		names = append(names, fmt.Sprintf("h%d.example", i))
	}
	more := appendix(s)
	for range 3 { // the file alone, with lines behind it in two steps
		whole := mustParse(t, string(file))
		for _, host := range names {
			sameOf(t, file, o, whole, host)
		}
		n := bytes.IndexByte(more[len(more)/2:], '\n') + len(more)/2 + 1
		file = append(file, more[:n]...)
		if more = more[n:]; !o.Follow(append(file[o.Last():], "h 17"...)) || o.End() != int64(len(file)) {
			t.Fatalf("got an end at %d, want %d", o.End(), len(file))
		}
		if len(more) == 0 {
			more = []byte("\n")
		}
	}
}

// Of a file to many hosts little is read for one; of one to few hosts all is.
func TestPartialIsSmall(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98})
	rcpts := manyRecipients(7000)
	for i := range rcpts {
		rcpts[i].Host = fmt.Sprintf("h%d.example", i/2)
	}
	w.Group(Sender{Channel: "local", Host: "-", Address: "a@example.org", Privilege: "1"}, rcpts, []byte("Subject: x\n"))
	assert.Must(t, w.Close())
	o := NewIndex(b.Bytes(), mustParse(t, b.String()))
	if e := o.Partial("h3.example"); e == nil || e.size() > 1000 || len(e.rcpts) != 2 || len(e.Parts) != 3 {
		t.Errorf("got %+v, want two recipients in three parts and 1,000 bytes", e)
	}
	file := largeFile(t, 700, 300)
	if o := NewIndex(file, mustParse(t, string(file))); o.Partial("h3.example") != nil {
		t.Error("a seventh of all lines is read one by one")
	}
}

// Another file, or one that was changed by hand, is not what the index says.
func TestPartialOfAnotherFileIsRefused(t *testing.T) {
	file := hosts(t)
	s := mustParse(t, string(file))
	o := NewIndex(file, s)
	r := s.Groups[0].Recipients[3]
	at := func(off int64, text string) []byte {
		b := bytes.Clone(file)
		copy(b[off:], text)
		return b
	}
	shifted := append(bytes.Clone(file[:r.Offset]), file[s.Groups[0].Recipients[4].Offset:]...)
	for name, b := range map[string][]byte{
		"another checksum":       at(s.ZOffset+7, "x"),
		"no recipient there":     at(r.Offset, "N"),
		"a line less":            append(shifted, make([]byte, len(file)-len(shifted))...),
		"another format":         at(0, "@ 0x00000003"),
		"a tag that there isn't": at(r.Offset+1, "?"),
		"header block elsewhere": at(s.Groups[0].HeaderOffset, "\n"),
		"a shorter header block": at(s.Groups[0].HeaderEnd-2, "\n"),
	} {
		e := o.pick(r.Host)
		assert.Get(e.Fill(nil, func(dst []byte, off int64) error { copy(dst, b[off:]); return nil }))(t)
		if _, ok := e.Parse(); ok {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// Files that are not as Writer leaves them are read whole.
func TestFilesWithoutIndex(t *testing.T) {
	file := string(hosts(t))
	z := strings.LastIndex(file[:len(file)-1], "\nz ") + 1
	line := file[z:]
	between := strings.Replace(file[:z], "e s1@", "v x\ne s1@", 1)
	for name, text := range map[string]string{
		"no z line":               file[:z],
		"z line without sum":      file[:z] + line[:strings.LastIndexByte(line, ' ')] + "\n",
		"preamble between groups": string(closed(t, between)),
		"preamble in a group":     string(closed(t, strings.Replace(file[:z], "e s2@", "v x\ne s2@", 1))),
		"too many recipients":     string(closed(t, tooMany())),
		"too many lines":          file + strings.Repeat("h 1 0 x\n", MaxPlaces+1),
	} {
		s := mustParse(t, text)
		if s.Complete != (name != "no z line") {
			t.Fatalf("%s: got complete %v", name, s.Complete)
		}
		if NewIndex([]byte(text), s) != nil {
			t.Errorf("%s: it has an index", name)
		}
	}
	o := NewIndex([]byte(file), mustParse(t, file))
	if o.Follow([]byte(file[o.Last():] + strings.Repeat("h 1 0 x\n", MaxPlaces))) {
		t.Error("an index grows without end")
	}
}

// tooMany are more recipients than an index may have.
func tooMany() string {
	return "@ 0x00000007\nz -\ni 1-2\no 9\ns c h a 1\n" + strings.Repeat("r           c h a 1\n", MaxPlaces) + "m\n\n"
}

// A file that was cut off behind its z line and has grown again is known by its last line,
// whose tag may have changed.
func TestIndexKnowsItsLastLine(t *testing.T) {
	file := hosts(t)
	s := mustParse(t, string(file))
	rs := s.Groups[0].Recipients
	line := func(recipient int64, text string) string {
		return string(AppendDiagnostic(nil, &Diagnostic{Time: time.Unix(1, 0), Recipient: recipient, Notary: Notary{Action: "failed"}, Text: text}))
	}
	known := line(rs[1].Offset, "550 no")
	long := line(rs[1].Offset, strings.Repeat("x", 2*maxLast))
	for name, c := range map[string]struct {
		before, after string
		want          bool
	}{
		"nothing":                   {known, known, true},
		"reported":                  {known, "d+" + known[2:], true},
		"about another one":         {known, line(rs[2].Offset, "550 no"), false},
		"another tag of an event":   {"h 1 0 x\n", "h+1 0 x\n", false},
		"cut off":                   {known, "", false},
		"a long one":                {long, long + known, true},
		"a long one with other end": {long, long[:len(long)-2] + "y\n", false},
		"a line before":             {known + known, line(rs[2].Offset, "550 no") + known, true},
	} {
		o := NewIndex(append(bytes.Clone(file), c.before...), mustParse(t, string(file)+c.before))
		now := append(bytes.Clone(file), c.after...)
		assert.Equal(t, o.Follow(now[min(o.Last(), int64(len(now))):]), c.want, name)
		if name != "a line before" {
			continue
		}
		// The first line is not about him any more.
		e := o.pick(rs[1].Host)
		assert.Get(e.Fill(nil, func(b []byte, off int64) error { copy(b, now[off:]); return nil }))(t)
		if _, ok := e.Parse(); ok {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// FuzzIndex: whatever the file holds and whatever is appended, a partial read says of a
// host's recipients what the whole file does.
func FuzzIndex(f *testing.F) {
	file := hosts(f)
	f.Add(file, appendix(mustParse(f, string(file))), "h1.example")
	f.Add(written(f), []byte("h 1 0 sent owner=3 rcpts=100\n"), "example.org")
	for _, b := range samples(f) {
		f.Add(b, []byte("h 1 300 removed id=x\nh 1 0 hold rcpts=300,400  rcpts=2\n"), "example.org")
	}
	f.Fuzz(func(t *testing.T, file, more []byte, host string) {
		s, err := Parse(file)
		if err != nil || !s.Complete {
			return
		}
		o := NewIndex(file, s)
		if o == nil {
			return
		}
		file = append(file[:o.End():o.End()], more...)
		whole, err := Parse(file)
		if err != nil || !o.Follow(file[o.Last():]) {
			return // read whole, and refused
		}
		sameOf(t, file, o, whole, host)
	})
}
