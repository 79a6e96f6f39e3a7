package postfix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/admin/importer"
	"zmailer/internal/run/assert"
	"zmailer/test/importertest"
)

// rec returns a record as Postfix writes it.
func rec(kind byte, text string) string {
	b := []byte{kind}
	n := len(text)
	for {
		c := byte(n & 0x7f)
		if n >>= 7; n > 0 {
			b = append(b, c|0x80)
			continue
		}
		return string(append(b, c)) + text
	}
}

// queueFile returns a whole file with these records before the content and behind it.
func queueFile(before, content, after string) string {
	return rec('C', "            1   2   3   4") + rec('T', "1700000000 123456") + before + rec('M', "") + content + rec('X', "") + after + rec('E', "")
}

func read(t *testing.T, file string) (*head, string, error) {
	t.Helper()
	r := strings.NewReader(file)
	h, err := readHead(r, r.Size())
	if err != nil {
		return nil, "", err
	}
	var b bytes.Buffer
	return h, b.String(), writeContent(r, r.Size(), &b)
}

func TestOpenRecipientsKeepTheirWishes(t *testing.T) {
	file := queueFile(rec('A', "encoding=8bit")+rec('A', "envelope_id=a+b")+rec('A', "ret_flags=2")+rec('S', "the boss@x.example")+
		rec('A', "dsn_orig_rcpt=rfc822;or=ig@y.example")+rec('A', "notify_flags=6")+rec('O', "orig@y.example")+rec('R', "one@y.example")+
		rec('n', "1")+rec('D', "done@y.example")+rec('R', "two@y.example")+rec('/', "canceled@y.example")+rec('R', "two@y.example"),
		rec('N', "Subject: x"), rec('R', "found@y.example"))
	h, _, err := read(t, file)
	assert.Must(t, err)
	p := h.part()
	got := fmt.Sprintf("%s %s %s %s %v", p.Sender, p.EnvID, p.Ret, h.bodyType, p.Recipients)
	want := `"the boss"@x.example a+2Bb HDRS 8BITMIME [{one@y.example NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;or+3Dig@y.example} {two@y.example } {found@y.example }]`
	assert.Equal(t, got, want)
}

func TestRedirectedMailGoesThereAlone(t *testing.T) {
	h, _, err := read(t, queueFile(rec('>', "there@z.example")+rec('S', "")+rec('R', "a@y.example")+rec('R', "b@y.example"), rec('N', ""), ""))
	assert.Must(t, err)
	if p := h.part(); len(p.Recipients) != 1 || p.Recipients[0].Address != "there@z.example" || p.Sender != "" {
		t.Errorf("got %+v", p)
	}
}

func TestContentIsWrittenByteForByte(t *testing.T) {
	long := strings.Repeat("x", 3000)
	cases := map[string]struct{ records, want string }{
		"lines":                {rec('N', "Subject: x") + rec('N', "") + rec('N', ".") + rec('N', "\xff\x00"), "Subject: x\n\n.\n\xff\x00\n"},
		"a long line":          {rec('L', long) + rec('L', long) + rec('N', "end"), long + long + "end\n"},
		"no end of the last":   {rec('N', "A: b") + rec('L', "half"), "A: b\nhalf"},
		"room for a pointer":   {rec('N', "A: b") + rec('p', "              0") + rec('N', "C: d"), "A: b\nC: d\n"},
		"padding":              {rec('w', "0000") + rec('N', "A: b"), "A: b\n"},
		"nothing":              {"", ""},
		"record like a header": {rec('N', "M") + rec('N', "E"), "M\nE\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := strings.NewReader(queueFile(rec('S', "s")+rec('R', "r"), c.records, ""))
			var b bytes.Buffer
			if err := writeContent(r, r.Size(), &b); err != nil || b.String() != c.want {
				t.Errorf("got %q, %v; want %q", b.String(), err, c.want)
			}
		})
	}
}

// A milter's changes stand at the end of the file, and pointers lead there and back.
func TestPointersAreFollowed(t *testing.T) {
	const room = "              0"
	pointer := func(to int) string { return rec('p', fmt.Sprintf("%15d", to)) }
	start := rec('T', "1700000000 0") + rec('S', "s@x") + rec('R', "r@x") + rec('M', "") + rec('N', "A: old")
	back := rec('N', "") + rec('N', "body") + rec('X', "") + rec('E', "")
	at := len(start)
	end := at + len(rec('p', room)) + len(back)
	file := start + pointer(end) + back + rec('N', "B: new") + pointer(at+len(rec('p', room)))
	r := strings.NewReader(file)
	var b bytes.Buffer
	if err := writeContent(r, r.Size(), &b); err != nil || b.String() != "A: old\nB: new\n\nbody\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
	if h, err := readHead(r, r.Size()); err != nil || len(h.recipients) != 1 {
		t.Errorf("got %+v, %v", h, err)
	}
	circle := rec('T', "1 0") + rec('S', "s")
	r = strings.NewReader(circle + pointer(len(rec('T', "1 0"))))
	if _, err := readHead(r, r.Size()); err == nil {
		t.Error("a circle was read")
	}
}

// Nothing that was cut is taken for a message.
func TestFileThatIsCutIsRefused(t *testing.T) {
	file := queueFile(rec('S', "s@x")+rec('R', "r@x"), rec('N', "A: b")+rec('N', "")+rec('N', "body"), "")
	for n := range len(file) {
		if _, err := readHead(strings.NewReader(file[:n]), int64(n)); err == nil {
			t.Fatalf("the first %d of %d bytes are a message", n, len(file))
		}
	}
}

func TestFailuresThatWereNotReportedAreOpenAgain(t *testing.T) {
	q := t.TempDir()
	one, two := rec('R', "open@x"), rec('D', "failed@x")
	start := rec('C', "            1   2   3   4") + rec('T', "1700000000 123456") + rec('S', "s@x")
	file := start + one + two + rec('D', "done@x") + rec('M', "") + rec('N', "A: b") + rec('X', "") + rec('E', "")
	bounce := fmt.Sprintf("<failed@x>: host said no\n\nrecipient=failed@x\noffset=%d\nstatus=5.1.1\naction=failed\n\n", len(start+one))
	for name, text := range map[string]string{"incoming/x": "", "active/x": "", "deferred/A/ABC": file, "bounce/A/ABC": bounce, "defer/A/ABC": "x", "hold/H1": file, "corrupt/BAD": "x", "maildrop/M1": file} {
		path := q + "/" + name
		assert.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if text != "" {
			assert.Must(t, os.WriteFile(path, []byte(text), 0o700))
		}
	}
	assert.Must(t, os.Chmod(filepath.Join(q, "maildrop/M1"), 0o600))
	s, err := Open(q)
	assert.Must(t, err)
	defer s.Close()
	importertest.Golden(t, "testdata/made.golden", importertest.Text(t, s))
	assert.Must(t, s.Remove(importer.Ref{Name: "deferred/A/ABC"}))
	assert.Equal(t, fmt.Sprint(importertest.Files(t, q)), "[corrupt/BAD hold/H1 maildrop/M1]", "left")
}

// golden is a queue that a Postfix of Debian has made, see test/e2e.
func TestRealQueueIsReadWhole(t *testing.T) {
	q := importertest.Copy(t, "testdata/queue", "incoming", "active", "deferred", "hold", "maildrop")
	s, err := Open(q)
	assert.Must(t, err)
	defer s.Close()
	importertest.Golden(t, "testdata/queue.golden", importertest.Text(t, s))
}

func TestOtherDirectoriesAreNoQueue(t *testing.T) {
	for _, dir := range []string{t.TempDir(), "/nonexistent", "/etc/passwd"} {
		if _, err := Open(dir); !errors.Is(err, importer.ErrNoQueue) {
			t.Errorf("%s: got %v, want %v", dir, err, importer.ErrNoQueue)
		}
	}
}

// Links that somebody has put into a queue are not followed.
func TestLinksAreNotFollowed(t *testing.T) {
	q := t.TempDir()
	for _, d := range []string{"incoming", "active", "deferred"} {
		assert.Must(t, os.Mkdir(filepath.Join(q, d), 0o755))
	}
	assert.Must(t, os.Symlink("/etc/passwd", filepath.Join(q, "deferred", "ABCDEF")))
	s, err := Open(q)
	assert.Must(t, err)
	defer s.Close()
	if _, err := s.Open(importer.Ref{Name: "deferred/ABCDEF"}); err == nil {
		t.Error("a link was followed")
	}
}

func FuzzQueueFile(f *testing.F) {
	f.Add([]byte(queueFile(rec('S', "s@x")+rec('R', "r@x"), rec('N', "A: b"), rec('R', "y"))))
	f.Add([]byte(rec('T', "1 0") + rec('p', "              0") + rec('S', "") + rec('M', "") + rec('p', "              2")))
	real, _ := filepath.Glob("testdata/queue/*/*")
	deep, _ := filepath.Glob("testdata/queue/*/*/*")
	for _, name := range append(real, deep...) {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r := bytes.NewReader(file)
		h, err := readHead(r, r.Size())
		if err != nil {
			return
		}
		if !h.end || !h.hasSender {
			t.Fatalf("taken without its end or its sender: %+v", h)
		}
		h.part()
		if err := writeContent(r, r.Size(), io.Discard); err != nil && !errors.Is(err, errCut) {
			t.Skip(err)
		}
	})
}

func FuzzBounces(f *testing.F) {
	f.Add([]byte("<a@b>: x\nrecipient=a@b\noffset=12\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for at := range parseBounces(text) {
			if at <= 0 {
				t.Fatal(at)
			}
		}
	})
}
