package envelope

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"zmailer/internal/run/assert"
)

// dsn gives recipients of one address each without a todsn.
func recipients(addresses ...string) []Recipient {
	var list []Recipient
	for _, a := range addresses {
		list = append(list, Recipient{Address: a})
	}
	return list
}

func TestEnvelopesAreRead(t *testing.T) {
	all := "comment octets 0000000000000123\nexternal\nrcvdfrom host.example ([192.0.2.1])\nbodytype 8BITMIME\nerrormsg\n" +
		"comment one\ncomment two\nwith ESMTP\nidentinfo none\nfullname James Bond\nloginname bond\nvia local\nuser jb\n" +
		"verbose ../public/v1\nfrom <a@b.example>\nenvid QQ1\nnotaryret HDRS\ntodsn NOTIFY=NEVER\nto <c@d.example>\nenv-end\n"
	cases := map[string]struct {
		in     string
		want   Envelope
		header string // the block
		body   string // what follows BodyOffset
	}{
		"the smallest legal file": {in: "to bond\n\n", want: Envelope{Octets: -1, Recipients: recipients("bond")}},
		"every keyword": {in: all + "S: x\n\nbody", header: "S: x\n", body: "body", want: Envelope{
			Octets: 123, External: true, RcvdFrom: "host.example ([192.0.2.1])", BodyType: "8BITMIME", ErrorMsg: true,
			Comments: []string{"one", "two"}, With: "ESMTP", IdentInfo: "none", FullName: "James Bond", LoginName: "bond",
			Via: "local", User: "jb", Verbose: "../public/v1", From: "a@b.example", HasFrom: true, EnvID: "QQ1",
			NotaryRet: "HDRS", Recipients: []Recipient{{"c@d.example", "NOTIFY=NEVER"}}}},
		"keywords in any case": {in: "FROM <a@b>\nTo c@d\nENV-END\nS: x\n\n", header: "S: x\n", want: Envelope{
			Octets: -1, From: "a@b", HasFrom: true, Recipients: recipients("c@d")}},
		"env-eof ends it too": {in: "to c\nenv-eof\nS: x\n\nb\n", header: "S: x\n", body: "b\n",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"a header line ends it": {in: "to c\nSubject: x\nenv-end\n\nb\n", header: "Subject: x\nenv-end\n", body: "b\n",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"an old header line with a blank ends it": {in: "to c\nSubject : x\n\n", header: "Subject : x\n",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"From : is a header": {in: "to c\nFrom : x\n\n", header: "From : x\n",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"comment with a colon is none": {in: "comment : x\nto c\nenv-end\n", want: Envelope{Octets: -1, Comments: []string{": x"}, Recipients: recipients("c")}},
		"headers alone":                {in: "To: bond\nSubject: x\n\nb", header: "To: bond\nSubject: x\n", body: "b", want: Envelope{Octets: -1}},
		"an empty line ends it, then body": {in: "to bond\n\nTo: none\n", body: "To: none\n",
			want: Envelope{Octets: -1, Recipients: recipients("bond")}},
		"no header, body after env-end": {in: "to c\nenv-end\n\nbody\n", body: "body\n", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"nothing after env-end":         {in: "to c\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"env-end without newline":       {in: "to c\nenv-end", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"header without end":            {in: "to c\nenv-end\nA: 1\nB: 2\n", header: "A: 1\nB: 2\n", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"header without newline":        {in: "to c\nenv-end\nA: 1\nB: 2", header: "A: 1\nB: 2", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"body without newline":          {in: "to c\nenv-end\nA: 1\n\nx", header: "A: 1\n", body: "x", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"body of newlines":              {in: "to c\nenv-end\nA: 1\n\n\n\n", header: "A: 1\n", body: "\n\n", want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"NUL and 8-bit in header and body": {in: "to c\nenv-end\nA: \x00\xff\n\x00\n\n\x00\xff\r\n", header: "A: \x00\xff\n\x00\n", body: "\x00\xff\r\n",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"CR in the header is no line end": {in: "to c\nenv-end\nA: 1\r\n\r\nB: 2\n\nb", header: "A: 1\r\n\r\nB: 2\n", body: "b",
			want: Envelope{Octets: -1, Recipients: recipients("c")}},
		"channel error is the null sender": {in: "channel error\nto c\nenv-end\n", want: Envelope{Octets: -1, HasFrom: true, Recipients: recipients("c")}},
		"from <> is the null sender":       {in: "from <>\nto c\nenv-end\n", want: Envelope{Octets: -1, HasFrom: true, Recipients: recipients("c")}},
		"from with nothing is too":         {in: "from\nto c\nenv-end\n", want: Envelope{Octets: -1, HasFrom: true, Recipients: recipients("c")}},
		"one sender said twice":            {in: "channel error\nfrom <>\nto c\nenv-end\n", want: Envelope{Octets: -1, HasFrom: true, Recipients: recipients("c")}},
		"another channel is not known":     {in: "channel uucp\nto c\nenv-end\n", want: Envelope{Octets: -1, Unknown: []string{"channel"}, Recipients: recipients("c")}},
		"comma list":                       {in: "to a@b, <c@d>,e ,\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a@b", "c@d", "e")}},
		"commas that part nothing": {in: `to "a,b"@c, <@x,@y:d@e>, "f\",g"@h, i@[x:1,2]` + "\nenv-end\n",
			want: Envelope{Octets: -1, Recipients: recipients(`"a,b"@c`, "@x,@y:d@e", `"f\",g"@h`, "i@[x:1,2]")}},
		"todsn is for the next to only": {in: "todsn NOTIFY=NEVER\nto a, b\nto c\nenv-end\n", want: Envelope{Octets: -1,
			Recipients: []Recipient{{"a", "NOTIFY=NEVER"}, {"b", "NOTIFY=NEVER"}, {"c", ""}}}},
		"the second todsn counts": {in: "todsn 1\ntodsn 2\nto a\nenv-end\n", want: Envelope{Octets: -1, Recipients: []Recipient{{"a", "2"}}}},
		"todsn for no one":        {in: "to a\ntodsn 1\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a"), Unknown: []string{"todsn"}}},
		"unknown keywords":        {in: "colour red\nx-y\nto a\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a"), Unknown: []string{"colour", "x-y"}}},
		"tabs and blanks between": {in: "from\t <a@b> \t\nto  c  \nenv-end \n", want: Envelope{Octets: -1, From: "a@b", HasFrom: true, Recipients: recipients("c")}},
		"octets not in line one":  {in: "to a\ncomment octets 12\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a"), Comments: []string{"octets 12"}}},
		"octets with a checksum":  {in: "comment octets 0000000000000012 0a1b2c3d\nto a\nenv-end\n", want: Envelope{Octets: 12, Recipients: recipients("a")}},
		"octets with no checksum": {in: "comment octets 12 0a1b2c3\nto a\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a"), Comments: []string{"octets 12 0a1b2c3"}}},
		"octets that are none":    {in: "comment octets 12 more\nto a\nenv-end\n", want: Envelope{Octets: -1, Recipients: recipients("a"), Comments: []string{"octets 12 more"}}},
		"8-bit in a value":        {in: "rcvdfrom h\xfcst\nto a\nenv-end\n", want: Envelope{Octets: -1, RcvdFrom: "h\xfcst", Recipients: recipients("a")}},
		"SMTPUTF8":                {in: "from <δ@π.example>\nto ü@ü.example\nenv-end\n", want: Envelope{Octets: -1, From: "δ@π.example", HasFrom: true, Recipients: recipients("ü@ü.example")}},
		"the address as written":  {in: "from <@r.example:A@B.example.>\nto \"a\"@b\nenv-end\n", want: Envelope{Octets: -1, From: "@r.example:A@B.example.", HasFrom: true, Recipients: recipients(`"a"@b`)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := assert.Get(Read(strings.NewReader(c.in)))(t)
			assert.Same(t, m.Envelope, c.want, "envelope")
			assert.Equal(t, string(m.Header), c.header, "header")
			assert.Equal(t, c.in[m.BodyOffset:], c.body)
			checkOffsets(t, []byte(c.in), m)
		})
	}
}

// checkOffsets defines what holds for every message that was read.
func checkOffsets(t *testing.T, file []byte, m *Message) {
	t.Helper()
	end := m.HeaderOffset + int64(len(m.Header))
	if m.HeaderOffset < 0 || end > int64(len(file)) || !bytes.Equal(m.Header, file[m.HeaderOffset:end]) {
		t.Fatalf("header at %d: got %.100q, want the file's bytes", m.HeaderOffset, m.Header)
	}
	switch m.BodyOffset - end {
	case 0:
	case 1:
		if file[end] != '\n' {
			t.Fatalf("between header and body: got %q, want an empty line", file[end])
		}
	default:
		t.Fatalf("body: got offset %d, want %d or one more", m.BodyOffset, end)
	}
	var all []byte
	for _, f := range Fields(m.Header) {
		all = append(all, f.Raw...)
	}
	if !bytes.Equal(all, m.Header) {
		t.Fatalf("fields together: got %.100q, want %.100q", all, m.Header)
	}
}

// M12: a file that cannot be a message is refused with the line.
func TestBrokenEnvelopesAreRefusedWithTheirLine(t *testing.T) {
	cases := map[string]struct {
		in     string
		line   int
		reason string
	}{
		"empty file":                   {"", 1, "the file ends before"},
		"one empty line":               {"\n", 1, "names a recipient"},
		"nothing but env-end":          {"from <a@b>\nenv-end\n\nbody", 3, "names a recipient"},
		"cut in the first line":        {"fro", 1, "the file ends before"},
		"cut after an envelope line":   {"from <a@b>\nto <c@d>\n", 3, "the file ends before"},
		"cut in the envelope":          {"from <a@b>\nto <c@", 2, "the file ends before"},
		"zeros, as after a power loss": {strings.Repeat("\x00", 4096), 1, "the file ends before"},
		"zeros behind a line":          {"to a\n" + strings.Repeat("\x00", 100) + "\n\n", 2, "control character"},
		"NUL in an address":            {"to a\x00b\nenv-end\n", 1, "control character"},
		"NUL in a comment":             {"comment \x00\nto a\nenv-end\n", 1, "control character"},
		"CR LF lines":                  {"from <a@b>\r\nto <c@d>\r\nenv-end\r\n\r\n", 1, "control character"},
		"continuation line":            {"to a\n b\nenv-end\n", 2, "begins with a blank"},
		"line of blanks":               {"to a\n  \nenv-end\n", 2, "begins with a blank"},
		"neither keyword nor header":   {"to a\n*** hello\nenv-end\n", 2, "neither an envelope keyword nor a header"},
		"number":                       {"to a\n12 b\nenv-end\n", 2, "neither an envelope keyword nor a header"},
		"8-bit keyword":                {"to a\ncaf\xe9 b\nenv-end\n", 2, "neither an envelope keyword nor a header"},
		"bad sender":                   {"from <a b@c>\nto a\nenv-end\n", 1, `" " after the local part`},
		"mailbox line of an mbox":      {"From bond Sat Nov 21 00:12:50 2026\nTo: x\n\n", 1, `" " after the local part`},
		"bad recipient":                {"from <a@b>\nto <c@@d>\nenv-end\n", 2, `"@" in the domain`},
		"bad second in a list":         {"to a, b c\nenv-end\n", 1, `" " after the local part`},
		"not UTF-8":                    {"to j\xfcrgen@b\nenv-end\n", 1, "not UTF-8"},
		"null recipient":               {"to <>\nenv-end\n", 1, "the null address"},
		"no recipient":                 {"to\nenv-end\n", 1, "no address"},
		"list of commas":               {"to ,,\nenv-end\n", 1, "no address"},
		"two senders":                  {"from <a@b>\nfrom <c@d>\nto a\nenv-end\n", 2, "a second sender"},
		"sender and null sender":       {"from <a@b>\nchannel error\nto a\nenv-end\n", 2, "a second sender"},
		"brackets not closed":          {"to <a, b\nenv-end\n", 1, "< without >"},
		"endless envelope":             {strings.Repeat("comment "+strings.Repeat("x", 1<<16)+"\n", 300), 256, "the envelope goes on"},
		"endless line":                 {"to a\ncomment " + strings.Repeat("x", 20<<20), 2, "the envelope goes on"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := Read(strings.NewReader(c.in))
			var s *SyntaxError
			if !errors.As(err, &s) {
				t.Fatalf("got %+v, %v, want a *SyntaxError", m, err)
			}
			if s.Line != c.line || !strings.Contains(s.Reason, c.reason) {
				t.Errorf("got line %d, %q, want line %d, %q", s.Line, s.Reason, c.line, c.reason)
			}
			if len(s.Text) > 100 {
				t.Errorf("text: got %d bytes, want at most 100", len(s.Text))
			}
		})
	}
}

func TestLongHeadersAreHeldUpToTheLimit(t *testing.T) {
	const head = "to a\nenv-end\n"
	line := "X-Line: " + strings.Repeat("x", 91) + "\n" // 100 bytes
	full := strings.Repeat(line, MaxHeader/len(line))
	cases := map[string]struct {
		rest      string
		header    int  // bytes of it
		emptyLine bool // follows
	}{
		"a line of 200 kB":             {"S: " + strings.Repeat("y", 200<<10) + "\n\nbody", 200<<10 + 4, true},
		"a folded field of 200 kB":     {"S: a\n" + strings.Repeat(" y\n", 70<<10) + "\nbody", 5 + 3*70<<10, true},
		"as much as is held":           {full + "\nbody", len(full), true},
		"a line more than is held":     {full + line + line + "\nbody", len(full), false},
		"a line that never ends":       {strings.Repeat("z", MaxHeader+4096), 0, false},
		"a field that never ends":      {"S: x\nT: " + strings.Repeat("z", MaxHeader+4096), 5, false},
		"exactly the limit, no line":   {full + strings.Repeat("q", MaxHeader-len(full)), MaxHeader, false},
		"exactly the limit, then line": {full + strings.Repeat("q", MaxHeader-len(full)-1) + "\n\nbody", MaxHeader, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := []byte(head + c.rest)
			m := assert.Get(Read(bytes.NewReader(file)))(t)
			checkOffsets(t, file, m)
			assert.Equal(t, len(m.Header), c.header, "header")
			assert.Equal(t, m.BodyOffset == m.HeaderOffset+int64(len(m.Header))+1, c.emptyLine, "empty line after it")
		})
	}
}

// A body is not read: the head's reader stops within its buffer.
func TestNoMoreIsReadThanTheBufferHolds(t *testing.T) {
	r := &countingReader{r: strings.NewReader("to a\nenv-end\nS: x\n\n" + strings.Repeat("body\n", 1<<20))}
	assert.Get(Read(r))(t)
	if r.bytes > firstRead || r.calls > 1 {
		t.Errorf("got %d bytes in %d reads, want %d in 1", r.bytes, r.calls, firstRead)
	}
}

type countingReader struct {
	r            io.Reader
	bytes, calls int
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.bytes += n
	c.calls++
	return n, err
}

func TestReadSizesDoNotChangeTheResult(t *testing.T) {
	files := map[string]string{
		"common":     "from <a@b>\nto <c@d>\nenv-end\nS: x\n y\nT: z\n\nbody\n",
		"no end":     "to a\nSubject: x\nT: y",
		"two blanks": "to a\n\n\n",
		"long":       "to a\nenv-end\n" + strings.Repeat("S: x\n", 5000) + "\n",
	}
	for name, file := range files {
		want := assert.Get(Read(strings.NewReader(file)))(t)
		for how, wrap := range map[string]func(io.Reader) io.Reader{
			"a byte at a time": iotest.OneByteReader, "halves": iotest.HalfReader, "data with EOF": iotest.DataErrReader,
		} {
			got, err := Read(wrap(strings.NewReader(file)))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: got %+v, %v, want %+v", name, how, got, err, want)
			}
		}
	}
}

// K12: a disk's error is not taken for a broken envelope.
func TestReadersErrorIsNoSyntaxError(t *testing.T) {
	broken := errors.New("input/output error")
	for name, start := range map[string]string{"in the envelope": "to a\nfr", "in the header": "to a\nenv-end\nS: x\n", "at once": ""} {
		_, err := Read(io.MultiReader(strings.NewReader(start), iotest.ErrReader(broken)))
		var s *SyntaxError
		if !errors.Is(err, broken) || errors.As(err, &s) {
			t.Errorf("%s: got %v, want the reader's error", name, err)
		}
	}
	if _, err := Read(silent{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: got %v, want io.ErrNoProgress", err)
	}
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }
