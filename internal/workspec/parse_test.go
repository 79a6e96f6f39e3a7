package workspec

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

// group is a whole group for tables that care for something else.
const group = "s local a@example.org a@example.org 1\nr           smtp b.example b@b.example 65534\nm\nSubject: x\n\n"

func mustParse(t testing.TB, file string) *Spec {
	t.Helper()
	s, err := Parse([]byte(file))
	if err != nil {
		t.Fatalf("Parse(%.200q): %v", file, err)
	}
	return s
}

// M16
func TestEveryFieldOfARecordedFileIsRead(t *testing.T) {
	file := samples(t)["05-fail/transport-after"]
	got := mustParse(t, string(file))
	notary := func(who string) string {
		return "NOTIFY=FAILURE,DELAY ORCPT=rfc822;" + who + " INRCPT=rfc822;" + who + " INFROM=rfc822;sender@client.example.net"
	}
	headers := int64(bytes.Index(file, []byte("m\nReceived:")) + 2)
	want := &Spec{
		Format:     FormatOurs,
		Message:    "10117782",
		NameOffset: int64(bytes.Index(file, []byte("i 10117782")) + 2),
		BodyOffset: 766,
		Ident:      "<05-fail@client.example.net>",
		ErrorTo:    []string{"<sender@client.example.net>", "sender@client.example.net"},
		Complete:   true,
		Size:       int64(len(file)),
		Groups: []Group{{
			Sender: Sender{Offset: 119, Channel: "local", Host: "sender@client.example.net", Address: "sender@client.example.net", Privilege: "1"},
			Recipients: []Recipient{
				{Offset: 181, Tag: TagFailed, Channel: "smtp", Host: "b.example.com", Address: "fail1@b.example.com",
					Privilege: "65534", NotaryOffset: 238, Notary: notary("fail1@b.example.com")},
				{Offset: 368, Tag: TagOK, Channel: "smtp", Host: "b.example.com", Address: "ok@b.example.com",
					Privilege: "65534", NotaryOffset: 422, Notary: notary("ok@b.example.com")},
			},
			HeaderOffset: headers,
			HeaderEnd:    int64(bytes.LastIndex(file, []byte("\n\nd+")) + 1),
		}},
		Diagnostics: []Diagnostic{{
			LineOffset:   int64(bytes.LastIndex(file, []byte("\nd+")) + 1),
			Reported:     true,
			Recipient:    181,
			Of:           181,
			HeaderOffset: headers,
			NotaryOffset: 238,
			Time:         time.Unix(1795220010, 0),
			Notary: Notary{"fail1@b.example.com", "failed", "5.1.1", "smtp; 550 (fail1@b.example.com: no such user here)",
				"X-IP-addr; [127.0.0.1] (127.0.0.1|12525|127.0.0.1|60634)", "smtp[1199]", ""},
			Text: "\n<<- MAIL From:<sender@client.example.net> BODY=8BITMIME SIZE=429\n->> 250 2.1.0 Ok" +
				"\n<<- RCPT To:<fail1@b.example.com> NOTIFY=FAILURE,DELAY ORCPT=rfc822;fail1@b.example.com" +
				"\n->> 550 5.1.1 fail1@b.example.com: no such user here",
		}},
	}
	assert.Same(t, got, want)
	if n, ok := got.Number(); n != 10117782 || !ok {
		t.Errorf("Number() = %d, %v", n, ok)
	}
	for _, g := range got.Groups {
		for _, r := range g.Recipients {
			if file[r.Offset] != 'r' || file[r.NotaryOffset] != 'N' || file[g.HeaderEnd] != '\n' {
				t.Errorf("offsets %d, %d, %d do not point at r, N and the empty line", r.Offset, r.NotaryOffset, g.HeaderEnd)
			}
		}
	}
}

func TestRecipientLineHasTheFieldsThatTheFormatSays(t *testing.T) {
	for name, c := range map[string]struct {
		head, line string
		want       Recipient
	}{
		"no format line": {"", "r+smtp h a@h 1", Recipient{Tag: TagOK, Channel: "smtp", Host: "h", Address: "a@h", Privilege: "1"}},
		"no fields":      {"@ 0x00000000\n", "r-smtp h a@h 1", Recipient{Tag: TagFailed, Channel: "smtp", Host: "h", Address: "a@h", Privilege: "1"}},
		"owner":          {"@ 0x00000001\n", "r~  4711smtp h a@h 1", Recipient{Tag: TagLocked, Owner: 4711, Channel: "smtp", Host: "h", Address: "a@h", Privilege: "1"}},
		"delay":          {"@ 0x00000002\n", "r   23smtp h a@h 1", Recipient{Tag: TagToDo, Delay: "23", Channel: "smtp", Host: "h", Address: "a@h", Privilege: "1"}},
		"both":           {"@ 0x00000003\n", "r~999999   7smtp h a@h 1", Recipient{Tag: TagLocked, Owner: 999999, Delay: "7", Channel: "smtp", Host: "h", Address: "a@h", Privilege: "1"}},
		"blanks in the address": {"@ 0x00000007\n", "r           file file.0 /var/my mail/a b 0",
			Recipient{Tag: TagToDo, Channel: "file", Host: "file.0", Address: "/var/my mail/a b", Privilege: "0"}},
		"null sender's address": {"@ 0x00000007\n", "r           error - <> 65534", Recipient{Tag: TagToDo, Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}},
		"empty address":         {"@ 0x00000007\n", "r           error -  65534", Recipient{Tag: TagToDo, Channel: "error", Host: "-", Privilege: "65534"}},
		"NUL in the address":    {"@ 0x00000007\n", "r           smtp h a\x00b@h 1", Recipient{Tag: TagToDo, Channel: "smtp", Host: "h", Address: "a\x00b@h", Privilege: "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := c.head + "s local - x 1\n" + c.line + "\nm\n\n"
			s := mustParse(t, file)
			c.want.Offset = int64(strings.Index(file, "\nr") + 1)
			assert.Same(t, s.Groups[0].Recipients, []Recipient{c.want})
		})
	}
}

// M17
func TestUnknownFormatBitIsRefused(t *testing.T) {
	for _, bits := range []string{"0x00000080", "0x00000087", "0x80000007", "8"} {
		if s, err := Parse([]byte("@ " + bits + "\n" + group)); !errors.Is(err, ErrUnknownFormat) || s != nil {
			t.Errorf("@ %s: got %v, %v; want ErrUnknownFormat", bits, s, err)
		}
	}
	for _, bits := range []string{"0x00000003", "0x00000007", "7", "0x7"} {
		mustParse(t, "@ "+bits+"\ni 1\n")
	}
}

func TestCorruptLineIsNamedByItsOffset(t *testing.T) {
	for name, c := range map[string]struct {
		file   string
		offset int64
	}{
		"format that is no number":   {"@ seven\n", 0},
		"format too large":           {"@ 0x100000000\n", 0},
		"format line in the middle":  {"i 1\n@ 0x00000007\n", 4},
		"no message name":            {"i \n", 0},
		"two message names":          {"i 1\ni 2\n", 4},
		"body offset not a number":   {"o -1\n", 0},
		"body offset overflows":      {"o 9999999999999999999999\n", 0},
		"tag on the message name":    {"i+1\n", 0},
		"sender of three fields":     {"s local h a\n", 0},
		"empty host":                 {"s local  a 1\n", 0},
		"empty channel":              {"s  h a 1\n", 0},
		"sender alone":               {"s\n", 0},
		"recipient before a sender":  {"i 1\nr           smtp h a 1\n", 4},
		"recipient line too short":   {"@ 0x7\ns local - a 1\nr    \n", 20},
		"unknown tag":                {"s local - a 1\nr?smtp h a 1\n", 14},
		"no privilege":               {"s local - a 1\nr smtp h a\n", 14},
		"recipient after the block":  {"@ 0x7\n" + group + "r           smtp h a 1\n", 6 + int64(len(group))},
		"second block":               {"@ 0x7\n" + group + "m\n\n", 6 + int64(len(group))},
		"block without a group":      {"m\n\n", 0},
		"m with a value":             {"s l - a 1\nm x\n", 10},
		"notary before a recipient":  {"s l - a 1\nN NOTIFY=NEVER\n", 10},
		"second notary":              {"s l - a 1\nr l - a 1\nN x\nN y\n", 24},
		"second ENVID":               {"s l - a 1\nr l - a 1\nn x\nn y\n", 24},
		"group behind the z line":    {"@ 0x7\n" + group + fmt.Sprintf("z %d\n", 6+len(group)) + group, int64(6 + len(group) + len("z 100\n"))},
		"tag on the return mode":     {"s l - a 1\nr l - a 1\nR+x\n", 20},
		"notary behind the headers":  {"s l - a 1\nr l - a 1\nm\n\nN x\n", 23},
		"recipient of a broken line": {"s l - a 1\nr\n", 10},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.file))
			var bad *SyntaxError
			if !errors.As(err, &bad) {
				t.Fatalf("got %v, want a *SyntaxError", err)
			}
			if bad.Offset != c.offset {
				t.Errorf("got %v, want offset %d", err, c.offset)
			}
			if Complete([]byte(c.file)) {
				t.Error("a corrupt file is complete")
			}
		})
	}
}

func TestHeaderLinesAreNotInterpreted(t *testing.T) {
	header := "r           smtp h a 1\ns l - a 1\n@ 0x80000000\nz 3\nm\n\x00\x00\xff\r\n\r\nd+1:\n" +
		"X-Long: " + strings.Repeat("x", 200<<10) + "\n"
	file := "@ 0x00000007\ns local - a 1\nr           smtp h b 1\nm\n" + header + "\nd 27:52:0::5\t\tt\n"
	s := mustParse(t, file)
	if len(s.Groups) != 1 || len(s.Groups[0].Recipients) != 1 || len(s.Diagnostics) != 1 || !s.Complete {
		t.Fatalf("got %d groups, %d diagnostics, complete %v", len(s.Groups), len(s.Diagnostics), s.Complete)
	}
	g := s.Groups[0]
	if got := file[g.HeaderOffset:g.HeaderEnd]; got != header {
		t.Errorf("header block is %d bytes, want %d", len(got), len(header))
	}
}

func TestGroupsOfSeveralSendersMayShareTheHeaders(t *testing.T) {
	file := "s local - a 1\nr smtp h b 1\ns local - c 1\nr smtp h d 1\nm\nX: y\n\n" + "s local - e 1\nr smtp h f 1\nm\n\n"
	s := mustParse(t, file)
	if len(s.Groups) != 3 || !s.Complete {
		t.Fatalf("got %d groups, complete %v; want 3, true", len(s.Groups), s.Complete)
	}
	for i, want := range []string{"X: y\n", "X: y\n", ""} {
		g := s.Groups[i]
		assert.Equal(t, file[g.HeaderOffset:g.HeaderEnd], want, "group %d: headers", i)
	}
}

// M20
func TestDiagnosticsTellOneAddressInTwoGroupsApart(t *testing.T) {
	two := "@ 0x00000007\n" + group + group
	first := int64(strings.Index(two, "\nr") + 1)
	second := int64(strings.LastIndex(two, "\nr") + 1)
	file := AppendDiagnostic([]byte(two), &Diagnostic{Recipient: second, Text: "second"})
	file = AppendDiagnostic(file, &Diagnostic{Recipient: first, Text: "first", Reported: true})
	s := mustParse(t, string(file))
	if s.Groups[0].Recipients[0].Address != s.Groups[1].Recipients[0].Address {
		t.Fatal("the addresses differ")
	}
	got := map[int64]string{}
	for _, d := range s.Diagnostics {
		got[d.Recipient] = fmt.Sprint(d.Text, " ", d.Reported)
	}
	want := map[int64]string{s.Groups[0].Recipients[0].Offset: "first true", s.Groups[1].Recipients[0].Offset: "second false"}
	assert.Same(t, got, want)
}

// M16: an M block and unknown letters are passed over.
func TestWhatIsNotUnderstoodIsPassedOver(t *testing.T) {
	file := "@ 0x00000007\ni 5-7\nX what\nq\n\x00\x00\ns local - a 1\nQ x\nr           smtp h b 1\nK\nm\nH: v\n\nM\nr x\ns\n\nM\n\n" +
		"\nd 1:2\nd\nh\nh 12 x\nz\nz 99\n\xff\n"
	s := mustParse(t, file)
	if len(s.Groups) != 1 || len(s.Diagnostics)+len(s.History) != 0 || s.Message != "5-7" || s.Ignored != 15 {
		t.Errorf("got %+v", s)
	}
	if n, ok := s.Number(); n != 5 || !ok {
		t.Errorf("Number() = %d, %v", n, ok)
	}
}

func TestStringsDoNotAliasTheFile(t *testing.T) {
	file := []byte("@ 0x00000007\ni 77\nl ident\n" + group + "d 1:2:3::4\ta\x01b\ttext\nh 1 2 sent owner=5 word\n")
	s := mustParse(t, string(file))
	same := mustParse(t, string(file))
	again := assert.Get(Parse(file))(t)
	clear(file)
	assert.Same(t, again, s, "changed with the file")
	if diff := cmp.Diff(same, s); diff != "" {
		t.Error(diff)
	}
}

func TestFiveThousandRecipientsAreRead(t *testing.T) {
	file := largeFile(t, 5000, 200<<10)
	s := mustParse(t, string(file))
	if got := len(s.Groups[0].Recipients); got != 5000 || !s.Complete {
		t.Fatalf("got %d recipients, complete %v", got, s.Complete)
	}
}

// What is read of one host's recipients is what a whole reading has of them.
func TestReadingSomeRecipientsSaysTheSameOfThem(t *testing.T) {
	whole := largeFile(t, 700, 300)
	s := mustParse(t, string(whole))
	all := s.Groups[0].Recipients
	var b []byte
	for i := range 20 {
		r := &all[i]
		b = AppendEvent(b, &Event{Recipient: r.Offset, Event: EventDeferred, Attrs: []Attr{{"attempt", "1"}}, Text: "450 later"})
		b = AppendEvent(b, &Event{Recipient: r.Offset, Event: EventHold, Attrs: []Attr{{"id", "x"}}})
		b = AppendDiagnostic(b, &Diagnostic{Recipient: r.Offset, NotaryOffset: r.NotaryOffset, Text: "550 no"})
	}
	b = AppendEvent(b, &Event{Event: EventSent, Attrs: []Attr{{"owner", "7"}}})
	file := append(bytes.Clone(whole), b...)
	s = mustParse(t, string(file))
	const host = "h3.example"
	got := assert.Get(ParseOnly(file, func(_ int64, channel, h []byte) bool { return string(channel) == "smtp" && string(h) == host }))(t)
	want := *s
	want.Groups = []Group{s.Groups[0]}
	want.Groups[0].Recipients = nil
	kept := map[int64]bool{}
	for _, r := range s.Groups[0].Recipients {
		if r.Host == host {
			want.Groups[0].Recipients = append(want.Groups[0].Recipients, r)
			kept[r.Offset] = true
		}
	}
	want.Diagnostics, want.History = nil, nil
	for _, d := range s.Diagnostics {
		if kept[d.Recipient] {
			want.Diagnostics = append(want.Diagnostics, d)
		}
	}
	for _, e := range s.History {
		if kept[e.Recipient] || e.Event != EventDeferred {
			want.History = append(want.History, e)
		}
	}
	if len(kept) != 100 || len(want.Diagnostics) != 3 || len(want.History) != 24 {
		t.Fatalf("the file is not what the test needs: %d recipients, %d diagnostics, %d events", len(kept), len(want.Diagnostics), len(want.History))
	}
	want.Apart = got.Apart
	assert.Same(t, got, &want)
	// What is wrong with another's lines is wrong with the file.
	bad := strings.Replace(string(file), "user8@h1.example 65534\n", "user8@h1.example 65534\nN x\n", 1)
	if _, err := ParseOnly([]byte(bad), func(int64, []byte, []byte) bool { return false }); err == nil {
		t.Error("a second N line of a recipient that is not wanted was taken")
	}
	if s, err := ParseOnly(whole[:len(whole)/2], func(int64, []byte, []byte) bool { return false }); err != nil || s.Complete {
		t.Errorf("half a file: %v, complete %v", err, s.Complete)
	}
}

// The mark of a user's own message is written and read; what other
// programs write there is no such mark.
func TestAtk3OwnMailIsMarked(t *testing.T) {
	for _, own := range []bool{false, true} {
		var b bytes.Buffer
		w := NewWriter(&b)
		w.Preamble(&Spec{Message: "1-2", BodyOffset: 9, Ident: "<a@b>", Own: own, ErrorTo: []string{"a@b"}})
		w.Group(Sender{Channel: "local", Host: "a@b", Address: "a@b", Privilege: "65534"},
			[]Recipient{{Channel: "smtp", Host: "h", Address: "x@h", Privilege: "65534"}}, []byte("Subject: x\n"))
		assert.Must(t, w.Close())
		s, err := Parse(b.Bytes())
		if err != nil || s.Own != own || !s.Complete {
			t.Fatalf("own %v: got %v, complete %v, %v\n%s", own, s.Own, s.Complete, err, &b)
		}
		other, err := Parse([]byte(strings.Replace(b.String(), "u own", "u owx", 1)))
		if err != nil || other.Own {
			t.Errorf("another word: got %v, %v", other.Own, err)
		}
	}
}

func TestLockOwnersAreFoundInAnyFile(t *testing.T) {
	tests := map[string]struct {
		file string
		want string
	}{
		"locked":                  {"i 7\nr~   123    smtp h a@h 0\nr     456    smtp h b@h 0\n", "[123]"},
		"longest number":          {"r~999999    smtp h a@h 0\nr~     1    smtp h b@h 0\n", "[999999 1]"},
		"final and open":          {"r+   123    smtp h a@h 0\nr     123    smtp h b@h 0\nr-   123", "[]"},
		"without owner":           {"r~ smtp h a@h 0\n", "[]"},
		"torn, of another format": {"@ 80\nr~    55", "[55]"},
		"nothing":                 {"", "[]"},
	}
	for name, tt := range tests {
		assert.Equal(t, fmt.Sprint(LockOwners([]byte(tt.file))), tt.want, name)
	}
	b := append([]byte("r"), LockBytes(4711)...)
	assert.Equal(t, fmt.Sprint(LockOwners(b)), "[4711]", "as written by LockBytes")
}

// M18: a lock that a crash cut short names no one: half of a number is not an owner.
func TestTornLockHasNoOwner(t *testing.T) {
	const rest = "    smtp a.example.com user@a.example.com 65534\nm\nSubject: x\n\n"
	for lock, want := range map[string]int{"~  1234": 1234, "~999999": 999999, "~  12  ": 0, "~      ": 0, "~1     ": 0} {
		s := assert.Get(Parse([]byte("@ 0x00000007\ni 1\no 1\ns local - a@b 1\nr" + lock + rest)))(t)
		r := s.Groups[0].Recipients[0]
		if r.Tag != TagLocked || r.Owner != want {
			t.Errorf("%q: tag %q owner %d, want a lock of %d", lock, r.Tag, r.Owner, want)
		}
	}
}

// Op7: where a message came in is kept in its specification; a word that would break the line
// is left out, and a second line is passed over.
func TestOp7OriginIsKept(t *testing.T) {
	for _, c := range []struct{ in, want Spec }{
		{Spec{Client: "[192.0.2.1]:25", ClientName: "mx.example", User: "alice"}, Spec{Client: "[192.0.2.1]:25", ClientName: "mx.example", User: "alice"}},
		{Spec{Client: "[IPv6:2001:db8::1]:25"}, Spec{Client: "[IPv6:2001:db8::1]:25"}},
		{Spec{User: "a+20b"}, Spec{User: "a+20b"}},
		{Spec{Client: "[192.0.2.1]", User: "a\nz 1 2"}, Spec{Client: "[192.0.2.1]"}},
		{Spec{ClientName: "x"}, Spec{}},
	} {
		var b bytes.Buffer
		w := NewWriter(&b)
		in := c.in
		in.Message, in.BodyOffset = "1-2", 9
		w.Preamble(&in)
		w.Begin(&Sender{Channel: "local", Host: "a@b", Address: "a@b", Privilege: "0"})
		w.Recipient(&Recipient{Channel: "smtp", Host: "h", Address: "c@d", Privilege: "0"})
		w.Header([]byte("Subject: x\n"))
		assert.Must(t, w.Close())
		for _, text := range []string{b.String(), strings.Replace(b.String(), "\ns ", "\nc [198.51.100.1]:1 x y\ns ", 1)} {
			s := assert.Get(Parse([]byte(text)))(t)
			if c.want.Client != "" || c.want.User != "" || text == b.String() {
				assert.Equal(t, [3]string{s.Client, s.ClientName, s.User}, [3]string{c.want.Client, c.want.ClientName, c.want.User}, text)
			}
		}
	}
}
